"""All rules over the real metrics of each exporter, for an hour: a healthy host fires no alert, a faulty one the right ones."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

import alerts
import toolchain
from alerts.vocabulary import SERIES

FIXTURES = Path(__file__).parents[1] / "fixtures" / "metrics"
HOST = 'datacenter="us-west", cluster="training", instance="gpu-node-001"'
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
    """A /metrics body as promtool's input: each value stays the same, except that timestamps advance."""
    given = []
    for line in (FIXTURES / f"{fixture}.prom").read_text().splitlines():
        sample = re.fullmatch(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", line)
        if sample is None or line.startswith("#"):
            continue
        name, labels, value = sample.groups()
        values = f"0+15x{SAMPLES}" if name.endswith("timestamp_seconds") and "xid" not in name else f"{value}x{SAMPLES}"
        given.append({"series": f"{name}{{{HOST}{', ' + labels if labels else ''}}}", "values": values})
    return given


def ask(tmp_path: Path, fixture: str) -> tuple[set[str], set[str]]:
    """Names of the alerts, pending ones too, and of the metrics of the vocabulary, after an hour with all rules."""
    expressions = (
        "group by (alertname) (ALERTS)",
        'group by (word) (label_replace({__name__=~"(gpu|instance):.*"}, "word", "$1", "__name__", "(.*)"))',
    )
    test = {
        "rule_files": [str(file) for file in alerts.rule_files("mimir")],
        # A long interval, because evaluations are what is slow; short enough that a rule sees what another one recorded.
        "evaluation_interval": "4m",
        "tests": [
            {
                "interval": "15s",
                "input_series": series(fixture),
                "promql_expr_test": [
                    {"expr": expression, "eval_time": "56m", "exp_samples": [{"labels": '{asked="everything"}', "value": 1}]}
                    for expression in expressions
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.dump(test, Dumper=yaml.CSafeDumper))
    ran = subprocess.run(
        [toolchain.find("promtool"), "test", "rules", tmp_path / "test.yaml"], capture_output=True, text=True, check=False
    )
    answers = (ran.stdout + ran.stderr).split("got:")[1:]
    assert len(answers) == len(expressions), ran.stdout + ran.stderr
    return tuple(set(re.findall(r'\{(?:alertname|word)="([^"]+)"\}', answer.partition("expr:")[0])) for answer in answers)


@pytest.mark.parametrize("fixture", HEALTHY)
def test_a_healthy_host_fires_no_alert_and_has_every_metric_that_its_exporter_can_have(fixture, tmp_path):
    alerting, recorded = ask(tmp_path, fixture)
    assert alerting == set()
    given = {one["series"].partition("{")[0] for one in series(fixture)}
    possible = {word.name for word in SERIES.values() if any(source.metrics[0] in given for source in word.sources)}
    assert possible - recorded == set()


@pytest.mark.parametrize("fixture", FAULTY)
def test_a_faulty_host_alerts_whichever_exporter_it_has(fixture, tmp_path):
    """Where the exporter reports the XID, the lost memory and its consequences belong to the incident of that GPU."""
    alerting, _ = ask(tmp_path, fixture)
    of_the_incident = {"GpuEccUncorrected", "GpuRecoveryActionNeeded", "GpuRowRemapFailed", "GpuRowRemapPending"}
    assert OF_EVERY_EXPORTER - alerting == (of_the_incident if "GpuXid" in alerting else set())
