"""Looking before acting, on a running datacenter: a plan made on the hosts, and the drift report. Neither changes anything."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import alerts
from alerts.customization import Customization, Override
from gpu_fleet import toolchain
from lab.dev import query
from tests.checkout import REPO
from tests.documents import blocks, commands
from tests.e2e.conftest import Datacenter
from tests.signals.custom import examples
from tests.waiting import eventually

HOST = "dev-gpu-host"


@pytest.fixture
def edited(datacenter: Datacenter) -> Iterator[Path]:
    """A file of a host, edited there by hand; put back afterwards."""
    file = datacenter.host / "etc/gpu-fleet/alloy/discover.alloy"
    original = file.read_text()
    file.write_text(original + "// edited by hand\n")
    yield file
    file.write_text(original)


def check(datacenter: Datacenter, *variables: str, command: str = "check") -> subprocess.CompletedProcess[str]:
    """`make check STACK=dev` without its set-up, as a person runs it after `. .dev/env`. `variables`: NAME=value over those."""
    return subprocess.run(
        [
            "sh",
            "-c",
            f'. .dev/env && exec env "$@" .venv/bin/python -m gpu_fleet.operations.{command} --stack dev',
            "sh",
            *variables,
        ],
        cwd=datacenter.directory,
        text=True,
        capture_output=True,
        timeout=600,
        check=False,
    )


def placed(datacenter: Datacenter) -> dict[str, tuple[int, bytes]]:
    """What we placed on the host and its configuration: path -> time of change and content. Logs and data go on by themselves."""
    roots = [datacenter.host / name for name in ("etc", "opt", "var/lib/gpu-fleet/current")]
    files = [file for root in roots for file in root.rglob("*") if file.is_file()]
    assert files
    return {str(file): (file.stat().st_ctime_ns, file.read_bytes()) for file in files}


def test_plan_hosts_shows_in_a_preview_what_differs_on_a_host_and_touches_nothing(
    datacenter: Datacenter, edited: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = placed(datacenter)
    monkeypatch.setenv("PLAN", "hosts")
    output = datacenter.pulumi("preview", "--diff")
    assert f"{HOST}: 1 of " in output, output
    assert f"file /etc/gpu-fleet/alloy/{edited.name}: content differs" in output, output
    assert "service gpu-fleet-alloy: to be reloaded" in output, output
    assert "probing the host" not in output, "progress messages are not part of a plan"
    assert placed(datacenter) == before


def test_what_make_does_with_a_stack_is_understood_by_pulumi_and_a_second_up_changes_nothing(
    datacenter: Datacenter, preview: str, edited: Path
) -> None:
    """Without PLAN and a refresh no host is contacted: what was edited there stays and is not shown."""
    assert "unchanged" in preview
    before = edited.read_text()
    output = datacenter.make("up", "--yes --skip-preview --expect-no-changes")
    assert re.search(r"Resources:\s+\d+ unchanged", output), output
    assert re.search(rf"(?m)^{HOST} +unchanged +8 x NVIDIA H100 80GB HBM3 +nvidia_gpu_exporter +- +\S+", output), output
    assert "1 host: 1 unchanged." in output
    assert "would change" not in preview + output and edited.read_text() == before


def test_the_policy_pack_stops_a_preview_at_a_violation_and_takes_levels_from_a_file(datacenter: Datacenter) -> None:
    output = datacenter.pulumi("preview", "--policy-pack", "gpu_fleet/policy", ok=False)
    violations = re.findall(r"\[(\w+)\] +([\w-]+) +\((\S+: \S+)\)", output)
    where = (f"gpu-fleet:host:Host: {HOST}", "pulumi:providers:gpu-fleet: gpu-fleet")
    assert set(violations) == {("mandatory", "no-stand-ins", one) for one in where}, output
    levels = datacenter.directory / ".dev/policies.json"
    levels.write_text('{"no-stand-ins": "advisory"}')
    output = datacenter.pulumi("preview", "--policy-pack", "gpu_fleet/policy", "--policy-pack-config", str(levels))
    assert "[advisory]  no-stand-ins" in output, output


def test_check_reports_drift_of_a_host_and_leaves_state_and_host_alone(datacenter: Datacenter, edited: Path) -> None:
    host, state = placed(datacenter), datacenter.state.read_text()
    done = check(datacenter)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{HOST}  drift 1  alloy: file /etc/gpu-fleet/alloy/{edited.name}: content differs" in done.stdout, done.stdout
    assert re.search(r"(?m)^1 host, \d+ rule groups, .*: \d+ ok, 1 drift\.$", done.stdout), done.stdout
    assert "pulumi up --refresh --stack dev" in done.stdout
    assert placed(datacenter) == host
    assert HOST in state and datacenter.state.read_text() == state


def test_check_of_a_fleet_without_drift_succeeds(datacenter: Datacenter) -> None:
    done = check(datacenter)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"(?m)^1 host, \d+ rule groups, .*: \d+ ok\.$", done.stdout), done.stdout


def test_status_shows_how_the_host_is_deployed_and_that_its_data_is_current(datacenter: Datacenter) -> None:
    # The drift is what the host's own check found, on its timer: on a slow machine also what another test edited and restored.
    expected = r"deployed +8 x NVIDIA H100 80GB HBM3 +\S+ +nvidia_gpu_exporter +\d+ s ago +(\d+|-) "
    shown = ""

    def is_current() -> bool:
        nonlocal shown
        done = check(datacenter, command="status")
        assert done.returncode == 0, done.stdout + done.stderr
        shown = done.stdout
        rows = [line for line in shown.splitlines() if line.startswith(HOST)]
        return any(re.search(expected, row) for row in rows) and "1 host, 1 deployed, 0 without current data" in shown

    eventually("current data of the host", is_current, shown=lambda: shown)


def test_check_reports_what_pulumi_could_not_do(datacenter: Datacenter) -> None:
    done = check(datacenter, "PULUMI_BACKEND_URL=file:///nowhere")
    assert done.returncode == 1
    assert "/nowhere" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr


def test_make_rules_writes_what_the_rulers_of_the_stack_evaluate(datacenter: Datacenter, tmp_path: Path) -> None:
    """So that a site which loads the files by hand gets the rules that `pulumi up` would write."""
    paths = {"mimir": "/prometheus/config/v1/rules/gpu-fleet", "loki": "/loki/api/v1/rules/gpu-fleet"}
    for target, path in paths.items():
        command = [".venv/bin/python", "-m", "gpu_fleet.operations.rules", target, str(tmp_path), "--stack", "dev"]
        subprocess.run(command, cwd=datacenter.directory, check=True, capture_output=True)
        file = tmp_path / target / "gpu-fleet.yaml"
        with urllib.request.urlopen(datacenter.endpoints[f"{target.upper()}_URL"] + path) as answer:
            assert groups(yaml.safe_load(answer.read())["gpu-fleet"]) == groups(yaml.safe_load(file.read_text())["groups"])
    load = [toolchain.find("mimirtool"), "rules", "load", f"--address={datacenter.endpoints['MIMIR_URL']}", "--id=anonymous"]
    subprocess.run([*load, tmp_path / "mimir/gpu-fleet.yaml"], check=True, capture_output=True)
    assert "unchanged" in datacenter.pulumi("preview", "--refresh", "--expect-no-changes"), "the tool loads what Pulumi wrote"


def test_mimir_and_loki_accept_overridden_rules_and_those_of_a_stack(datacenter: Datacenter, tmp_path: Path) -> None:
    """In a namespace of their own beside what the stack has there."""
    examples(tmp_path)
    overrides = {
        "GpuTemperatureHigh": Override(threshold=88.5, for_="1h30m", severity="critical", labels={"team": 'our "A" team'}),
        "GpuEccUncorrected": Override(severity="warning"),
        "GpuFleetTestAlert critical": Override(labels={"team": "gpu"}),
    }
    custom = Customization(overrides=overrides, labels={"site": "lab"}, files={"rules": (tmp_path / "custom/rules/models.yaml",)})
    paths = {"mimir": "/prometheus/config/v1/rules/overridden", "loki": "/loki/api/v1/rules/overridden"}
    for backend, path in paths.items():
        url = datacenter.endpoints[f"{backend.upper()}_URL"] + path
        as_ours = alerts.rule_groups(backend, custom=Customization(labels={"site": "lab"}))
        wanted = [group for group in alerts.rule_groups(backend, custom=custom) if group not in as_ours]
        assert wanted
        try:
            for group in wanted:
                ask("POST", url, group.yaml)
            kept = yaml.safe_load(ask("GET", url))["overridden"]
            assert groups(kept) == groups([group.as_dict for group in wanted])
            labels = [rule["labels"] for group in kept for rule in group["rules"] if "alert" in rule]
            assert labels and all(one["site"] == "lab" for one in labels)
        finally:
            ask("DELETE", url)


def ask(method: str, url: str, body: str = "") -> bytes:
    request = urllib.request.Request(url, body.encode() or None, {"Content-Type": "application/yaml"}, method=method)
    with urllib.request.urlopen(request) as answer:
        return answer.read()


def groups(listed: list[dict[str, Any]]) -> dict[str, list[tuple[str, str]]]:
    """Names and expressions of each group's rules."""
    return {one["name"]: [(rule.get("alert") or rule["record"], rule["expr"].strip()) for rule in one["rules"]] for one in listed}


@pytest.fixture(scope="module")
def sent(datacenter: Datacenter) -> str:
    """What `make test-alert STACK=dev` prints."""
    return datacenter.make("test-alert")


def test_a_test_alert_passes_every_stage_to_the_receiver_and_leaves_no_file(datacenter: Datacenter, sent: str) -> None:
    print(sent)
    stages = re.findall(r"(?m)^ +(\d+) s  (.*)$", sent)
    assert {text for _, text in stages} == {
        "the log line is in Loki",
        "the metric is in Mimir",
        "the alert fires in Mimir's ruler",
        "the alert fires in Loki's ruler",
        "Alertmanager has the alert: for lab (webhook)",
        "the receivers are notified: each channel accepted a notification",
    }, sent
    assert "Notified: lab." in sent
    received = query.received_alerts(datacenter.endpoints["RECEIVER_URL"])
    (notified,) = (one for one in received if one["labels"]["alertname"] == "GpuFleetTestAlert" and one["status"] == "firing")
    assert notified["labels"].items() >= {"instance": HOST, "severity": "critical", "scope": "test"}.items()
    assert notified["annotations"]["summary"].startswith(f"TEST from {HOST}")
    assert not list((datacenter.host / "var/lib/gpu-fleet/textfile").glob("test-alert-*"))
    command = ". .dev/env && exec .venv/bin/python -m gpu_fleet.operations.alert_path --stack dev"
    again = subprocess.run(["sh", "-c", command], cwd=datacenter.directory, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "still active" in again.stderr and "Traceback" not in again.stderr, again.stderr


@pytest.mark.usefixtures("sent")
def test_the_commands_of_the_page_about_checks_by_hand_show_something(datacenter: Datacenter) -> None:
    """With the ports of this datacenter in place of the defaults."""
    stack = yaml.safe_load((datacenter.directory / "Pulumi.dev.yaml").read_text())["config"]
    ports = stack["gpu-fleet:hosts"][HOST]["ports"]
    moved = {"9400": ports["gpuExporter"], "9100": ports["nodeExporter"], "12345": ports["alloy"]}
    moved |= {
        port: datacenter.endpoints[f"{name}_URL"].rpartition(":")[2] for port, name in (("9009", "MIMIR"), ("3100", "LOKI"))
    }
    found = [command.text for block in blocks(REPO / "docs/by-hand.md") for command in commands(block)]
    assert len(found) == 12
    for command in found:
        local = re.sub(r"127\.0\.0\.1:(\d+)", lambda match: f"127.0.0.1:{moved[match[1]]}", command)
        done = subprocess.run(["sh", "-c", local], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0 and done.stdout.strip(), f"{command}\n{done.stdout}{done.stderr}"
        assert '"status":"error"' not in done.stdout, done.stdout
