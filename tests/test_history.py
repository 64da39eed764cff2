"""A stack deployed by an earlier commit is previewed with the present program: an update of the checkout renames nothing.

The program of the base commit deploys the stack: a host, rule groups in a real Mimir and Loki, Grafana, and a cluster. Then the
checkout gets the present files, as after `git pull`, and the stack is previewed. Nothing may be replaced or deleted. What was
changed or added on purpose since is listed with the reason in tests/history/changes.yaml.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

import toolchain
from lab.kubernetes import Cluster
from lab.kubernetes.chart_packages import package
from tests.checkout import BASE, REPO, copy_to
from tests.e2e.conftest import Datacenter
from toolchain.upstream import extract

CHANGES = REPO / "tests/history/changes.yaml"
# What that file may list: nothing of a user is ever replaced or deleted. Our rule groups may go, and with them recorded series.
REVIEWED = ("update", "create", "delete", "remove")
MAY_GO = ("gpu-fleet:ruler:RuleGroup", "grafana:alerting/ruleGroup:RuleGroup", "record")
CHARTS = {
    "dcgmExporter": "dcgm-exporter",
    "alloy": "alloy",
    "nodeExporter": "node-exporter",
    "kubeStateMetrics": "kube-state-metrics",
}
NAMESPACE = "gpu-history"


def base_files() -> bytes:
    """A tar archive of the base commit."""
    return subprocess.run(["git", "archive", BASE], cwd=REPO, capture_output=True, check=True).stdout


class Upgraded(Datacenter):
    """A datacenter in a checkout of the base commit, whose files `upgrade` replaces with the present ones."""

    def __init__(self, directory: Path, cluster: Cluster) -> None:
        self.directory = directory
        with tarfile.open(fileobj=io.BytesIO(base_files())) as archive:
            self._files = [member.name for member in archive.getmembers() if not member.isdir()]
            extract(archive, directory)
        (directory / ".venv").symlink_to(REPO / ".venv")
        self.move_ports()
        charts = {key: {"chart": str(package(name, directory / "charts").relative_to(directory))} for key, name in CHARTS.items()}
        section = {"kubeconfig": str(cluster.kubeconfig), "namespace": NAMESPACE, "timeout": 120, "charts": charts}
        file = directory / "Pulumi.dev.yaml"
        stack = yaml.safe_load(file.read_text())
        stack["config"]["gpu-fleet:kubernetes"] = section
        stack["config"]["gpu-fleet:alerts"]["targets"] = ["ruler", "grafana"]
        self.stack_file = yaml.safe_dump(stack, sort_keys=False)
        file.write_text(self.stack_file)
        self.environment = {"XDG_CACHE_HOME": str(directory / "cache")}
        share_tools(directory / "cache/gpu-fleet/tools")
        self.run("lab.toolchain", "install")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        with pytest.MonkeyPatch.context() as environment:
            for name, value in self.environment.items():
                environment.setenv(name, value)
            return super().start(*arguments)

    def upgrade(self) -> None:
        for name in self._files:
            (self.directory / name).unlink()
        (self.directory / ".venv").unlink()
        for package_directory in {name.partition("/")[0] for name in self._files if "/" in name}:
            shutil.rmtree(self.directory / package_directory)  # modules that were compiled
        copy_to(self.directory)
        (self.directory / "Pulumi.dev.yaml").write_text(self.stack_file)
        self.environment = {}


def share_tools(directory: Path) -> None:
    """A cache for the toolchain of the base commit, which kept stand-ins among the programs, with the programs of today's."""
    for record in toolchain.Cache().tools.glob("*/*/record.json"):
        if json.loads(record.read_text())["how"] != "stand-in":
            link = directory / record.parent.relative_to(toolchain.Cache().tools)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(record.parent)


@dataclass(frozen=True)
class Preview:
    """`steps`: of every resource. `before`, `after`: the outputs of the stack. `shown`: what pulumi printed."""

    steps: list[dict[str, Any]]
    before: dict[str, Any]
    after: dict[str, Any]
    shown: str

    @property
    def kept(self) -> list[dict[str, Any]]:
        """The steps of resources that existed before."""
        return [step for step in self.steps if step["old"]]

    @property
    def changed(self) -> list[dict[str, Any]]:
        return [step for step in self.steps if step["op"] in REVIEWED]


@pytest.fixture(scope="module")
def preview(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Preview]:
    datacenter = Upgraded(tmp_path_factory.mktemp("history"), cluster)
    try:
        datacenter.run("lab.dev", "up")
        datacenter.upgrade()
        log = datacenter.directory / ".dev/events.json"
        run = ".venv/bin/python -m lab.standins run -- pulumi --non-interactive"
        command = f'. .dev/env && PULUMI_DEBUG_COMMANDS=1 exec {run} preview --diff --event-log "$1"'
        done = subprocess.run(
            ["sh", "-c", command, "sh", str(log)], cwd=datacenter.directory, capture_output=True, text=True, timeout=1200
        )
        assert done.returncode == 0, done.stdout + done.stderr
        events = [json.loads(line) for line in log.read_text().splitlines()]
        # Without the default providers: the engine registers them for functions that the program calls, and shows none of them.
        found = (event["resourcePreEvent"]["metadata"] for event in events if "resourcePreEvent" in event)
        steps = [step for step in found if not re.search(r"::pulumi:providers:\w+::default", step["urn"])]
        results = [event["resOutputsEvent"]["metadata"] for event in events if "resOutputsEvent" in event]
        *_, stack = [result for result in results if result["type"] == "pulumi:pulumi:Stack"]
        yield Preview(steps, stack["old"]["outputs"], stack["new"]["outputs"], done.stdout)
    finally:
        datacenter.run("lab.dev", "down")
    datacenter.has_ended()


def test_every_resource_stays_and_only_reviewed_ones_change(preview: Preview) -> None:
    types = {step["type"] for step in preview.steps}
    assert {
        "gpu-fleet:host:Host",
        "gpu-fleet:host:Bundle",
        "gpu-fleet:ruler:RuleGroup",
        "gpu-fleet:kubernetes:Manifest",
        "kubernetes:helm.sh/v3:Release",
        "grafana:oss/dashboard:Dashboard",
        "grafana:alerting/ruleGroup:RuleGroup",
    } <= types, f"the stack has to cover these: {sorted(types)}"
    others = [f"{step['op']} {step['urn']}" for step in preview.steps if step["op"] not in ("same", *REVIEWED)]
    assert not others, "an update of the checkout would do this to running stacks:\n" + "\n".join(others) + preview.shown
    renamed = [step["urn"] for step in preview.kept if step["new"] and step["old"]["urn"] != step["new"]["urn"]]
    assert not renamed, "these have another name, by an alias"
    reviewed = yaml.safe_load(CHANGES.read_text()) or []
    assert all(set(entry) == {"op", "type", "name", "why"} and entry["op"] in REVIEWED for entry in reviewed), CHANGES
    assert all(entry["type"] in MAY_GO for entry in reviewed if entry["op"] in ("delete", "remove")), CHANGES
    unexpected = [f"{step['op']} {step['urn']}" for step in preview.changed if not any(_covers(e, step) for e in reviewed)]
    assert not unexpected, (
        f"these change for whoever updates the checkout. If that is meant, add them to {CHANGES.relative_to(REPO)} with the "
        "reason, and to CHANGELOG.md:\n" + "\n".join(unexpected) + preview.shown
    )
    steps = [entry for entry in reviewed if entry["op"] != "remove"]
    stale = [entry for entry in steps if not any(_covers(entry, step) for step in preview.changed)]
    assert not stale, f"nothing of this kind changes: remove it from {CHANGES.relative_to(REPO)}"


def _covers(entry: Mapping[str, str], step: Mapping[str, Any]) -> bool:
    name = step["urn"].rpartition("::")[2]
    return (entry["op"], entry["type"]) == (step["op"], step["type"]) and fnmatchcase(name, entry["name"])


def test_outputs_keep_their_names(preview: Preview) -> None:
    assert preview.before
    assert _keys(preview.before) <= _keys(preview.after), "whoever reads an output by its name gets nothing"


def _keys(value: Any, path: str = "") -> set[str]:
    """Paths of all keys of nested mappings."""
    if not isinstance(value, Mapping):
        return set()
    return {f"{path}.{key}" for key in value} | {one for key, item in value.items() for one in _keys(item, f"{path}.{key}")}


def test_dashboards_folders_and_data_sources_keep_their_uids(preview: Preview) -> None:
    grafana = [step for step in preview.kept if step["type"].startswith("grafana:")]
    uids = {step["urn"]: (_uid(step["old"]["inputs"]), _uid(step["new"]["inputs"])) for step in grafana if step["new"]}
    assert sum(bool(old) for old, _ in uids.values()) > 9, "nine dashboards, their folder and the data sources"
    assert not {urn: pair for urn, pair in uids.items() if pair[0] != pair[1]}, "links and bookmarks break"


def _uid(inputs: Mapping[str, Any]) -> str | None:
    if "configJson" in inputs:
        uid: str = json.loads(inputs["configJson"])["uid"]
        return uid
    return inputs.get("uid")


def test_alerts_recorded_series_and_labels_keep_their_names(preview: Preview) -> None:
    groups = [step for step in preview.steps if step["type"] == "gpu-fleet:ruler:RuleGroup"]
    old = {name for step in groups if step["old"] for name in _names(step["old"]["inputs"]["rules"])}
    new = {name for step in groups if step["new"] for name in _names(step["new"]["inputs"]["rules"])}
    removed = {f"{entry['type']} {entry['name']}" for entry in yaml.safe_load(CHANGES.read_text()) if entry["op"] == "remove"}
    assert removed <= old - new, f"these are there: {sorted(removed - (old - new))}"
    assert {"alert GpuTemperatureHigh", "record gpu:utilization:ratio", "label severity"} <= old, sorted(old)
    assert old <= new | removed, f"silences, routes and dashboards of users name these: {sorted(old - new)}"


def _names(rules: str) -> Iterator[str]:
    group = yaml.load(rules, yaml.CSafeLoader)
    for rule in group["rules"] if isinstance(group, dict) else group:
        yield from (f"{kind} {rule[kind]}" for kind in ("alert", "record") if kind in rule)
        yield from (f"label {name}" for name in rule.get("labels") or ())
