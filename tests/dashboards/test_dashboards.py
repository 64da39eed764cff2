"""Every dashboard: complete panels, fixed uids, links that lead somewhere, queries only of what is sent.

Whether its queries parse and name known metrics, the preview checks (tests/signals); what they return, test_real_data.py.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from grafana_foundation_sdk.builders import text

import dashboards
from alerts import rule_groups
from bench import panels as reading
from dashboards import runbooks
from dashboards.layout import SCHEMA_VERSION, Row, all_panels, build

ROOT = Path(dashboards.__file__).parents[1]
BOARDS = dashboards.all_dashboards(dashboards.Price(2.5, "USD"))
PANELS = [
    pytest.param(board, panel, id=f"{uid}-{panel['title']}")
    for uid, board in BOARDS.items()
    for panel in all_panels(board)
    if panel["type"] not in ("row", "text")
]
METRICS, LOGS = "${datasource}", "${logs_datasource}"
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
    """The metrics of a PromQL expression: identifiers that are no function, keyword, label or string."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\{[^}]*\}", "{}", bare)
    bare = re.sub(r"\b(by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)", "", bare)
    bare = re.sub(r"\[[^\]]*\]", "", bare)
    return {name for name in re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?!\s*\()\b(?!\()", bare) if name not in WORDS}


def test_uids_are_fixed():
    names = "overview cluster host gpu xid incident workloads jobs slurm inference capacity pipeline runbooks"
    assert {uid.removeprefix("gpu-fleet-") for uid in BOARDS} == set(names.split()), "bookmarks and links name them"
    assert all(re.fullmatch(r"gpu-fleet-[a-z-]{2,30}", uid) for uid in BOARDS)
    assert all(board["uid"] == uid for uid, board in BOARDS.items())


def test_the_same_code_generates_the_same_json():
    again = dashboards.all_dashboards(dashboards.Price(2.5, "USD"))
    assert json.dumps(again, sort_keys=True) == json.dumps(BOARDS, sort_keys=True)


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_a_dashboard_can_be_diffed_and_found(board):
    assert "id" not in board or board["id"] is None, "the number is Grafana's own, and different everywhere"
    assert "version" not in board or board["version"] in (None, 0)
    assert board["schemaVersion"] == SCHEMA_VERSION
    assert board["description"]
    assert board["tags"] == ["gpu-fleet"], "the links between dashboards go by this tag"
    numbers = [panel["id"] for panel in all_panels(board)]
    assert len(set(numbers)) == len(numbers)
    titles = [panel["title"] for panel in all_panels(board)]
    assert len(set(titles)) == len(titles), "two panels with the same title cannot be distinguished in a diff"


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_a_variable_narrows_the_next_and_all_means_all(board):
    variables = [variable for variable in board["templating"]["list"] if variable["type"] == "query"]
    for variable in variables:
        assert variable["datasource"]["uid"] == METRICS
        if variable["includeAll"]:
            # A series without the label belongs to all, too; one without a datacenter is not ours.
            assert variable["allValue"] == (".+" if variable["name"] == "datacenter" else ".*")
        else:
            assert variable["name"] == "instance", "only a dashboard about one host opens with one"
    used = set(re.findall(r"\$(datacenter|cluster|instance|gpu|exporter_mode|namespace)\b", json.dumps(board["panels"])))
    assert used == {variable["name"] for variable in variables}


def test_every_runbook_is_a_panel_and_its_link_opens_it():
    board = BOARDS["gpu-fleet-runbooks"]
    assert not board["templating"]["list"], "Grafana would replace what looks like a variable in the shell commands"
    files = sorted((ROOT / "alerts/runbooks").glob("*.md"))
    for file, panel in zip(files, board["panels"], strict=True):
        assert (panel["type"], panel["title"]) == ("text", file.stem)
        shell = [re.findall(r"(?ms)^```sh\n.*?^```$", text) for text in (panel["options"]["content"], file.read_text())]
        assert shell[0] == shell[1]
        assert dashboards.runbook_paths()[file.stem] == f"/d/gpu-fleet-runbooks?orgId=1&viewPanel={panel['id']}"


def test_a_link_in_a_runbook_opens_a_panel_or_is_the_path_of_a_page():
    panels = {panel["title"]: panel for panel in BOARDS["gpu-fleet-runbooks"]["panels"]}
    for panel in panels.values():
        for link in re.findall(r"\]\(([^)]*)\)", panel["options"]["content"]):
            assert re.fullmatch(r"\?orgId=1&viewPanel=\d+|https://\S+", link), f"{panel['title']}: {link} is no page of Grafana"
    other = f"[GpuExporterDown](?orgId=1&viewPanel={panels['GpuExporterDown']['id']})"
    assert other in panels["GpuExporterFailing"]["options"]["content"]
    assert "(overrides (docs/overrides.md))" in panels["GpuMemoryHot"]["options"]["content"]


def test_a_link_leads_to_the_same_runbook_and_panel_after_something_was_added_before_them(tmp_path, monkeypatch):
    before = dashboards.runbook_paths()
    shutil.copytree(ROOT / "alerts/runbooks", tmp_path / "runbooks")
    (tmp_path / "runbooks/AaaFirst.md").write_text("# AaaFirst\n\nNew.\n")
    monkeypatch.setattr(runbooks, "_FILES", tmp_path / "runbooks")
    after = dashboards.runbook_paths()
    assert {name: after[name] for name in before} == before and len(after) == len(before) + 1
    assert len(set(after.values())) == len(after)

    def ids(*titles: str) -> dict[str, int]:
        row = Row("Row", [text.Panel().title(title) for title in titles])
        model = build("x", "X", "", variables=(), rows=[row])
        return {panel["title"]: panel["id"] for panel in all_panels(model)}

    assert ids("Heat", "Power").items() <= ids("New", "Heat", "Power").items()


@pytest.mark.parametrize(("board", "panel"), PANELS)
def test_a_panel_says_what_it_shows(board, panel):
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"]["uid"] in (METRICS, LOGS)
    assert targets(panel), "a panel without a query is empty"
    assert panel["gridPos"]["w"] + panel["gridPos"]["x"] <= 24


@pytest.mark.parametrize(("board", "panel"), [param for param in PANELS if param.values[1]["type"] == "timeseries"])
def test_a_line_has_a_name_and_a_value_beside_its_colour(board, panel):
    assert panel["options"]["legend"]["displayMode"] == "table"
    assert all(target["legendFormat"] for target in targets(panel))


def test_no_panel_queries_one_exporter_only():
    asked = {name for _, target in of_data_source(METRICS) for name in metric_names(filled_in(target["expr"]))}
    # The collector of links runs beside every exporter. Recorded, its single links would be a third of the series of a GPU.
    links = {"node_gpu_nvlink_transmit_bytes_total", "node_gpu_nvlink_receive_bytes_total", "node_gpu_passed_through"}
    assert {name for name in asked if name.startswith(("DCGM_", "nvidia_smi_", "node_gpu_"))} == links


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_links_lead_to_existing_dashboards(board):
    linked = set(re.findall(r"/d/([\w-]+)", json.dumps(board)))
    assert linked <= set(BOARDS)


def test_without_a_price_there_are_no_panels_about_cost():
    panels = {panel["title"]: panel for panel in BOARDS["gpu-fleet-capacity"]["panels"]}
    unpriced = {panel["title"] for panel in dashboards.all_dashboards()["gpu-fleet-capacity"]["panels"]}
    assert set(panels) - unpriced == {"Costs", "Cost", "Cost of idle GPUs", "Cost by cluster"}
    assert panels["Cost"]["targets"][0]["expr"].endswith("* 2.5")
    assert panels["Cost"]["fieldConfig"]["defaults"]["unit"] == "currency:USD "
    assert "2.5 USD per GPU-hour" in panels["Cost"]["description"]


# Of the sums of clusters and namespaces, of hosts, of Mimir itself, and of what is rare: alerts, and GPUs in a bad state.
FEW_SERIES = re.compile(
    r"(cluster|cluster_exporter_mode|namespace|instance|inventory):|ALERTS|cortex_|gpu:\w+_(required|failing):"
)


@pytest.mark.parametrize("uid", ["overview", "cluster", "capacity", "xid", "pipeline"])
def test_a_month_of_a_large_fleet_reads_no_series_of_every_gpu(uid):
    """The other dashboards show a host or the pods of a namespace."""
    board = dashboards.all_dashboards()[dashboards.uid(uid)]
    for panel in all_panels(board):
        for target in reading.targets(panel):
            for one in reading.readings(target["expr"], bool(target.get("instant")), reading.chosen(board)):
                is_short = one.seconds < reading.RANGE_S
                assert is_short or FEW_SERIES.match(one.selector), f"{panel['title']} reads {one.selector}"


@pytest.mark.parametrize(("board", "panel"), [one for one in PANELS if one.values[1]["type"] in ("stat", "gauge")])
def test_a_number_without_data_is_unknown_and_not_green(board, panel):
    """Grafana gives no data the color of the lowest threshold, unless null is mapped to another."""
    of_null = [
        mapping["options"]["result"]
        for mapping in panel["fieldConfig"]["defaults"].get("mappings", ())
        if mapping["type"] == "special" and mapping["options"]["match"] == "null+nan"
    ]
    assert [result["color"] for result in of_null] == ["#808080"]
    assert of_null[0]["text"] not in ("", "0", "none")
    assert [one["expr"] for one in targets(panel) if "vector(" in one["expr"]] == [], "a zero that nothing measured"


# The panels of the guide for textfile collectors (seed 001): color steps, fill in percent, and the color of a dashed line.
GUIDE = [
    ("CPU utilization", [], 25, ""),
    ("Memory used", [], 70, "text"),
    ("GPU utilization", [0.7, 0.9], 0, ""),
    ("GPU memory used", [], 30, "red"),
    ("GPU temperature", [70, 80, 85], 0, ""),
    ("GPU power", [], 70, "red"),
    ("Disk usage", [0.7, 0.85], None, ""),
    ("Network", [], 0, ""),
]


@pytest.mark.parametrize(("title", "steps", "fill", "dashed"), GUIDE, ids=[title for title, *_ in GUIDE])
def test_the_host_dashboard_looks_as_the_guide_s_did(title, steps, fill, dashed):
    [panel] = [one for one in all_panels(dashboards.all_dashboards()[dashboards.uid("host")]) if one["title"] == title]
    shown, overridden = panel["fieldConfig"]["defaults"], panel["fieldConfig"]["overrides"]
    assert [step["value"] for step in shown["thresholds"]["steps"] if step["value"]] == steps
    assert shown.get("custom", {}).get("fillOpacity") == fill
    styles = [{one["id"]: one["value"] for one in override["properties"]} for override in overridden]
    lines = [style["color"]["fixedColor"] for style in styles if style.get("custom.lineStyle", {}).get("fill") == "dash"]
    assert lines == ([dashed] if dashed else [])


def test_each_use_of_a_gpu_has_a_colour_and_what_is_broken_alone_is_red():
    rules = [rule for group in rule_groups("mimir") for rule in group.rules if rule.get("record") == "cluster:gpus_by_use:count"]
    [panel] = [panel for panel in all_panels(BOARDS["gpu-fleet-capacity"]) if panel["title"] == "GPUs by use"]
    overrides = panel["fieldConfig"]["overrides"]
    colours = {one["matcher"]["options"]: one["properties"][0]["value"]["fixedColor"] for one in overrides}
    assert colours.keys() == {rule["labels"]["state"] for rule in rules}
    assert [state for state, colour in colours.items() if colour == "red"] == ["broken"]


def words_of(board, title: str, heading: str) -> dict[str, str]:
    """What a column of a table shows instead of its values."""
    [panel] = [panel for panel in all_panels(board) if panel["title"] == title]
    [override] = [one for one in panel["fieldConfig"]["overrides"] if one["matcher"]["options"] == heading]
    [mappings] = [one["value"] for one in override["properties"] if one["id"] == "mappings"]
    return {value: shown["text"] for value, shown in mappings[0]["options"].items()}


@pytest.mark.parametrize("uid", ["incident", "overview", "host", "cluster", "gpu"])
def test_firing_alerts_have_their_action_and_their_xid_in_words(uid):
    board = BOARDS[f"gpu-fleet-{uid}"]
    given = [
        rule["labels"].get("action", "")
        for backend in ("mimir", "loki")
        for group in rule_groups(backend)
        for rule in group.rules
        if "alert" in rule
    ]
    actions = {action for text in given for action in re.findall(r"(?:^|\}\})([a-z_]+)(?=$|\{\{)", text)}
    shown = words_of(board, "Firing alerts", "Action")
    assert "reset_gpu" in actions and not actions - set(shown), "an action that the table shows as a label has it"
    assert shown["drain_and_reset"] == "Drain and reset" and shown["follow_companion_xid"] == "Follow companion XID"
    assert words_of(board, "Firing alerts", "XID, event")["79"] == "79 GPU has fallen off the bus"


def test_the_events_of_an_incident_have_their_xids_in_words():
    assert words_of(BOARDS["gpu-fleet-incident"], "Events", "XID")["79"] == "79 GPU has fallen off the bus"
