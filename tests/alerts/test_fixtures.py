"""All rules over the real metrics of each exporter, for an hour: a healthy host fires no alert, a faulty one the right ones."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

import alerts
from alerts.vocabulary import SERIES
from gpu_fleet import toolchain

FIXTURES = Path(__file__).parents[1] / "fixtures" / "metrics"
SAMPLES = 240  # an hour at one scrape per 15 s
HEALTHY = (
    "dcgm-4.8",
    "dcgm-4.8-v100",
    "dcgm-4.9",
    "nvidia_gpu_exporter-exec",
    "nvidia_gpu_exporter-exec-v100",
    "nvidia_gpu_exporter-nvml",
    "textfile-nvidia",
    "textfile-amd",
    "amd-device-metrics-exporter",
    "amd-device-metrics-exporter-mi210",
)
FAULTY = ("dcgm-4.8-faulty", "dcgm-4.9-faulty", "nvidia_gpu_exporter-exec-faulty", "nvidia_gpu_exporter-nvml-faulty")
# What the faulty machine of the lab has: lost memory, a failed and a pending remap, heat, a power brake, a recovery action.
OF_EVERY_EXPORTER = {
    "GpuEccUncorrected",
    "GpuPowerBrake",
    "GpuRecoveryActionNeeded",
    "GpuRowRemapFailed",
    "GpuRowRemapPending",
    "GpuTemperatureHigh",
    "GpuThermalSlowdown",
}


def series(fixture: str) -> list[dict[str, str]]:
    """A /metrics body as promtool's input, of a host in a cluster of its own: each value stays the same, except that timestamps
    advance."""
    mode = "dcgm-exporter" if fixture.startswith(("dcgm", "amd")) else fixture.partition("-")[0]
    host, given = f'datacenter="us-west", cluster="{fixture}", instance="gpu-node-001", exporter_mode="{mode}"', []
    for line in (FIXTURES / f"{fixture}.prom").read_text().splitlines():
        sample = re.fullmatch(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", line)
        if sample is None or line.startswith("#"):
            continue
        name, labels, value = sample.groups()
        values = f"0+15x{SAMPLES}" if name.endswith("timestamp_seconds") and "xid" not in name else f"{value}x{SAMPLES}"
        given.append({"series": f"{name}{{{host}{', ' + labels if labels else ''}}}", "values": values})
    return given


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, set[str]], ...]:
    """By fixture, the names of the alerts, pending ones too, and of the metrics of the vocabulary, after an hour with all rules.

    One run for all: rules cost the same whether one host or each cluster's has series. Under "", what belongs to no cluster.
    """
    expressions = (
        "group by (cluster, alertname) (ALERTS)",
        'group by (cluster, word) (label_replace({__name__=~"(gpu|instance):.*"}, "word", "$1", "__name__", "(.*)"))',
    )
    test = {
        "rule_files": [str(file) for file in alerts.rule_files("mimir")],
        # A long interval, because evaluations are what is slow; short enough that a rule sees what another one recorded.
        "evaluation_interval": "4m",
        "tests": [
            {
                "interval": "15s",
                "input_series": [one for fixture in (*HEALTHY, *FAULTY) for one in series(fixture)],
                "promql_expr_test": [
                    {"expr": expression, "eval_time": "56m", "exp_samples": [{"labels": '{asked="everything"}', "value": 1}]}
                    for expression in expressions
                ],
            }
        ],
    }
    file = tmp_path_factory.mktemp("fixtures") / "test.yaml"
    file.write_text(yaml.dump(test, Dumper=yaml.CSafeDumper))
    ran = subprocess.run([toolchain.find("promtool"), "test", "rules", file], capture_output=True, text=True, check=False)
    printed = (ran.stdout + ran.stderr).split("got:")[1:]
    assert len(printed) == len(expressions), ran.stdout + ran.stderr
    return tuple(by_cluster(answer.partition("expr:")[0]) for answer in printed)


def by_cluster(answer: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {name: set() for name in ("", *HEALTHY, *FAULTY)}
    for labels in re.findall(r"\{([^}]*)\}", answer):
        label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        found[label.get("cluster", "")].add(label.get("alertname") or label["word"])
    return found


@pytest.mark.parametrize("fixture", HEALTHY)
def test_a_healthy_host_fires_no_alert_and_has_every_metric_that_its_exporter_can_have(fixture, answers):
    alerting, recorded = (answer[fixture] for answer in answers)
    assert alerting | answers[0][""] == set()
    given = {one["series"].partition("{")[0] for one in series(fixture)}
    possible = {word.name for word in SERIES.values() if any(source.metrics[0] in given for source in word.sources)}
    assert possible - recorded <= {"gpu:partitions:info", "gpu:mig_mode:bool"}, "GPUs in partitions or MIG mode alone have them"


@pytest.mark.parametrize("fixture", FAULTY)
def test_a_faulty_host_alerts_whichever_exporter_it_has(fixture, answers):
    """Where the exporter reports the XID, the lost memory and its consequences belong to the incident of that GPU."""
    alerting = answers[0][fixture]
    of_the_incident = {"GpuEccUncorrected", "GpuRecoveryActionNeeded", "GpuRowRemapFailed", "GpuRowRemapPending"}
    assert OF_EVERY_EXPORTER - alerting == (of_the_incident if "GpuXid" in alerting else set())
