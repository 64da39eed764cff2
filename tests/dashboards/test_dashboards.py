"""Every dashboard: complete panels, fixed uids, queries that parse and that name only what is collected."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

import alerts
import dashboards
from alerts.inventory import GPUS, HOST
from alerts.vocabulary import LABELS, SERIES
from lab import toolchain

ROOT = Path(dashboards.__file__).parents[1]
BOARDS = dashboards.all_dashboards()
PANELS = [
    pytest.param(board, panel, id=f"{uid}-{panel['title']}")
    for uid, board in BOARDS.items()
    for panel in board["panels"]
    if panel["type"] != "row"
]
RECORDED = {rule["record"] for group in alerts.rule_groups("mimir") for rule in group.rules if "record" in rule} | {HOST, GPUS}
WORDS = {"by", "on", "without", "ignoring", "group_left", "group_right", "bool", "offset", "and", "or", "unless", "le"}


def targets(panel):
    return panel.get("targets", [])


def of_data_source(uid):
    panels = [param.values[1] for param in PANELS]
    return [(panel, target) for panel in panels for target in targets(panel) if panel["datasource"]["uid"] == uid]


def filled_in(expression: str) -> str:
    """The query as Grafana sends it."""
    return re.sub(r"\$(?!__)\w+", ".*", re.sub(r"\$__(rate_interval|interval|range)", "5m", expression))


def metric_names(expression: str) -> set[str]:
    """What a PromQL expression asks for: identifiers that are no function, keyword, label or string."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\{[^}]*\}", "{}", bare)
    bare = re.sub(r"\b(by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)", "", bare)
    bare = re.sub(r"\[[^\]]*\]", "", bare)
    return {name for name in re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?!\s*\()\b(?!\()", bare) if name not in WORDS}


def kept_of_alloy() -> re.Pattern[str]:
    """Alloy's own metrics that are sent, as its configuration lists them."""
    text = (ROOT / "components/host/rootfs/etc/alloy/collect_agent.alloy").read_text()
    listed = re.search(r"string\.join\(\[(.*?)\]", text, re.DOTALL)
    assert listed is not None
    return re.compile("|".join(f"(?:{part})" for part in re.findall(r'"([^"]+)"', listed[1])))


@pytest.fixture(scope="module")
def node_exporter_metrics() -> set[str]:
    """What the real node_exporter gives on this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [toolchain.find("node_exporter"), f"--web.listen-address=127.0.0.1:{port}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            return set(re.findall(r"^([a-z_]\w*)", body_of(f"http://127.0.0.1:{port}/metrics"), re.MULTILINE))
        finally:
            process.terminate()


def body_of(url: str) -> str:
    """Of a server that is about to start."""
    for _ in range(100):
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.read().decode()
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{url} did not answer within 10 s")


def test_uids_are_fixed():
    assert {uid.removeprefix("gpu-fleet-") for uid in BOARDS} >= {"overview", "host"}
    assert all(re.fullmatch(r"gpu-fleet-[a-z-]{2,30}", uid) for uid in BOARDS)
    assert all(board["uid"] == uid for uid, board in BOARDS.items())


def test_the_same_code_gives_the_same_json():
    assert json.dumps(dashboards.all_dashboards(), sort_keys=True) == json.dumps(BOARDS, sort_keys=True)


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_a_dashboard_can_be_diffed_and_found(board):
    assert "id" not in board or board["id"] is None, "the number is Grafana's own, and different everywhere"
    assert "version" not in board or board["version"] in (None, 0)
    assert board["description"]
    assert board["tags"] == ["gpu-fleet"], "the links between dashboards go by this tag"
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    titles = [panel["title"] for panel in board["panels"]]
    assert len(set(titles)) == len(titles), "two panels of one name cannot be told apart in a diff"


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_a_variable_narrows_the_next_and_all_means_all(board):
    variables = board["templating"]["list"]
    for variable in variables:
        assert variable["datasource"]["uid"] == dashboards.MIMIR_UID
        assert variable["includeAll"]
        assert variable["allValue"] == ".*", "a series without the label belongs to all, too"
    used = set(re.findall(r"\$(datacenter|cluster|instance|gpu|exporter_mode)\b", json.dumps(board["panels"])))
    assert used <= {variable["name"] for variable in variables}


@pytest.mark.parametrize(("board", "panel"), PANELS)
def test_a_panel_says_what_it_shows(board, panel):
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"]["uid"] in (dashboards.MIMIR_UID, dashboards.LOKI_UID)
    assert targets(panel), "a panel without a query is empty"
    assert panel["gridPos"]["w"] + panel["gridPos"]["x"] <= 24


@pytest.mark.parametrize(("board", "panel"), [param for param in PANELS if param.values[1]["type"] == "timeseries"])
def test_a_line_has_a_name_and_a_value_beside_its_colour(board, panel):
    assert panel["options"]["legend"]["displayMode"] == "table"
    assert all(target["legendFormat"] for target in targets(panel))


def test_every_promql_expression_parses(tmp_path):
    rules = [
        {"record": f"panel:{number}", "expr": filled_in(target["expr"])}
        for number, (_, target) in enumerate(of_data_source(dashboards.MIMIR_UID))
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    checked = subprocess.run([toolchain.find("promtool"), "check", "rules", file], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_metric_of_a_panel_is_recorded_or_collected(node_exporter_metrics):
    alloy = kept_of_alloy()
    unknown = {
        (panel["title"], name)
        for panel, target in of_data_source(dashboards.MIMIR_UID)
        for name in metric_names(filled_in(target["expr"]))
        if name not in RECORDED | {"ALERTS"} | node_exporter_metrics and not alloy.fullmatch(name)
    }
    assert unknown == set()


def test_no_panel_asks_one_exporter_only():
    asked = {name for _, target in of_data_source(dashboards.MIMIR_UID) for name in metric_names(filled_in(target["expr"]))}
    assert not {name for name in asked if name.startswith(("DCGM_", "nvidia_smi_", "node_gpu_"))}


def test_a_legend_names_only_labels_that_the_query_keeps():
    known = {*LABELS, *(label for series in SERIES.values() for label in series.extra_labels)}
    for panel, target in of_data_source(dashboards.MIMIR_UID):
        for label in re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")):
            grouped = re.match(r"[^(]*\w+ by \(([^)]*)\)", target["expr"].removeprefix("topk(10, "))
            if grouped:
                assert label in grouped[1].split(", "), f"{panel['title']}: {label}"
            else:
                assert label in known | {"mountpoint", "device"}, f"{panel['title']}: {label}"


def test_rules_ask_alloy_only_for_what_it_sends():
    alloy = kept_of_alloy()
    asked = {
        name
        for file in ("pipeline", "xid-events")
        for group in yaml.safe_load((ROOT / f"alerts/rules/{file}.yaml").read_text())["groups"]
        for rule in group["rules"]
        for name in re.findall(r"\b(?:prometheus_remote|loki_write|alloy|process|gpu_fleet)_\w+", rule["expr"])
    }
    assert {name for name in asked if not alloy.fullmatch(name)} == set(), "such an alert would never fire"
