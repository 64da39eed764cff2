"""The life cycle of a stack with the real engine: what is printed, and what is left where."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from gpu_fleet import toolchain
from gpu_fleet.operations import backend, deploy, interrupted, state
from gpu_fleet.operations.deploy import SAVED_ONCE
from lab.standins import programs
from tests.hosts.stack import assert_unchanged
from tests.provider.plugin import CONVERGE, PASSWORD, PLUGIN
from tests.provider.ruler_server import RulerServer
from tests.provider.test_host import is_gone_soon

REPO = PLUGIN.parents[2]
UP = ("up", "--yes", "--skip-preview")
PROGRAM = """
import os
import signal

signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # as the real program does
import io
import json
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, {repo!r})
import pulumi
from components.provider import Provider, ProviderArgs
from components.fleet.resources import Bundle, Host
from components.rulers.resources import AlertmanagerConfig, RuleGroup, RulerServer
from components.fleet.renames import inventory, moves
from components.sdk_patches import patch_sdk
from types import SimpleNamespace

patch_sdk()
desired = json.loads(Path("desired.json").read_text())
secret = pulumi.Output.secret(desired["password"])
ours = pulumi.ResourceOptions(
    provider=Provider("fleet", ProviderArgs(secrets={{"metrics-password": secret}}, lost_hosts=desired["lost"]))
)
text = desired["converge"]
archive = io.BytesIO()
with tarfile.open(fileobj=archive, mode="w") as tar:
    info = tarfile.TarInfo("converge")
    info.size = len(text.encode())
    tar.addfile(info, io.BytesIO(text.encode()))
bundle = Bundle("bundle", files={{"converge": text}}, tar=archive.getvalue(), opts=ours)
prefixes = {{name: str(Path("hosts", desired["machines"].get(name, name)).absolute()) for name in desired["hosts"]}}
old_names = {{}}
if desired["aliases"]:
    specs = [SimpleNamespace(name=name, connection="local", prefix=at) for name, at in prefixes.items()]
    pulumi.export("inventory", inventory(specs))
    old_names = moves(specs).old_names
for name, do in desired["hosts"].items():
    settings = {{"DO": do, "GPU_FLEET_INSTANCE": name, "GPU_FLEET_STACK": desired["stack"]}}
    host = Host(
        name,
        host=name,
        connection={{"kind": "local", "prefix": prefixes[name]}},
        bundle=bundle.digest,
        settings=settings,
        opts=pulumi.ResourceOptions.merge(
            ours, pulumi.ResourceOptions(aliases=[pulumi.Alias(name=old_names[name])] if name in old_names else None)
        ),
    )
    if desired["exports"]:
        pulumi.export(name, host.facts)
if desired["ruler"]:
    server = RulerServer(url=desired["ruler"])
    RuleGroup("rules", backend="mimir", server=server, namespace="fleet", group="xid", rules=desired["rules"], opts=ours)
    AlertmanagerConfig("alertmanager", server=server, config=pulumi.Output.concat("# ", secret), opts=ours)
"""


class Stack:
    """A project with one stack, whose program creates what `desired` lists."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.desired: dict[str, Any] = {
            "hosts": {"node-1": "", "node-2": ""},
            "exports": True,  # without them the program goes on after a host that failed
            "stack": "us-west/training",
            "aliases": False,  # look for hosts that have another name in the state
            "machines": {},  # host to its directory, where that has another name
            "converge": CONVERGE.read_text(),
            "password": PASSWORD,
            "lost": [],
            "ruler": "",
            "rules": "",
        }
        project = {
            "name": "gpu-fleet",
            "runtime": {"name": "python", "options": {"toolchain": "pip", "virtualenv": str(REPO / ".venv")}},
            "plugins": {"providers": [{"name": "gpu-fleet", "path": str(PLUGIN.parent)}]},
        }
        (directory / "Pulumi.yaml").write_text(yaml.safe_dump(project))
        (directory / "__main__.py").write_text(PROGRAM.format(repo=str(REPO)))
        (directory / "state").mkdir()
        self.environment = {
            **os.environ,
            **programs.environment("test"),
            "PULUMI_BACKEND_URL": f"file://{directory}/state",
            "PULUMI_CONFIG_PASSPHRASE": "a passphrase",
            "PULUMI_STACK": "test",
        }
        self.run("stack", "init", "test")

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        (self.directory / "desired.json").write_text(json.dumps(self.desired))
        return subprocess.Popen(
            [toolchain.find("pulumi"), *arguments, "--color", "never", "--non-interactive"],
            cwd=self.directory,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, fails: bool = False, **environment: str) -> str:
        process = self.start(*arguments, **environment)
        output, _ = process.communicate(timeout=600)
        assert (process.returncode != 0) == fails, output
        assert PASSWORD not in output, "the engine showed a secret"
        return output

    def up(self, *, fails: bool = False, **environment: str) -> str:
        return self.run(*UP, fails=fails, **environment)

    def resource(self, urn_end: str) -> dict[str, Any]:
        return next(resource for resource in self.resources() if resource["urn"].endswith(urn_end))

    def resources(self) -> list[dict[str, Any]]:
        """Of the file that pulumi keeps, which is what `stack export` prints."""
        state = json.loads((self.directory / "state/.pulumi/stacks/gpu-fleet/test.json").read_text())
        return (state["checkpoint"]["latest"] or {}).get("resources", [])

    def placed(self) -> list[str]:
        return [str(path) for path in (self.directory / "hosts").rglob("*") if path.is_file()]


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    return Stack(tmp_path)


@pytest.fixture
def ruler() -> Iterator[RulerServer]:
    ruler = RulerServer()
    yield ruler
    ruler.close()


def test_a_stack_is_created_repaired_after_drift_changed_and_destroyed_without_a_trace(stack: Stack, ruler: RulerServer) -> None:
    stack.desired |= {"ruler": ruler.url, "rules": "name: xid\ninterval: 60s\nrules: [{record: a, expr: b}]"}
    output = stack.up()
    assert "+ 7 created" in output
    assert 'GPU_COUNT: "8"' in output
    assert ruler.groups.keys() == {("mimir", "", "fleet", "xid")}
    assert PASSWORD in ruler.alertmanagers[""]
    assert stack.resource("host:Bundle::bundle")["inputs"].keys() == {"files", "digest"}, (
        "an archive is written with every checkpoint"
    )

    a_host = json.dumps(stack.resource("host:Host::node-1"))
    assert len(a_host) < 1500, f"a thousand times this is in the state: {a_host}"

    settings = stack.directory / "hosts/node-1/etc/gpu-fleet/gpu-fleet.env"
    settings.unlink()
    shown = stack.run("refresh", "--yes", "--diff")
    assert '+ [0]: "alloy: /etc/gpu-fleet/gpu-fleet.env is missing"' in shown
    assert "~ 1 updated" in shown and "6 unchanged" in shown, "what was not touched must not look changed"
    repaired = stack.up()
    assert "[diff: -drift]" in repaired
    assert "~ 1 updated" in repaired and "6 unchanged" in repaired
    assert settings.exists()

    log = stack.directory / "events.json"
    assert "7 unchanged" in stack.run(*UP, "--refresh", "--event-log", str(log), PULUMI_DEBUG_COMMANDS="true")
    assert_unchanged(log)

    stack.desired["converge"] += "# one more line\n"
    preview = stack.run("preview", "--diff", PLAN="hosts")
    assert "+ # one more line" in preview, "a preview shows which file changes, once, as text"
    assert "node-2: 1 of 2 parts would change" in preview
    assert "~ 3 to update" in preview

    stack.desired |= {"converge": CONVERGE.read_text(), "password": "another-horse"}
    rotated = stack.up()
    assert "~ 4 updated" in rotated, "provider, both hosts and the Alertmanager have the password"
    assert (stack.directory / "hosts/node-1/etc/gpu-fleet/secrets/metrics-password").read_text() == "another-horse"

    assert "- 7 deleted" in stack.run("destroy", "--yes")
    assert not stack.placed()
    assert not ruler.groups
    assert not ruler.alertmanagers


def test_a_failed_host_fails_alone_stays_in_the_state_and_is_tried_again(stack: Stack) -> None:
    stack.desired["hosts"] = {"node-1": "", "node-2": "fail"}
    output = stack.run("up", "--yes", "--skip-preview", "--continue-on-error", fails=True)
    assert "node-2: service did not start: alloy: no answer within 15 s" in output
    assert (stack.directory / "hosts/node-1/etc/gpu-fleet/gpu-fleet.env").exists()
    assert stack.resource("host:Host::node-2")["initErrors"]

    again = stack.up(fails=True)
    assert "node-2: service did not start" in again, "a host that failed is tried again though nothing changed"
    stack.run("destroy", "--yes")
    assert not stack.placed(), "what was placed before the failure is removed too"


def test_a_lost_host_is_removed_without_being_contacted(stack: Stack) -> None:
    stack.up()
    before = stack.placed()
    stack.desired |= {"lost": ["node-2"], "hosts": {"node-1": ""}}
    assert "- 1 deleted" in stack.up()
    assert stack.placed() == before


def test_ctrl_c_ends_the_work_and_the_next_up_finishes_it(stack: Stack) -> None:
    stack.desired["hosts"] = {"node-1": "hang"}
    process = stack.start("up", "--yes", "--skip-preview", **SAVED_ONCE)
    child = hanging_child(stack, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    output, _ = process.communicate(timeout=600)
    assert process.returncode != 0
    assert "node-1: stopped: " in output
    assert is_gone_soon(child)
    stack.desired["hosts"] = {"node-1": ""}
    assert "1 updated" in stack.up(), "the state was saved at the end, short as the run was"


def hanging_child(stack: Stack, process: subprocess.Popen[str]) -> Path:
    """The process in /proc that a host's converge program waits for, once it does."""
    deadline = time.monotonic() + 300
    while True:
        for file in stack.directory.glob("hosts/*/var/lib/gpu-fleet/child"):
            if number := file.read_text().strip():
                return Path("/proc") / number
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


UNUSED: Any = None  # the stack file, which says where Grafana and a cluster are


class _Prepared:
    """What `make up` does to the state before it runs pulumi, and the variables that it gives it."""

    def __init__(self, stack: Stack, monkeypatch: pytest.MonkeyPatch):
        for name, value in stack.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(stack.directory)
        settled = interrupted.settle("test", UNUSED)
        self.failed = [one["inputs"]["host"] for one in state.resources_of(settled) if one.get("initErrors")]
        prefixes = ((name, str(stack.directory / "hosts" / name)) for name in stack.desired["hosts"])
        hosts = [SimpleNamespace(name=name, connection="local", prefix=prefix) for name, prefix in prefixes]
        self.variables = deploy.environment({"hosts"}, {}, is_new=not state.has_all(settled, hosts))


@pytest.mark.parametrize("leaves", [False, True])
def test_hosts_of_a_killed_run_are_finished_or_removed_by_the_next(
    stack: Stack, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One was in place, the other half-way, when a run that installed both was killed."""
    stack.desired["hosts"] = {"node-1": "", "node-2": "hang"}
    process = stack.start(*UP, **_Prepared(stack, monkeypatch).variables)
    child = hanging_child(stack, process)
    deadline = time.monotonic() + 300
    while not any(one["urn"].endswith("Host::node-1") for one in stack.resources()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait(timeout=120)
    assert is_gone_soon(child)

    assert "the stack is currently locked by 1 lock" in stack.up(fails=True)
    monkeypatch.setenv("PULUMI_BACKEND_URL", stack.environment["PULUMI_BACKEND_URL"])
    assert backend.released("test") == [], "in a container, whose processes are not all that may hold the lock"
    monkeypatch.setattr(backend, "_sees_every_process", lambda: True)
    [run] = backend.released("test")
    assert run.startswith(f"process {process.pid} of 20")
    stack.desired["hosts"] = {} if leaves else {"node-1": "", "node-2": ""}
    prepared = _Prepared(stack, monkeypatch)
    assert prepared.failed == ["node-2"]
    output = stack.up(**prepared.variables)
    assert "pending operations" not in output
    if leaves:
        assert not stack.placed(), "what the killed run placed is removed"
        return
    assert "~ 1 updated" in output and "4 unchanged" in output
    assert _Prepared(stack, monkeypatch).variables == SAVED_ONCE, "a thousand hosts that exist are saved once"
