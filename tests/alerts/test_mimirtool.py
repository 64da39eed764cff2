"""What Mimir's own tool says: names of recording rules, the Alertmanager configuration, and the titles of notifications.

The texts are tested with the real Alertmanager, in test_notifications.py.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import alerts
from alerts.alertmanager import alertmanager_config, templates
from alerts.channels import TEMPLATE_FILE, TITLE
from alerts.model import to_yaml
from gpu_fleet import toolchain
from tests.alerts.receivers import EVERYONE, SECRETS, section

WINDOW = {"daysOfMonth": [24], "months": ["december"], "years": [2026], "times": [{"start": "22:00", "end": "24:00"}]}
LOST = {
    "status": "firing",
    "labels": {
        "alertname": "GpuXid",
        "datacenter": "us-west",
        "cluster": "training",
        "instance": "gpu-node-001",
        "severity": "critical",
        "scope": "gpu",
    },
    "annotations": {
        "summary": "XID 79 on gpu-node-001",
        "description": "The driver logged it.",
        "action": "Drain the node.",
        "runbook": "alerts/runbooks/GpuXid.md",
    },
}


def mimirtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([toolchain.find("mimirtool"), *arguments], capture_output=True, text=True, check=False)


def test_it_finds_nothing_to_complain_about():
    checked = mimirtool("rules", "check", *alerts.rule_files("mimir"), *alerts.rule_files("grafana"))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_mimir_takes_the_alertmanager_configuration_with_every_kind_of_receiver(tmp_path):
    given = section(
        receivers={"everyone": EVERYONE},
        routes=[{"receiver": "everyone", "matchers": ["severity=critical", 'cluster=~"a|b"'], "muteTimings": ["move"]}],
        muteTimings={"move": WINDOW},
    )
    (tmp_path / "config.yaml").write_text(to_yaml(alertmanager_config(given, SECRETS)))
    for name, text in templates().items():
        (tmp_path / name).write_text(text)
    verified = mimirtool("alertmanager", "verify", tmp_path / "config.yaml", *(tmp_path / name for name in templates()))
    assert verified.returncode == 0, verified.stdout + verified.stderr


def printed(tmp_path: Path, template: str, *firing: dict) -> str:
    """A template's words for some alerts."""
    common = {
        name: value for name, value in firing[0]["labels"].items() if all(one["labels"].get(name) == value for one in firing)
    }
    data = {"receiver": "r", "status": "firing", "alerts": list(firing), "commonLabels": common, "externalURL": "http://am"}
    (tmp_path / "data.json").write_text(json.dumps(data))
    rendered = mimirtool(
        "alertmanager",
        "render",
        f"--template.glob={TEMPLATE_FILE}",
        f"--template.text={template}",
        f"--template.data={tmp_path / 'data.json'}",
    )
    assert rendered.returncode == 0, rendered.stdout + rendered.stderr
    return rendered.stdout


def test_one_alert_is_its_own_headline_and_several_are_counted(tmp_path):
    assert printed(tmp_path, TITLE, LOST) == "[CRITICAL] XID 79 on gpu-node-001 (us-west / training)"
    assert printed(tmp_path, TITLE, LOST, LOST) == "[CRITICAL] 2 alerts: GpuXid on gpu-node-001 (us-west / training)"
    elsewhere = {**LOST, "labels": {**LOST["labels"], "cluster": "inference"}}
    assert printed(tmp_path, TITLE, LOST, elsewhere) == "[CRITICAL] 2 alerts: GpuXid on gpu-node-001 (us-west)"
    no_place = {**LOST, "labels": {"alertname": "RecordingRulesSilent"}}
    assert printed(tmp_path, TITLE, no_place) == "[FIRING] XID 79 on gpu-node-001"
