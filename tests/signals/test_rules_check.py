"""What the check of edited alerts reports before anything is changed: every error at once, with its place and a fix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_fleet import signals
from gpu_fleet.signals import SignalErrors, check_signals
from gpu_fleet.signals.rules import RuleFile

RULE = """\
groups:
  - name: mine
    interval: 30s
    rules:
      - alert: GpuTooHot
        expr: {expr}
        for: 5m
        labels: {{severity: warning}}
        annotations:
          summary: "{summary}"
          action: Look at it.
          runbook: https://wiki.example.com/hot
"""
# Enough to know the vocabulary and to have a neighbour.
FILES = [file for file in signals.rule_files() if file.path.stem == "vocabulary"]
GOOD = {"expr": "gpu:temperature:celsius > 90", "summary": "GPU {{ $labels.gpu }} on {{ $labels.instance }} is hot"}


def problems(tmp_path: Path, text: str, backend: str = "mimir", language: str = "promql", metrics: Path | None = None) -> str:
    """The report about a rule file of this text beside the project's own; empty when nothing is wrong."""
    file = tmp_path / "alerts" / "rules" / "mine.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    try:
        check_signals([*FILES, RuleFile(file, tmp_path, backend, language)], [], metrics=metrics)
    except SignalErrors as errors:
        return str(errors)
    return ""


def rule(**changed: str) -> str:
    return RULE.format(**{**GOOD, **changed})


def test_the_project_s_own_rules_have_no_error():
    check_signals(signals.rule_files(), [])


def test_a_custom_rule_over_the_vocabulary_has_no_error(tmp_path):
    assert problems(tmp_path, rule()) == ""


def test_every_error_is_reported_at_once_and_nothing_is_changed(tmp_path):
    text = problems(tmp_path, rule(expr="gpu:temprature:celsius{gpuu='3'} > 90") + rule(expr="sum(").partition("rules:\n")[2])
    assert text.startswith("3 errors in rules and dashboards; nothing was changed.")
    assert (
        "alerts/rules/mine.yaml, alert GpuTooHot (severity warning): no exporter and no rule gives the metric gpu:tempr" in text
    )
    assert "did you mean gpu:temperature:celsius?" in text
    assert "add it to metrics.txt of gpu-fleet:custom" in text
    assert "does not parse: unclosed left parenthesis" in text


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("DCGM_FI_DEV_GPU_TEM > 90", "no exporter and no rule gives the metric DCGM_FI_DEV_GPU_TEM"),
        (
            "gpu:temperature:celsius{gppu='3'} > 90",
            "gpu:temperature:celsius has no label 'gppu'\n   fix:      did you mean 'gpu'?",
        ),
        ("max by (instance, gppu) (gpu:temperature:celsius) > 90", "`max by` names the label 'gppu', which no series has there"),
        ("sum by (pod) (sum by (instance, gpu) (gpu:power:watts)) > 9", "`sum by` names the label 'pod'"),
        (
            "gpu:power:watts / on (instance, uid) gpu:power_limit:watts",
            "`/ on` names the label 'uid', which the left side never has",
        ),
        (
            "gpu:power:watts * on (instance, gpu) group_left (rack) gpu:info",
            "takes the label 'rack' from the other side, which never has it",
        ),
        ('label_replace(gpu:info, "x", "$1", "hostnme", "(.*)")', "label_replace reads the label 'hostnme'"),
        ('{__name__=~"DCGM_FI_DEV_GPU_TEMP|DCGM_FI_DEV_GPU_TMP"} > 90', "gives the metric DCGM_FI_DEV_GPU_TMP"),
        ('{__name__=~"gpu_heat_.*"} > 90', "no known metric matches 'gpu_heat_.*'"),
        ("rate(gpu:temperature:celsius[5m]) >", "does not parse"),
        ("rate(gpu:temperature:celsius)", "does not parse: expected type matrix"),
    ],
)
def test_a_query_that_can_never_return_anything_is_an_error(tmp_path, expression, expected):
    assert expected in problems(tmp_path, rule(expr=json.dumps(expression)))


@pytest.mark.parametrize(
    "expression",
    [
        "DCGM_FI_DEV_GPU_TEMP_CELSIUS > 90",
        "DCGM_FI_DEV_GPU_TEMP{Hostname!=''} > 90",
        "max by (pod, namespace) (gpu:utilization:ratio) < 0.1",
        "node_infiniband_state_id != 4",
        "time() - node_boot_time_seconds < 600",
        "gpu:power:watts * on (instance, gpu) group_left (driver_version) gpu:info",
        "absent(up{job='alloy', instance='gpu-node-001'})",
        "count without (gpu) (gpu:info) > 8",
        "kube_node_status_allocatable{resource='nvidia_com_gpu'} == 0",
        "sum by (alertname) (ALERTS{alertstate='firing'}) > 5",
        "vector(1)",
    ],
)
def test_a_query_of_known_metrics_has_no_error(tmp_path, expression):
    assert problems(tmp_path, rule(expr=f'"{expression}"', summary="something")) == ""


def test_a_recorded_series_has_the_labels_that_its_query_leaves(tmp_path):
    own = """\
      - record: rack:power:watts
        expr: sum by (datacenter) (gpu:power:watts)
"""
    assert problems(tmp_path, rule(expr="rack:power:watts > 1", summary="too much in {{ $labels.datacenter }}") + own) == ""
    assert "rack:power:watts has no label 'gpu'" in problems(
        tmp_path, rule(expr="\"rack:power:watts{gpu='1'} > 1\"", summary="x") + own
    )


def test_a_metric_of_a_stack_s_own_exporter_is_known_once_it_is_listed(tmp_path):
    text = (
        rule(expr="my_queue_length{queue='a'} > 9", summary="{{ $labels.queue }}")
        .replace("expr: ", 'expr: "', 1)
        .replace("> 9", '> 9"')
    )
    assert "gives the metric my_queue_length" in problems(tmp_path, text)
    metrics = tmp_path / "custom" / "metrics.txt"
    metrics.parent.mkdir()
    metrics.write_text("my_queue_length {queue}\n")
    assert problems(tmp_path, text, metrics=metrics) == ""
    metrics.write_text("my metric {a}\n")
    assert "custom/metrics.txt, line 1: 'my metric {a}'" in problems(tmp_path, text, metrics=metrics)


@pytest.mark.parametrize(
    ("remove", "expected"),
    [
        ("        labels: {severity: warning}\n", "has no severity\n   expected: critical, warning or info"),
        ('          summary: "GPU {{ $labels.gpu }} on {{ $labels.instance }} is hot"\n', "has no summary"),
        ("          action: Look at it.\n", "has no action"),
        (
            "          runbook: https://wiki.example.com/hot\n",
            "has no runbook\n   fix:      add the annotation `runbook`: alerts/runbooks/",
        ),
        ("        expr: gpu:temperature:celsius > 90\n", "has no query"),
    ],
)
def test_an_alert_needs_a_severity_a_summary_an_action_a_runbook_and_a_query(tmp_path, remove, expected):
    text = rule()
    assert remove in text
    assert expected in problems(tmp_path, text.replace(remove, ""))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("severity: warning", "severity: urgent", "has the severity 'urgent'\n   expected: critical, warning or info"),
        ("https://wiki.example.com/hot", "alerts/runbooks/Nowhere.md", "its runbook alerts/runbooks/Nowhere.md does not exist"),
        ("$labels.gpu ", "$labels.gpuu ", "`summary` names the label 'gpuu', which the alert never has"),
        ("severity: warning", "severity: warning, value: '{{ $value }}'", "a label contains $value"),
        ("for: 5m", "for: 5 minutes", "`for` is '5 minutes'\n   expected: a duration like 5m"),
        ("for: 5m", "fro: 5m", "unknown key 'fro', did you mean 'for'?"),
        ("severity: warning", "severity: warning, xid: 79", "`labels` holds a value that is not text"),
        ("interval: 30s", "interval: often", "`interval` is 'often'"),
        ("name: mine", "name: gpu-usage", "a group of this name is in alerts/rules/vocabulary.yaml too"),
        ("alert: GpuTooHot", "alert: GpuTooHot\n        record: x", "is neither an alert nor a record"),
        ("rules:", "rulez:", "group 1: needs a `name` and a list `rules`"),
        ("groups:", "group:", "has no list `groups`"),
        ("groups:", "groups: [", "is not YAML"),
    ],
)
def test_a_malformed_rule_is_an_error(tmp_path, before, after, expected):
    assert expected in problems(tmp_path, rule().replace(before, after, 1))


def test_the_same_alert_twice_is_named_with_the_other_s_place(tmp_path):
    twice = rule() + rule().partition("rules:\n")[2]
    assert "the same rule with the same labels is in alerts/rules/mine.yaml already" in problems(tmp_path, twice)


def test_more_rules_than_mimir_accepts_in_a_group_are_an_error(tmp_path):
    one = rule().partition("rules:\n")[2]
    many = rule() + "".join(one.replace("GpuTooHot", f"GpuTooHot{number}") for number in range(20))
    assert "has 21 rules\n   expected: at most 20, Mimir's default" in problems(tmp_path, many)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            'sum by (instance) (count_over_time({job="kernl"}[5m])) > 0',
            "no logs have job='kernl'\n   fix:      did you mean 'kernel'?",
        ),
        ('sum by (pod) (count_over_time({job=~"docker|kernel"}[5m])) > 0', "`sum by` names the label 'pod'"),
        ('sum by (instanc) (count_over_time({job="kernel"}[5m])) > 0', "`sum by` names the label 'instanc'"),
        (
            'sum(count_over_time({job="kernel"} | xidd="79" [5m])) > 0',
            "the pipeline uses the label 'xidd', which no line has at that point",
        ),
        ('sum(count_over_time({job="kernel"} | jsonn [5m])) > 0', "the stage beginning with '| jsonn"),
        ('sum(count_over_time({job="kernel"} |= "x" [5m]) > 0', "does not parse: unclosed left parenthesis"),
        ("vector(1)", "selects no stream"),
    ],
)
def test_a_log_query_that_can_never_return_anything_is_an_error(tmp_path, query, expected):
    assert expected in problems(tmp_path, rule(expr=f"'{query}'", summary="x"), "loki", "logql")


@pytest.mark.parametrize(
    "query",
    [
        'sum by (instance) (count_over_time({job="kernel", xid=~".+"} |= "NVRM" != `pid` [5m])) > 0',
        'sum by (instance, why) (count_over_time({job="kernel"} | regexp `(?P<why>reset|reboot)` | why != "" [5m])) > 0',
        'sum by (level) (rate({job="docker", container=~"train.*"} | json | level="error" and status >= 500 [5m])) > 1',
        'quantile_over_time(0.99, {job="docker"} | logfmt | unwrap duration(took) [5m]) > 2',
        'sum(bytes_rate({job="docker"}[5m])) > 1e6',
    ],
)
def test_a_log_query_is_read_with_its_pipeline(tmp_path, query):
    assert problems(tmp_path, rule(expr=f"'{query}'", summary="x"), "loki", "logql") == ""


def test_a_table_changed_without_regenerating_its_rules_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("alerts.xid_rules.INTERVAL", "20s")
    assert "alerts/rules/xid.yaml: does not match alerts/xid.csv\n   fix:      run .venv/bin/python -m alerts.gen" in problems(
        tmp_path, rule()
    )
