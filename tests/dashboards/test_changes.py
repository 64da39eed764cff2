"""A change of a dashboard in words: for a pull request, and for what somebody edited by hand in Grafana."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dashboards
from dashboards.changes import changes
from dashboards.review import review
from gpu_fleet.operations import dashboards_pull
from tests.signals.custom import DASHBOARD, examples
from tests.standins.grafana_server import GrafanaServer

UID = "gpu-fleet-host"
BOARD = dashboards.all_dashboards()[UID]
Model = dict[str, Any]


def panel(model: Model, title: str) -> Model:
    return next(one for one in model["panels"] if one["title"] == title)


def edited(edit: Callable[[Model], object]) -> Model:
    model = copy.deepcopy(BOARD)
    edit(model)
    return model


def changes_of(edit: Callable[[Model], object]) -> list[str]:
    return [str(change) for change in changes(BOARD, edited(edit))]


def test_nothing_changed_says_nothing() -> None:
    assert changes_of(lambda model: None) == []
    assert list(review({UID: BOARD}, {UID: BOARD}))[-1] == "No dashboard changes."


def test_a_changed_query_shows_both_versions() -> None:
    [line] = changes_of(lambda model: panel(model, "GPU utilization")["targets"][0].update(expr="gpu:utilization:ratio"))
    assert line.startswith('panel "GPU utilization": query A changed\n    - max by (')
    assert line.endswith("\n    + gpu:utilization:ratio")


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (
            lambda model: model["panels"].remove(panel(model, "Network")),
            ['panel "Network": removed'],
        ),
        (
            lambda model: panel(model, "Network").update(title="Traffic"),
            ['panel "Network": renamed to "Traffic"'],
        ),
        (
            lambda model: panel(model, "Network").update(
                title="Traffic", id=999_999
            ),  # as the code does, which makes ids of titles
            ['panel "Network": renamed to "Traffic"'],
        ),
        (
            lambda model: panel(model, "Network")["fieldConfig"]["defaults"].update(unit="bps"),
            ['panel "Network": unit Bps → bps'],
        ),
        (
            lambda model: panel(model, "Network").update(type="table"),
            ['panel "Network": panel type timeseries → table'],
        ),
        (
            lambda model: panel(model, "Network")["gridPos"].update(w=24),
            ['panel "Network": size 12 by 8 → 24 by 8'],
        ),
        (
            lambda model: panel(model, "Network")["targets"].append({"refId": "C", "expr": "up"}),
            ['panel "Network": query C added: up'],
        ),
        (
            lambda model: panel(model, "GPU utilization")["fieldConfig"]["defaults"]["thresholds"]["steps"].pop(),
            ['panel "GPU utilization": thresholds green, yellow from 0.7, red from 0.9 → green, yellow from 0.7'],
        ),
        (
            lambda model: panel(model, "GPU utilization")["fieldConfig"]["defaults"]["thresholds"]["steps"][1].update(
                value="75%"
            ),
            ['panel "GPU utilization": thresholds green, yellow from 0.7, red from 0.9 → green, yellow from 75%, red from 0.9'],
        ),
        (
            lambda model: model["templating"]["list"].pop(),
            ["variable $gpu: removed"],
        ),
        (
            lambda model: model.update(refresh="5m"),
            ["refresh 30s → 5m"],
        ),
    ],
    ids=[
        "removed",
        "renamed",
        "renamed in code",
        "unit",
        "kind",
        "size",
        "query",
        "thresholds",
        "threshold of text",
        "variable",
        "refresh",
    ],
)
def test_a_change_is_one_sentence(edit: Callable[[Model], object], says: list[str]) -> None:
    lines = changes_of(edit)
    assert lines == says


def test_a_column_of_a_table_is_named_with_its_thresholds() -> None:
    steps = [{"color": "green", "value": None}, {"color": "red", "value": 85}]

    def table(*steps: object) -> Model:
        """Two columns, of which the first has thresholds."""
        of_first = [{"id": "thresholds", "value": {"mode": "absolute", "steps": [*steps]}}]
        first = {"matcher": {"id": "byName", "options": "Hottest"}, "properties": of_first}
        second = {"matcher": {"id": "byName", "options": "Host"}, "properties": [{"id": "unit", "value": "short"}]}
        config = {"defaults": {}, "overrides": [first, second]}
        return {"title": "t", "panels": [{"id": 1, "title": "Hosts", "type": "table", "fieldConfig": config}]}

    found = changes(table(*steps), table(steps[0], {"color": "red", "value": 90}))
    assert [str(one) for one in found] == ['panel "Hosts": "Hottest" thresholds green, red from 85 → green, red from 90']


def saved_by_grafana(model: Model) -> Model:
    """As Grafana 12 writes a model back when somebody presses Save."""
    saved = copy.deepcopy(model)
    saved |= {"id": 7, "version": 3, "preload": False, "schemaVersion": 42}
    saved["annotations"]["list"].insert(0, {"name": "Annotations & Alerts", "builtIn": 1, "type": "dashboard"})
    for one in saved["panels"]:
        one["pluginVersion"] = "12.4.1"
        if one["type"] == "timeseries":
            own = {"drawStyle": "line", "hideFrom": {"legend": False, "tooltip": False, "viz": False}, "pointSize": 5}
            one["fieldConfig"]["defaults"].setdefault("custom", {}).update({**own, **one["fieldConfig"]["defaults"]["custom"]})
            one["fieldConfig"]["defaults"]["color"] = {"mode": "palette-classic"}
    for variable in saved["templating"]["list"]:
        variable["current"] = {"text": "gpu-node-001", "value": "gpu-node-001"}
        variable |= {"definition": variable["query"], "query": {"query": variable["query"], "qryType": 1, "refId": "A"}}
    return saved


def test_what_grafana_adds_on_saving_is_not_an_edit() -> None:
    assert [str(change) for change in changes(BOARD, saved_by_grafana(BOARD))] == []


def test_a_new_panel_is_reported_with_its_query() -> None:
    new = {"id": 99, "type": "stat", "title": "Mine", "targets": [{"refId": "A", "expr": "up"}]}
    lines = list(review({UID: BOARD}, {UID: edited(lambda model: model["panels"].append(new))}))
    assert lines[2:] == ["**GPU fleet / Host** (`gpu-fleet-host`)", "", '- panel "Mine": added; query A: up', ""]


@pytest.fixture(scope="module")
def grafana(tmp_path_factory: pytest.TempPathFactory):
    server = GrafanaServer(tmp_path_factory.mktemp("grafana"))
    yield server
    server.stop()


@pytest.fixture
def pull(grafana: GrafanaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    stack = tmp_path / "Pulumi.wall.yaml"
    stack.write_text(f"config:\n  gpu-fleet:grafana: {{url: '{grafana.url}'}}\n  gpu-fleet:custom: '{tmp_path}/custom'\n")
    examples(tmp_path)
    monkeypatch.setenv("PULUMI_OPTION_CONFIG_FILE", str(stack))
    monkeypatch.setenv("GRAFANA_AUTH", grafana.auth)
    monkeypatch.delenv("GRAFANA_URL", raising=False)

    def run(uid: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["dashboards-pull", "--stack", "wall", "--uid", uid, "--to", str(tmp_path / "pulled")])
        code = dashboards_pull.main()
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_a_hand_edit_is_brought_back_with_the_place_in_the_code(grafana: GrafanaServer, pull, tmp_path: Path) -> None:
    def edit(model: Model) -> None:
        panel(model, "Network")["fieldConfig"]["defaults"]["unit"] = "bps"

    grafana.ask("POST", "/api/dashboards/db", {"dashboard": saved_by_grafana(edited(edit)) | {"id": None}, "overwrite": True})
    code, out, _ = pull(UID)
    assert code == 0
    assert 'panel "Network": unit Bps → bps\n      dashboards/host.py:' in out
    saved = (tmp_path / "pulled" / f"{UID}.diff").read_text()
    assert re.search(r'^-\s+"unit": "Bps"', saved, re.MULTILINE) and re.search(r'^\+\s+"unit": "bps"', saved, re.MULTILINE)


def test_a_hand_edit_of_a_dashboard_of_the_stack_s_own_is_brought_back_too(grafana: GrafanaServer, pull, tmp_path: Path) -> None:
    model = {key: value for key, value in DASHBOARD.items() if key != "id"}
    renamed = [{**DASHBOARD["panels"][0], "title": "Queue"}]
    grafana.ask("POST", "/api/dashboards/db", {"dashboard": {**model, "panels": renamed}, "overwrite": True})
    code, out, err = pull("our-models")
    assert code == 0, err
    assert 'panel "Waiting requests": renamed to "Queue"' in out and (tmp_path / "pulled/our-models.json").exists()


def test_what_was_not_edited_is_not_saved(grafana: GrafanaServer, pull, tmp_path: Path) -> None:
    grafana.ask("POST", "/api/dashboards/db", {"dashboard": BOARD, "overwrite": True})
    assert pull(UID) == (0, "no dashboard was edited by hand\n", "")
    assert not (tmp_path / "pulled").exists()


def test_errors_are_reported_with_a_fix(pull, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = pull("gpu-fleet-hots")
    assert code == 1 and "UID is one of gpu-fleet-overview" in err
    code, _, err = pull("gpu-fleet-gpu")
    assert code == 1 and "has no dashboard gpu-fleet-gpu" in err and "`up` creates it" in err
    monkeypatch.setenv("GRAFANA_AUTH", "admin:wrong")
    code, _, err = pull("gpu-fleet-gpu")
    assert code == 1 and "answered 401" in err and "wrong" not in err
    monkeypatch.setenv("GRAFANA_AUTH", "")
    assert "GRAFANA_AUTH is not set" in pull("gpu-fleet-gpu")[2]
