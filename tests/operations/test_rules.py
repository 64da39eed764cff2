"""`make rules`: files that a ruler loads as they are. Against running rulers: tests/e2e/test_operations.py."""

from __future__ import annotations

import subprocess
from pathlib import Path

import asyncssh
import pytest
import yaml

import alerts
from alerts.alertmanager import alertmanager_config
from gpu_fleet import toolchain
from gpu_fleet.operations import rules
from gpu_fleet.stackfile.alerts import Alerts, Receiver
from tests.signals.custom import examples

INVENTORY = {"inventory:host:expected", "inventory:gpus_expected:count", "inventory:counters:expected"}


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A stack file with two hosts, one of them lost."""
    hosts = {"gpu-1": {"address": "10.0.0.1", "gpus": 8}, "gpu-2": {"address": "10.0.0.2", "gpus": 8, "lost": True}}
    config = {
        "datacenter": "us-west",
        "cluster": "training",
        "ssh": {"user": "ops", "knownHostsFile": str(tmp_path / "known_hosts")},
        "hosts": hosts,
        "metrics": {"url": "https://mimir.example.com/api/v1/push"},
    }
    key = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    (tmp_path / "known_hosts").write_text(f"10.0.0.1 {key}10.0.0.2 {key}")
    file = tmp_path / "Pulumi.us-west.yaml"
    file.write_text(yaml.safe_dump({"config": {f"gpu-fleet:{key}": value for key, value in config.items()}}))
    monkeypatch.setenv("PULUMI_OPTION_CONFIG_FILE", str(file))
    return "us-west"


@pytest.fixture
def overridden(stack: str, tmp_path: Path) -> str:
    """The stack with overrides, and rules of its own."""
    examples(tmp_path)
    (tmp_path / "custom/dashboards/models.json").unlink()  # nothing in this stack shows it
    file = tmp_path / "Pulumi.us-west.yaml"
    content = yaml.safe_load(file.read_text())
    changed = {"GpuTemperatureHigh": {"threshold": 88}, "GpuFleetTestAlert": {"enabled": False}}
    content["config"] |= {
        "gpu-fleet:alerts": {"labels": {"team": "gpu"}, "rules": changed},
        "gpu-fleet:rulers": {"mimir": {"url": "https://mimir.example.com"}},
        "gpu-fleet:custom": str(tmp_path / "custom"),
    }
    file.write_text(yaml.safe_dump(content))
    return stack


def written(directory: Path, target: str) -> list[dict]:
    """The rule groups of every file, out of their objects for the operator."""
    documents = [yaml.load(file.read_text(), yaml.CSafeLoader) for file in sorted((directory / target).glob("*.yaml"))]
    return [group for one in documents for group in one.get("spec", one)["groups"]]


@pytest.mark.parametrize("target", ["prometheus", "mimir", "operator"])
def test_the_files_hold_every_rule_and_the_inventory_of_the_stack(target: str, stack: str, tmp_path: Path) -> None:
    assert rules.main([target, str(tmp_path), "--stack", stack]) == 0
    groups = {group["name"]: group for group in written(tmp_path, target)}
    expected = {group.name: group.as_dict for group in alerts.rule_groups("mimir")}
    assert {name: groups[name] for name in expected} == expected
    inventory = [groups[name] for name in groups.keys() - expected.keys()]
    assert {rule["record"] for group in inventory for rule in group["rules"]} == INVENTORY
    assert "gpu-1" in str(inventory) and "gpu-2" not in str(inventory), "a lost host is not expected"


def test_promtool_accepts_what_a_prometheus_loads(stack: str, tmp_path: Path) -> None:
    rules.main(["prometheus", str(tmp_path), "--stack", stack, "--runbook-url", "https://git.example.com/gpu-fleet"])
    file = tmp_path / "prometheus/gpu-fleet.yaml"
    checked = subprocess.run([toolchain.find("promtool"), "check", "rules", file], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    links = [
        rule["annotations"]["runbook_url"]
        for group in written(tmp_path, "prometheus")
        for rule in group["rules"]
        if "alert" in rule
    ]
    assert links and all(link.startswith("https://git.example.com/gpu-fleet/alerts/runbooks/") for link in links)


@pytest.mark.parametrize("target", ["mimir", "operator", "loki"])
def test_the_files_have_the_overrides_and_rules_of_the_stack(target: str, overridden: str, tmp_path: Path) -> None:
    assert rules.main([target, str(tmp_path / "build"), "--stack", overridden]) == 0
    found = {rule["alert"]: rule for group in written(tmp_path / "build", target) for rule in group["rules"] if "alert" in rule}
    assert all(rule["labels"]["team"] == "gpu" for rule in found.values())
    assert "GpuFleetTestAlert" not in found, "disabled"
    if target != "loki":
        assert found["GpuTemperatureHigh"]["expr"].endswith(">= 88") and "ModelServerDown" in found


def test_a_site_whose_prometheus_and_alertmanager_are_its_own_has_thresholds_and_labels_in_the_files(
    overridden: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "Pulumi.us-west.yaml"
    content = yaml.safe_load(file.read_text())
    for key in ("gpu-fleet:rulers", "gpu-fleet:custom"):
        content["config"].pop(key)
    file.write_text(yaml.safe_dump(content))
    assert rules.main(["prometheus", str(tmp_path / "build"), "--stack", overridden]) == 0, capsys.readouterr().err
    found = {
        rule["alert"]: rule for group in written(tmp_path / "build", "prometheus") for rule in group["rules"] if "alert" in rule
    }
    assert found["GpuTemperatureHigh"]["expr"].endswith(">= 88") and found["GpuXid"]["labels"]["team"] == "gpu"


def test_an_override_that_is_wrong_writes_no_file(overridden: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Pulumi.us-west.yaml"
    file.write_text(file.read_text().replace("GpuTemperatureHigh", "GpuTempratureHigh"))
    assert rules.main(["mimir", str(tmp_path / "build"), "--stack", overridden]) == 1
    assert "did you mean GpuTemperatureHigh?" in capsys.readouterr().err
    assert not (tmp_path / "build").exists()


def test_the_inhibitions_for_an_alertmanager_of_the_site_s_own_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules.main(["operator", str(tmp_path)])
    file = tmp_path / "alertmanager/inhibit_rules.yaml"
    deployed = alertmanager_config(Alerts(receivers={"none": Receiver()}), {})
    assert yaml.safe_load(file.read_text()) == {"inhibit_rules": deployed["inhibit_rules"]}
    assert f"{file}: add its rules to your Alertmanager" in capsys.readouterr().out
    assert not list((tmp_path / "operator").glob("*inhibit*")), "kubectl applies everything in that directory"


def test_an_object_for_the_operator_carries_the_labels_that_its_prometheus_selects(tmp_path: Path) -> None:
    rules.main(["operator", str(tmp_path), "--namespace", "monitoring", "--labels", "release=kps,team=gpu"])
    for file in (tmp_path / "operator").glob("*.yaml"):
        metadata = yaml.load(file.read_text(), yaml.CSafeLoader)["metadata"]
        assert metadata["namespace"] == "monitoring" and metadata["labels"] == {"release": "kps", "team": "gpu"}
        assert metadata["name"] == file.stem


def test_without_a_stack_the_missing_inventory_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rules.main(["mimir", str(tmp_path)]) == 0
    assert "Without STACK=... the alerts about missing hosts and GPUs stay silent" in capsys.readouterr().out


def test_a_rule_file_that_was_deleted_leaves_the_directory_and_other_files_stay(tmp_path: Path) -> None:
    directory = tmp_path / "operator"
    directory.mkdir()
    (directory / "gpu-fleet-old.yaml").write_text("left by an earlier version")
    (directory / "kustomization.yaml").write_text("the site's own")
    rules.main(["operator", str(tmp_path)])
    assert not (directory / "gpu-fleet-old.yaml").exists()
    assert (directory / "kustomization.yaml").read_text() == "the site's own"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["cortex"], "invalid choice: 'cortex'"),
        (["operator", "--labels", "release"], "'release': expected NAME=VALUE,NAME=VALUE"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_is_expected(
    arguments: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        rules.main([arguments[0], str(tmp_path), *arguments[1:]])
    assert error in capsys.readouterr().err
