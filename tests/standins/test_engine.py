"""The real engine with the stand-ins: the language host and the whole life cycle of a stack."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_fleet.toolchain import find
from tests.standins.grafana_server import GrafanaServer
from tests.standins.project import Project

COMMAND = """
import pulumi
from pulumi_command import local
config = pulumi.Config()
first = local.Command(
    "first",
    create='echo "made $VERSION"',
    delete="touch deleted",
    environment={"VERSION": config.get("version") or "1", "TOKEN": config.require_secret("token")},
)
second = local.Command("second", create='echo "after $FIRST"', environment={"FIRST": first.stdout})
pulumi.export("second", second.stdout)
"""
GRAFANA = """
import json
import pulumi
import pulumiverse_grafana as grafana
config = pulumi.Config()
provider = grafana.Provider("lab", url=config.require("url"), auth=config.require_secret("auth"), retries=0)
options = pulumi.ResourceOptions(provider=provider)
folder = grafana.oss.Folder("folder", title="GPU fleet", uid="gpu-fleet", opts=options)
model = {"uid": "overview", "title": config.get("title") or "Overview", "panels": []}
dashboard = grafana.oss.Dashboard("overview", folder=folder.uid, config_json=json.dumps(model), opts=options)
pulumi.export("url", dashboard.url)
"""


def test_the_life_of_a_stack_of_commands(project: Project) -> None:
    project.program(COMMAND)
    project.run("config", "set", "--secret", "token", "planted-secret")
    preview = project.run("preview", "--diff")
    assert "+ 3 to create" in preview and "[unknown]" in preview and "planted-secret" not in preview
    assert "+ 3 created" in project.up()
    assert project.output("second") == "after made 1"
    assert "3 unchanged" in project.up()
    project.run("config", "set", "version", "2")
    change = project.run("preview", "--diff")
    assert '~ VERSION: "1" => "2"' in change and "2 to update" in change
    project.up()
    assert project.output("second") == "after made 2"
    assert "3 unchanged" in project.run("refresh", "--yes", "--skip-preview")
    assert "planted-secret" not in project.state_text()
    project.run("destroy", "--yes", "--skip-preview")
    assert (project.directory / "deleted").exists()
    assert project.state() == []


def test_a_failed_command_is_reported_and_not_recorded_in_the_state(project: Project) -> None:
    project.program("from pulumi_command import local\nlocal.Command('broken', create='echo the cause; exit 3')\n")
    output = project.up(fails=True)
    assert 'exit status 3: running "echo the cause; exit 3":' in output and "the cause" in output
    assert not [resource for resource in project.state() if resource["type"] == "command:local:Command"]


def test_an_input_that_the_plugin_does_not_know_stops_before_anything_is_made(project: Project) -> None:
    project.program(
        "import pulumi\npulumi.CustomResource('command:local:Command', 'odd', {'create': 'touch made', 'upgrade': 'x'})\n"
    )
    output = project.up(fails=True)
    assert "Unrecognized field 'upgrade'" in output
    assert not (project.directory / "made").exists()


def test_the_life_of_a_stack_in_grafana(project: Project, server: GrafanaServer) -> None:
    server.empty()
    project.program(GRAFANA)
    project.run("config", "set", "url", server.url)
    project.run("config", "set", "--secret", "auth", server.auth)
    assert "+ 4 created" in project.up()
    assert project.output("url") == f"{server.url}/d/overview/overview"
    assert "4 unchanged" in project.up()
    model = server.get("/api/dashboards/uid/overview")["dashboard"]
    server.ask("POST", "/api/dashboards/db", {"dashboard": {**model, "title": "By hand"}, "folderUid": "gpu-fleet"})
    drift = project.run("refresh", "--yes", "--skip-preview", "--diff")
    assert '~ title: "Overview" => "By hand"' in drift.replace("title :", "title:")
    assert "~ 1 updated" in project.up()
    assert server.get("/api/dashboards/uid/overview")["dashboard"]["title"] == "Overview"
    assert server.auth.partition(":")[2] not in project.state_text()
    project.run("destroy", "--yes", "--skip-preview")
    assert server.get("/api/folders") == []


# --- the language host ------------------------------------------------------------------------------------------------------


def test_the_program_sees_its_project_as_the_official_host_shows_it(project: Project) -> None:
    project.program("VALUE = 'from a module'\n", "beside.py")
    project.program(
        "import os, sys, beside, pulumi\n"
        "config = pulumi.Config()\n"
        "pulumi.export('seen', [beside.VALUE, os.getcwd(), sys.argv, pulumi.get_project(), pulumi.get_stack(),\n"
        "    pulumi.get_organization(), config.require('plain'), pulumi.runtime.is_dry_run()])\n"
        "pulumi.export('secret', config.require_secret('hidden'))\n"
    )
    project.run("config", "set", "plain", "value")
    project.run("config", "set", "--secret", "hidden", "planted-secret")
    assert "planted-secret" not in project.up()
    seen = json.loads(project.run("stack", "output", "--json"))
    directory = str(project.directory)
    assert seen["seen"] == ["from a module", directory, ["."], "standins", "test", "organization", "value", False]
    assert seen["secret"] == "[secret]"


def test_what_the_program_prints_is_shown(project: Project) -> None:
    project.program("import sys\nprint('to stdout')\nprint('to stderr', file=sys.stderr)\n")
    output = project.up()
    assert "to stdout" in output and "to stderr" in output


@pytest.mark.parametrize(
    ("program", "shown", "hidden"),
    [
        ("import pulumi\nraise pulumi.RunError('datacenter: missing')\n", "error: datacenter: missing", "Traceback"),
        ("def divide():\n    return 1 / 0\ndivide()\n", "ZeroDivisionError: division by zero", "bail"),
        ("import sys\nsys.exit(7)\n", "program exited with non-zero exit code: 7", "Traceback"),
    ],
    ids=["RunError", "exception", "exit"],
)
def test_a_failing_program_is_reported(project: Project, program: str, shown: str, hidden: str) -> None:
    project.program(program)
    output = project.up(fails=True)
    assert shown in output and hidden not in output


def test_a_configuration_too_long_for_the_operating_system_is_an_error_without_a_hint_as_from_the_official_host(
    project: Project,
) -> None:
    project.program("")
    (project.directory / "Pulumi.test.yaml").write_text(f"config:\n  standins:hosts: {'h' * 140_000}\n")
    python = project.directory / ".venv/bin/python"
    assert (
        "error: an unhandled error occurred: problem executing program (could not run language executor): "
        f"fork/exec {python}: argument list too long\n"
    ) in project.run("preview", fails=True)


def test_a_program_that_leaves_sigint_to_python_ends_in_a_traceback_as_under_the_official_host(project: Project) -> None:
    """And one that handles it ends as it wants: what the engine no longer reads is not shown."""
    waiting = "import time\nprint('waiting', flush=True)\ntime.sleep(300)\n"
    project.program(waiting)
    assert "KeyboardInterrupt" in _interrupted(project)
    project.program(f"import os, signal\nsignal.signal(signal.SIGINT, lambda *_: os._exit(130))\n{waiting}")
    output = _interrupted(project)
    assert "Traceback" not in output and "exit code" not in output


def _interrupted(project: Project) -> str:
    """The output of a preview with Ctrl-C when the program says that it waits."""
    engine = subprocess.Popen(
        [find("pulumi"), "preview", "--color", "never", "--non-interactive"],
        cwd=project.directory,
        env=project.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert engine.stdout is not None
    lines = []
    for line in engine.stdout:
        lines.append(line)
        if line.strip().endswith("waiting"):
            break
    os.killpg(engine.pid, signal.SIGINT)
    rest, _ = engine.communicate(timeout=600)
    return "".join(lines) + rest


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_a_program_does_not_outlive_the_engine(project: Project, how: signal.Signals) -> None:
    pid_file = project.directory / "pid"
    project.program(f"import os, time\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(300)\n")
    engine = subprocess.Popen(
        [find("pulumi"), "up", "--yes", "--skip-preview", "--non-interactive"],
        cwd=project.directory,
        env=project.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _wait_until(lambda: pid_file.exists() and bool(pid_file.read_text()))
    engine.send_signal(how)
    engine.wait(300)
    _wait_until(lambda: not Path(f"/proc/{pid_file.read_text()}").exists())


def _wait_until(holds: Any) -> None:
    deadline = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
