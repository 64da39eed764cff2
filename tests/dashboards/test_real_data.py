"""Every query of every panel against a real Mimir and a real Loki, for hosts of every exporter mode.

docs/dashboards-by-exporter.md says which panels are empty in which mode and why; `pytest tests/dashboards --regen` writes it. A
panel that loses its data, or has more than the page says, fails here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import dashboards
from dashboards.layout import all_panels
from lab.showcase import HOSTS, MODES, Showcase
from lab.showcase.fleet import MODES_DATACENTER
from tests.dashboards.answers import Question, ask
from tests.dashboards.by_exporter import why_empty, written

PAGE = Path(__file__).parents[2] / "docs" / "dashboards-by-exporter.md"
BOARDS = dashboards.all_dashboards(dashboards.Price(2.5, "USD"))
PANELS = [(board, panel) for board in BOARDS.values() for panel in all_panels(board) if "targets" in panel]

Answers = dict[Question, list[dict[str, str]]]


def variables(mode: str) -> Mapping[str, str]:
    [host] = [host for host in HOSTS if host.datacenter == MODES_DATACENTER and host.mode == mode]
    chosen = {"datacenter": host.datacenter, "cluster": host.cluster, "instance": host.name, "exporter_mode": MODES[mode].label}
    return {**chosen, "gpu": ".*", "namespace": ".*"}


@pytest.fixture(scope="module")
def answers(showcase: Showcase) -> Answers:
    questions = [
        Question.of(panel, target, variables(mode)) for mode in MODES for _, panel in PANELS for target in panel["targets"]
    ]
    return ask(showcase, questions)


@pytest.fixture(scope="module")
def empty(answers: Answers) -> dict[tuple[str, str], set[str]]:
    """Dashboard's and panel's title to the modes in which it shows nothing."""
    found: dict[tuple[str, str], set[str]] = {}
    for board, panel in PANELS:
        for mode in MODES:
            if not any(answers[Question.of(panel, target, variables(mode))] for target in panel["targets"]):
                found.setdefault((board["title"], panel["title"]), set()).add(mode)
    return found


def test_the_page_says_which_panels_are_empty_in_which_mode(
    empty: dict[tuple[str, str], set[str]], request: pytest.FixtureRequest
) -> None:
    text = written(empty)
    if request.config.getoption("--regen"):
        PAGE.write_text(text)
    assert text == PAGE.read_text(), "a panel lost its data, or has more than the page says: look, then --regen"


def test_every_empty_panel_has_a_reason(empty: dict[tuple[str, str], set[str]]) -> None:
    assert {panel for _, panel in empty if not why_empty(panel)} == set()


def test_a_panel_has_data_in_some_mode(empty: dict[tuple[str, str], set[str]]) -> None:
    nowhere = {panel for _, panel in (key for key, modes in empty.items() if modes == set(MODES))}
    # Mimir itself is not scraped here; a host of a mode has no incident, and none of them is healthy.
    assert nowhere == {"Lost GPUs", "Failed rule evaluations", "In-memory series", "Healthy nodes that are drained"}


def test_every_panel_about_slurm_has_data_where_nodes_are_healthy_sick_and_drained(showcase: Showcase) -> None:
    chosen = {"datacenter": "us-west|eu-north", "cluster": ".*"}
    panels = [panel for panel in all_panels(BOARDS["gpu-fleet-slurm"]) if "targets" in panel]
    questions = {panel["title"]: [Question.of(panel, target, chosen) for target in panel["targets"]] for panel in panels}
    found = ask(showcase, [question for of_panel in questions.values() for question in of_panel])
    assert {title for title, of_panel in questions.items() if not any(found[one] for one in of_panel)} == set()
    tables = ("Healthy nodes that are drained", "Sick nodes that take jobs", "Nodes out of service")
    nodes = {title: {labels["node"] for labels in found[questions[title][0]]} for title in tables}
    assert nodes["Healthy nodes that are drained"] == {"gpu-node-001"}
    assert nodes["Sick nodes that take jobs"] == {"infer-02"}
    assert nodes["Nodes out of service"] == {"gpu-node-001", "gpu-node-002", "spare-01", "train-02"}


def test_model_servers_are_beside_the_gpus_of_their_host_and_of_the_node_of_their_pod(showcase: Showcase) -> None:
    panels = [panel for panel in all_panels(BOARDS["gpu-fleet-inference"]) if "targets" in panel]
    row = [panel for panel in panels if any("model:" in target["expr"] for target in panel["targets"])]
    assert len(row) == 7

    def servers(datacenter: str, cluster: str, instance: str) -> dict[str, set[str]]:
        chosen = {"datacenter": datacenter, "cluster": cluster, "instance": instance, "exporter_mode": ".*"}
        questions = {panel["title"]: [Question.of(panel, target, chosen) for target in panel["targets"]] for panel in row}
        found = ask(showcase, [question for of_panel in questions.values() for question in of_panel])
        return {title: {labels["server"] for one in asked for labels in found[one]} for title, asked in questions.items()}

    on_host = servers("eu-north", "inference", "infer-01")
    assert {title for title, found in on_host.items() if found == {"vllm", "speech"}} == {
        "Requests",
        "Failed requests",
        "Running and waiting requests",
        "Request latency",
    }
    assert all("vllm" in found for found in on_host.values())
    pod = "chat-6c9f7d-x2x8k"
    assert set(map(frozenset, servers("lab", "kubernetes", "kubernetes-host").values())) == {frozenset({pod})}
    assert not any(servers("us-west", "training", "gpu-node-001").values()), "a host without model servers"


def test_container_logs_are_those_of_docker_podman_and_pods(answers: Answers) -> None:
    [panel] = [panel for panel in all_panels(BOARDS["gpu-fleet-inference"]) if panel["title"] == "Container logs"]
    jobs = {
        mode: {labels["job"] for labels in answers[Question.of(panel, panel["targets"][0], variables(mode))]} for mode in MODES
    }
    assert jobs["dcgm-4.9"] == {"docker"} and jobs["textfile-nvidia"] == {"podman"} and jobs["kubernetes"] == {"pods"}


@pytest.mark.parametrize("name", ["gpu", "host", "incident"])
def test_a_lost_gpu_is_the_first_row_of_the_pages_that_an_alert_opens(showcase: Showcase, name: str) -> None:
    first = next(panel for panel in all_panels(BOARDS[f"gpu-fleet-{name}"]) if panel["type"] != "row")
    chosen = {"datacenter": "us-west", "cluster": "training", "instance": "gpu-node-002", "exporter_mode": ".*", "gpu": ".*"}
    questions = [Question.of(first, target, chosen) for target in first["targets"]]
    for found in ask(showcase, questions).values():
        assert [labels["gpu"] for labels in found] == ["3"], "XID 79 took GPU 3 of this host off the bus"
    well = [Question.of(first, target, {**chosen, "instance": "gpu-node-003"}) for target in first["targets"]]
    assert not any(ask(showcase, well).values()), "a host with all its GPUs"


def test_a_legend_names_only_existing_labels(answers: Answers) -> None:
    for board, panel in PANELS:
        for target in panel["targets"]:
            series = [labels for mode in MODES for labels in answers[Question.of(panel, target, variables(mode))]]
            for label in re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat") or ""):
                assert not series or any(label in labels for labels in series), f"{board['title']}, {panel['title']}: {label}"


def test_a_column_of_a_table_is_there(answers: Answers) -> None:
    for board, panel in PANELS:
        if panel["type"] != "table":
            continue
        [organize] = [one["options"] for one in panel["transformations"] if one["id"] == "organize"]
        wanted = {name for name in organize["includeByName"] if not name.startswith("Value")}
        series = [
            labels
            for mode in MODES
            for target in panel["targets"]
            for labels in answers[Question.of(panel, target, variables(mode))]
        ]
        if series:
            assert wanted <= {label for labels in series for label in labels}, f"{board['title']}, {panel['title']}"
