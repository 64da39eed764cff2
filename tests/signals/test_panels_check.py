"""What the check of edited dashboards reports before anything is changed."""

from __future__ import annotations

import copy

import pytest

import dashboards
from gpu_fleet import signals
from gpu_fleet.signals import SignalErrors, check_signals
from gpu_fleet.signals.__main__ import main

PROMETHEUS = {"type": "prometheus", "uid": dashboards.MIMIR_UID}
LOKI = {"type": "loki", "uid": dashboards.LOKI_UID}
BOARD = {
    "uid": "mine",
    "title": "Mine",
    "templating": {
        "list": [{"name": "cluster", "type": "query", "datasource": PROMETHEUS, "query": "label_values(gpu:info, cluster)"}]
    },
    "panels": [
        {"title": "Power", "datasource": PROMETHEUS, "targets": [{"refId": "A", "expr": 'gpu:power:watts{cluster=~"$cluster"}'}]}
    ],
}


def problems(*boards) -> str:
    """The report about these dashboards; empty when nothing is wrong. The vocabulary defines enough metrics for them."""
    try:
        check_signals([file for file in signals.rule_files() if file.path.stem == "vocabulary"], boards)
    except SignalErrors as errors:
        return str(errors)
    return ""


def with_query(expression, source=PROMETHEUS):
    board = copy.deepcopy(BOARD)
    board["panels"][0] |= {"datasource": source, "targets": [{"refId": "B", "expr": expression}]}
    return board


def test_the_project_s_own_rules_and_dashboards_have_no_error():
    assert main() == 0


def test_a_custom_dashboard_has_no_error():
    assert problems(BOARD) == ""


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('gpu:powr:watts{cluster=~"$cluster"}', "no exporter and no rule gives the metric gpu:powr:watts"),
        ('gpu:power:watts{clustr=~"$cluster"}', "gpu:power:watts has no label 'clustr'"),
        ("sum by (podd) (gpu:power:watts)", "`sum by` names the label 'podd'"),
        ("sum by (pod) (gpu:power:watts", "the query does not parse: unclosed left parenthesis"),
        ('gpu:power:watts{cluster=~"$clutser"}', "there is no variable $clutser\n"),
        ("", "has no query"),
    ],
)
def test_a_panel_is_named_with_its_query_and_what_is_wrong(expression, expected):
    text = problems(with_query(expression))
    assert 'dashboard mine ("Mine"), panel "Power", query B: ' in text
    assert expected in text
    assert not expression or f"query:   {expression}" in text or "variable" in expected


def test_a_panel_of_logs_is_read_as_logql():
    assert problems(with_query('{job="kernel", cluster=~"$cluster"} |= "Xid" | xid != "13"', LOKI)) == ""
    assert "no logs have job='kernl'" in problems(with_query('{job="kernl"}', LOKI))


@pytest.mark.parametrize(
    "expression",
    [
        "rate(node_network_receive_bytes_total[$__rate_interval])",
        "max_over_time(gpu:power:watts[${__range}])",
        "increase(gpu:energy:joules_total[$__interval]) / 3.6e6 * $price",
        'gpu:power:watts{cluster=~"${cluster:regex}"}',
        "topk($limit, gpu:power:watts)",
    ],
)
def test_grafana_s_variables_are_filled_in(expression):
    board = with_query(expression)
    board["templating"]["list"] += [
        {"name": "price", "type": "textbox", "query": "0.25"},
        {"name": "limit", "type": "custom", "query": "10,20", "current": {"value": "10"}},
    ]
    assert problems(board) == ""


def test_variables_and_annotations_are_read_too():
    board = copy.deepcopy(BOARD)
    board["templating"]["list"][0]["query"] = "label_values(gpu:info, clutser)"
    board["annotations"] = {"list": [{"name": "Alerts", "datasource": PROMETHEUS, "expr": "ALERT{alertstate='firing'}"}]}
    text = problems(board)
    assert "variable $cluster: uses the label 'clutser', which no series has there\n   fix:      did you mean 'cluster'?" in text
    assert 'annotation "Alerts": no exporter and no rule gives the metric ALERT\n' in text


def test_a_panel_in_a_folded_row_is_read_too():
    row = {"type": "row", "title": "More", "panels": with_query("nothing_known")["panels"]}
    assert "gives the metric nothing_known" in problems({**BOARD, "panels": [row]})


def test_two_dashboards_with_the_same_uid_are_reported():
    assert "dashboard mine (\"Other\"): the dashboard 'Mine' has this uid too" in problems(BOARD, {**BOARD, "title": "Other"})
    assert "has no uid" in problems({**BOARD, "uid": ""})
