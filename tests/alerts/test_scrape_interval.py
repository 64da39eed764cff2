"""The rules for hosts that are scraped less often than every 15 s: promtool's cases once more, with their samples of each minute.

Cases whose samples are a minute apart need nothing: they are such hosts.
"""

from __future__ import annotations

import copy
import itertools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import alerts
from alerts.customization import Customization, for_interval
from alerts.model import rule_file
from gpu_fleet import toolchain
from gpu_fleet.host.scrape_interval import ALLOWED_S, DEFAULT_S

LONGEST_S: Final = ALLOWED_S[-1]
LATER_S: Final = 2 * LONGEST_S  # a scrape and an evaluation, of which some are a minute apart
TESTS: Final = Path(alerts.__file__).parent / "tests"
SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> int:
    return sum(int(count) * SECONDS[unit] for count, unit in re.findall(r"(\d+)([smhd])", text))


def samples(values: str) -> Iterator[str]:
    """Of promtool's notation, a word each: `1+2x3`, `_x4`, `stale`."""
    for word in values.split():
        if more := re.fullmatch(r"(_|[-+]?[\d.]+)([-+][\d.]+)?x(\d+)", word):
            start, by, times = more[1], float(more[2] or 0), int(more[3])
            yield from ["_"] * times if start == "_" else (repr(float(start) + by * number) for number in range(times + 1))
        else:
            yield word


def thinned(values: str, step_s: int, phase: int, *, is_recorded: bool) -> str:
    """What a host sends that is scraped every LONGEST_S, from the sample `phase` on; before, it was seen once. What rules have
    recorded of such a host is there a step later, and stays the same from then on."""
    every, given = LONGEST_S // step_s, list(samples(values))
    found = []
    for at, _ in enumerate(given):
        newest = (at - phase - is_recorded) // every * every + phase + is_recorded
        if newest != at and not is_recorded and at:
            found.append("_")
        elif newest < 0 or given[newest] != "_":
            found.append(given[max(newest, 0)])
        else:
            found.append("stale" if "stale" in given[max(0, newest - every) : newest] and newest == at else "_")
    return " ".join(found)


def rules_for(interval_s: int, directory: Path) -> None:
    """The rule files as a stack with this interval loads them, below `directory` as they are below alerts/."""
    for backend in ("mimir", "grafana"):
        folder = directory / {"mimir": "rules", "grafana": "grafana"}[backend]
        folder.mkdir(parents=True)
        custom = Customization(scrape_interval_s=interval_s)
        for name, groups in alerts.groups_by_file(backend, custom=custom):  # type: ignore[arg-type]
            (folder / f"{name}.yaml").write_text(rule_file(groups))


def promtool(test: dict[str, Any], directory: Path) -> str:
    """Empty where it passes."""
    (directory / "tests").mkdir(exist_ok=True)
    file = directory / "tests/test.yaml"
    file.write_text(yaml.safe_dump(test))
    ran = subprocess.run([toolchain.find("promtool"), "test", "rules", file], capture_output=True, text=True, check=False)
    return "" if ran.returncode == 0 else ran.stdout + ran.stderr


def alike(case: dict[str, Any], phase: int) -> dict[str, Any]:
    """The case with its samples of each minute: what fires does so within two minutes, and what never does stays silent."""
    step_s = seconds(case["interval"])
    given = [
        {**one, "values": thinned(str(one["values"]), step_s, phase, is_recorded=":" in one["series"].partition("{")[0])}
        for one in case["input_series"]
    ]
    expected = []
    fires = {one["alertname"] for one in case.get("alert_rule_test") or () if one.get("exp_alerts")}
    for one in case.get("alert_rule_test") or ():
        name, at_s = one["alertname"], seconds(str(one["eval_time"]))
        for alert in one.get("exp_alerts") or ():
            labels = {"alertname": name, "alertstate": "firing", **alert["exp_labels"]}
            firing = "ALERTS{" + ", ".join(f'{key}="{value}"' for key, value in labels.items()) + "}"
            expression = f"count(max_over_time({firing}[{LATER_S + 1}s]))"
            answer = [{"labels": "{}", "value": 1}]
            expected.append({"expr": expression, "eval_time": f"{at_s + LATER_S}s", "exp_samples": answer})
        if name not in fires:
            firing = f'ALERTS{{alertname="{name}", alertstate="firing"}}'
            expected.append({"expr": firing, "eval_time": f"{at_s}s", "exp_samples": []})
    return {"name": case.get("name", ""), "interval": case["interval"], "input_series": given, "promql_expr_test": expected}


def more_often_than_each_minute(file: Path) -> list[dict[str, Any]]:
    cases = copy.deepcopy(yaml.safe_load(file.read_text())["tests"])
    return [case for case in cases if seconds(case["interval"]) < LONGEST_S]


FILES: Final = [file for file in sorted(TESTS.glob("*.yaml")) if more_often_than_each_minute(file)]


@pytest.fixture(scope="module")
def longest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("longest")
    rules_for(LONGEST_S, directory)
    return directory


@pytest.mark.parametrize(("file", "phase"), itertools.product(FILES, (0, 1)), ids=lambda one: getattr(one, "name", str(one)))
def test_what_fires_and_what_is_silent_is_the_same_with_a_scrape_each_minute(longest: Path, file: Path, phase: int) -> None:
    test = yaml.safe_load(file.read_text())
    test["tests"] = [alike(case, phase) for case in more_often_than_each_minute(file)]
    assert promtool(test, longest) == ""


@pytest.mark.parametrize("interval_s", ALLOWED_S)
def test_the_bandwidth_of_nvlink_is_there_at_every_interval(tmp_path: Path, interval_s: int) -> None:
    """The shortest window of counters."""
    rules_for(interval_s, tmp_path)
    here = 'datacenter="d", cluster="c", instance="a", gpu="0"'
    counter = f'node_gpu_nvlink_transmit_bytes_total{{{here}, link="0", exporter_mode="textfile"}}'
    test = {
        "rule_files": ["../rules/vocabulary.yaml"],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": f"{interval_s}s",
                "input_series": [
                    {"series": counter, "values": f"0+{1000 * interval_s}x20"},
                    {
                        "series": f'node_gpu_info{{{here}, uuid="GPU-0", model="H100", exporter_mode="textfile"}}',
                        "values": "1x20",
                    },
                ],
                "promql_expr_test": [
                    {
                        "expr": "round(sum by (gpu) (gpu:nvlink_transmit:bytes_per_second))",
                        "eval_time": f"{18 * interval_s + after_s}s",
                        "exp_samples": [{"labels": '{gpu="0"}', "value": 1000}],
                    }
                    for after_s in (0, 15, 45)
                ],
            }
        ],
    }
    assert promtool(test, tmp_path) == ""


@pytest.mark.parametrize(("interval_s", "age_s", "fires"), [(60, 150, False), (60, 180, True), (15, 150, True)])
def test_a_sample_that_is_old_because_of_the_interval_is_no_wrong_clock(
    tmp_path: Path, interval_s: int, age_s: int, fires: bool
) -> None:
    """A scrape each minute, sent 5 s later, recorded up to a minute later and read up to a minute after that: 125 s."""
    rules_for(interval_s, tmp_path)
    test = {
        "rule_files": ["../rules/host.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {
                        "series": 'host:newest_sample:timestamp_seconds{datacenter="d", cluster="c", instance="a"}',
                        "values": f"{-age_s}+60x60",
                    }
                ],
                "promql_expr_test": [
                    {
                        "expr": 'count(ALERTS{alertname="HostClockSkew", alertstate="firing"})',
                        "eval_time": "40m",
                        "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
                    }
                ],
            }
        ],
    }
    assert promtool(test, tmp_path) == ""


def test_the_rules_are_written_for_the_default():
    for backend in ("mimir", "loki", "grafana"):
        for group in alerts.rule_groups(backend):  # type: ignore[arg-type]
            assert [for_interval(rule, DEFAULT_S) for rule in group.rules] == list(group.rules)
