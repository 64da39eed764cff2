"""Where an alert pages about a GPU or a link, no work may start: readiness fails in every case of the rules in which it fires."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

import alerts
from alerts.readiness import cluster_table, table
from alerts.vocabulary import SERIES
from gpu_fleet import toolchain
from gpu_fleet.on_host.ready import FAIL, WARN, Facts, evaluated
from gpu_fleet.on_host.samples import Sample, parse
from tests.alerts.test_cases import seconds
from tests.alerts.test_rules import RULE_TESTS

SCOPES = {"gpu", "fabric"}
RULES = [rule for group in alerts.rule_groups("mimir") for rule in group.rules if "alert" in rule]
PAGES = sorted(
    {rule["alert"] for rule in RULES if rule["labels"]["severity"] == "critical" and rule["labels"]["scope"] in SCOPES}
)
# What a host alone cannot know.
NOT_ON_HOSTS = {
    "FabricServiceDown": "only over time: a service that never ran is none that the host needs",
    "HostInfinibandPortDown": "only over time: a port that never was up has no cable",
    "HostInfinibandPortFlapping": "only over time",
    "HostInfinibandPortFailing": "only over time",
    "HostInfinibandPortDegraded": "only over time",
}
# Cases, by the beginning of their names.
NOT_THESE = {
    "an incident outlasts a reboot while its GPU is missing": "the driver check of the last `up` has counted the GPU",
    "a host that reports but lists no GPU has none": "unknown: none is listed",
    "nodes of Kubernetes, where DCGM's health watch decides": "hosts count their links",
}


class Firing(NamedTuple):
    """A moment of a case in which an alert of PAGES fires. `instances`: for which hosts."""

    alert: str
    at: str
    instances: tuple[str, ...]


def firing(case: Mapping[str, Any]) -> Iterator[Firing]:
    for check in case.get("alert_rule_test", ()):
        found = [one["exp_labels"] for one in check.get("exp_alerts") or ()]
        instances = {one["instance"] for one in found if one["severity"] == "critical" and "instance" in one}
        if check["alertname"] in PAGES and instances:
            yield Firing(check["alertname"], check["eval_time"], tuple(sorted(instances)))


GIVEN = {file.name: yaml.load(file.read_text(), Loader=yaml.CSafeLoader) for file in RULE_TESTS}
CASES = [(file, case, one) for file, content in GIVEN.items() for case in content["tests"] for one in firing(case)]
# Where each alert fires soonest: a case of days takes long.
SOONEST = {one.alert: (file, one.at, case) for file, case, one in sorted(CASES, key=lambda found: -seconds(found[2].at))}


def test_what_a_host_cannot_know_is_an_alert() -> None:
    assert set(NOT_ON_HOSTS) <= set(PAGES)
    assert set(PAGES) - set(SOONEST) == {"HostInfinibandPortDegraded"}, "its severity is tested by an expression"


@pytest.mark.parametrize("file", sorted({file for file, _, _ in SOONEST.values()}))
def test_a_node_fails_where_an_alert_pages_about_its_gpus_or_links(tmp_path: Path, file: str) -> None:
    fails = {}
    for place in (("d", "c"), ("us-west", "training")):
        signals = json.loads(cluster_table(*place, 15))["signals"]
        fails[place] = "\nor\n".join(f"group by (instance) ({one['query']})" for one in signals if one["state"] == FAIL)
    tests = [
        {
            **{key: value for key, value in case.items() if key in ("interval", "input_series", "name")},
            "promql_expr_test": [
                {
                    "expr": f'ALERTS{{alertname="{alert}", severity="critical", alertstate="firing"}}\n'
                    f"unless on (instance)\n({fails['d', 'c']}\nor\n{fails['us-west', 'training']})",
                    "eval_time": at,
                    "exp_samples": [],
                }
            ],
        }
        for alert, (of_file, at, case) in SOONEST.items()
        if of_file == file
    ]
    given = {**GIVEN[file], "rule_files": [str(one) for one in alerts.rule_files("mimir")], "tests": tests}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(given))
    command = [toolchain.find("promtool"), "test", "rules", tmp_path / "test.yaml"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_pcie_error_that_the_driver_could_not_handle_warns() -> None:
    said = Sample("gpu_fleet_pcie_error_last_timestamp_seconds", {"pci": "0000:03:00"}, 600)
    on_host = evaluated(Facts(0, [Sample("node_gpu_info", {"gpu": "0"}, 1)], [said]), json.loads(table()))
    assert [(one.state, one.code) for one in on_host] == [(WARN, "pcie_error")]
    in_cluster = [one for one in json.loads(cluster_table("d", "c", 15))["signals"] if one["code"] == "pcie_error"]
    assert [one["state"] for one in in_cluster] == [WARN]


def value_at(values: str, step: int) -> float | None:
    """Of promtool's notation: `1+2x3`, `_x4`, `1 2 stale`."""
    found: list[float | None] = []
    for word in values.split():
        if more := re.fullmatch(r"(_|[-+0-9.e]+?|Inf|NaN)(?:([+-][0-9.e]+))?x(\d+)", word):
            start, by, times = more[1], float(more[2] or 0), int(more[3])
            if start == "_":
                found += [None] * times
            else:
                found += [float(start) + by * number for number in range(times + 1)]
        else:
            found.append(None if word in ("_", "stale") else float(word))
    known = [value for value in found[max(0, step - 20) : step + 1] if value is not None]
    return known[-1] if step - 20 < len(found) and known else None


def facts(case: Mapping[str, Any], at_s: int, instance: str) -> Facts:
    """What exporters and Alloy of the host say then."""
    step = at_s // seconds(case["interval"])
    expected, samples, kernel = 0, [], []
    for one in case["input_series"]:
        [series] = parse(f"{one['series'].replace(', ', ',')} 0", r"[\w:]+")
        value = value_at(str(one["values"]), step)
        if value is None or series.labels.get("instance") != instance:
            continue
        if series.name == "inventory:gpus_expected:count":
            expected = int(value)
        elif series.name == "instance:gpus:count":
            samples += [Sample("node_gpu_info", {"gpu": str(gpu)}, 1) for gpu in range(int(value))]
        elif re.fullmatch(r"gpu_fleet_\w+_last_timestamp_seconds", series.name):
            kernel.append(Sample(series.name, series.labels, value))
        else:
            # What the rules record is what the first of the exporters says; all say which GPU it is of.
            name = SERIES[series.name].sources[0].metrics[0] if series.name in SERIES else series.name
            samples.append(Sample(name, series.labels, value))
            if "model" in series.labels:
                samples.append(Sample("node_gpu_info", series.labels, 1))
    return Facts(expected, samples, kernel)


@pytest.mark.parametrize("alert", [alert for alert in PAGES if alert not in NOT_ON_HOSTS])
def test_a_host_fails_where_an_alert_pages_about_its_gpus_or_links(alert: str) -> None:
    known = json.loads(table())
    checked = [
        (f"{file}: {case['name']} at {one.at}, {instance}", facts(case, seconds(one.at), instance))
        for file, case, one in CASES
        for instance in one.instances
        if one.alert == alert and not case["name"].startswith(tuple(NOT_THESE))
    ]
    assert checked and [name for name, found in checked if FAIL not in {one.state for one in evaluated(found, known)}] == []
