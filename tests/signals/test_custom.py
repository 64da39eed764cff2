"""A stack's own rules and dashboards: the examples of docs/overrides.md are accepted, and what is wrong is reported."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import gpu_fleet.operations.dashboards
from components.custom import check_signals, custom_dashboards, customization
from gpu_fleet.signals import SignalErrors
from gpu_fleet.signals.overrides import warnings
from gpu_fleet.stackfile.config import ConfigErrors, StackConfig
from tests.signals.custom import DASHBOARD, examples, section
from tests.stackfile.stacks import stack, write_known_hosts

GRAFANA = {"grafana": {"url": "https://grafana.example.com"}, "custom": "custom"}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    write_known_hosts(tmp_path)
    examples(tmp_path)
    return tmp_path


def load(base: Path, **changes: object) -> StackConfig:
    secrets = {"grafanaAuth", *(("slackUrl",) if "alerts" in changes else ())}
    return StackConfig.load(stack(**{**GRAFANA, **changes}), base, secrets)


def errors(base: Path, **changes: object) -> str:
    try:
        check_signals(load(base, **changes))
    except (SignalErrors, ConfigErrors) as found:
        return str(found)
    return ""


def write_board(base: Path, name: str = "models.json", **changes: Any) -> None:
    model = {**copy.deepcopy(DASHBOARD), **changes}
    (base / "custom/dashboards" / name).write_text(json.dumps(model))


def test_the_examples_of_the_page_have_no_error_and_every_override_changes_something(base: Path) -> None:
    hosts = {"gpu-node-[001:008]": {"address": "10.0.1.[1:8]"}}
    config = load(base, alerts=section("alerts"), scrapeTargets=section("scrapeTargets"), hosts=hosts)
    assert check_signals(config) == []
    assert list(warnings(customization(config))) == []
    assert config.alerts and config.alerts.rules.keys() == section("alerts")["rules"].keys()


def test_a_dashboard_has_no_numbers_of_the_grafana_that_exported_it(base: Path) -> None:
    (board,) = custom_dashboards(load(base))
    assert board["uid"] == "our-models" and not {"id", "version"} & board.keys(), "else each `up` would change it"


def test_make_dashboards_writes_those_of_the_stack_and_its_own(
    base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = base / "Pulumi.s.yaml"
    keys = {**GRAFANA, "custom": str(base / "custom"), "grafana": {**GRAFANA["grafana"], "costPerGpuHour": 2.5}}
    keys |= {key: value for key, value in stack().items() if key in ("alerts", "rulers")}
    file.write_text(yaml.safe_dump({"config": {f"gpu-fleet:{key}": value for key, value in keys.items()}}))
    monkeypatch.setenv("PULUMI_OPTION_CONFIG_FILE", str(file))
    monkeypatch.setenv("GRAFANA_AUTH", "token")
    assert gpu_fleet.operations.dashboards.main([str(base / "build"), "--stack", "s"]) == 0, capsys.readouterr().err
    written = {path.stem: path.read_text() for path in (base / "build").glob("*.json")}
    assert written.keys() >= {"our-models", "gpu-fleet-host"} and "2.5" in written["gpu-fleet-capacity"]
    variables = json.loads(written["our-models"])["templating"]["list"]
    assert variables[0]["current"]["value"] == "gpu-fleet-mimir", "it opens with the data source of the stack"
    write_board(base, uid="gpu-fleet-x")
    assert gpu_fleet.operations.dashboards.main([str(base / "other"), "--stack", "s"]) == 1
    assert "belongs to our dashboards" in capsys.readouterr().err and not (base / "other").exists()


def test_a_metric_of_a_dashboard_or_rule_that_nothing_gives_is_an_error_at_the_file(base: Path) -> None:
    (base / "custom/metrics.txt").unlink()
    text = errors(base)
    assert "custom/rules/models.yaml, record model:requests_waiting:count: no exporter and no rule gives" in text
    assert 'dashboard our-models ("Models"), panel "Waiting requests", query A: no exporter and no rule gives' in text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"uid": "gpu-fleet-host"}, "models.json: the uid gpu-fleet-host belongs to our dashboards"),
        ({"uid": ""}, "the uid is ''"),
        ({"uid": "x" * 41}, "at most 40 characters"),
        ({"title": ""}, "has no title"),
        ({"panels": None}, "is not a dashboard"),
        ({"__inputs": [{"name": "DS_MIMIR"}]}, "was exported for sharing"),
        ({"panels": [{"datasource": {"type": "prometheus", "uid": "P1809F7CD0C75ACF3"}}]}, "'P1809F7CD0C75ACF3', which only one"),
        ({"panels": [{"datasource": "Prometheus"}]}, "set it to ${datasource} or ${logs_datasource}"),
        ({"templating": {"list": []}}, "there is no variable $datasource of the type `datasource`"),
    ],
)
def test_a_dashboard_that_only_works_where_it_was_made_is_refused(base: Path, changes: dict[str, Any], expected: str) -> None:
    write_board(base, **changes)
    text = errors(base)
    assert "custom/dashboards/models.json: " in text and expected in text, text


def test_a_file_that_is_not_json_is_refused_at_its_line(base: Path) -> None:
    (base / "custom/dashboards/models.json").write_text('{\n"uid": }\n')
    assert "custom/dashboards/models.json, line 2: is not JSON: Expecting value" in errors(base)


def test_a_directory_elsewhere_is_named_by_its_whole_path(base: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    examples(other)
    assert errors(base, custom=str(other / "custom")) == ""
    (other / "custom/metrics.txt").unlink()
    assert f"{other}/custom/rules/models.yaml, record model:requests_waiting:count" in errors(base, custom=str(other / "custom"))


def test_two_dashboards_of_one_uid_are_refused(base: Path) -> None:
    write_board(base, "copy.json", title="Copy")
    assert "the dashboard 'Copy' has this uid too" in errors(base)


def test_a_group_name_of_ours_is_refused(base: Path) -> None:
    file = base / "custom/rules/models.yaml"
    file.write_text(file.read_text().replace("our-models", "gpu-memory-health"))
    assert "custom/rules/models.yaml, group gpu-memory-health: a group of this name is in alerts/rules/gpu.yaml too" in errors(
        base
    )


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "rule/x.yaml",
            "",
            "custom/rule is not loaded\n   expected: rules, loki, dashboards and metrics.txt\n   fix:      rename it to r",
        ),
        ("rules/x.yml", "", "custom/rules/x.yml is not loaded"),
        ("rules/Our_Rules.yaml", "", "the name is part of a Kubernetes name"),
        ("dashboards/x.yaml", "", "files that end with .json"),
    ],
)
def test_a_file_that_would_not_be_loaded_is_refused(base: Path, name: str, text: str, expected: str) -> None:
    (base / "custom" / name).parent.mkdir(exist_ok=True)
    (base / "custom" / name).write_text(text)
    assert expected in errors(base)


def test_a_directory_that_nothing_in_the_stack_loads_is_refused(base: Path) -> None:
    without = {key: value for key, value in stack(custom="custom").items() if key not in ("alerts", "rulers")}
    with pytest.raises(ConfigErrors) as found:
        StackConfig.load(without, base)
    assert "has rules/*.yaml, which nothing in this stack loads" in str(found.value)
    assert "add gpu-fleet:grafana or gpu-fleet:kubernetes.sidecarDashboards" in str(found.value)
    assert "gpu-fleet:custom.directory: nowhere does not exist" in errors(base, custom="nowhere")
    assert "gpu-fleet:custom.directory: known_hosts is not a directory" in errors(base, custom="known_hosts")


@pytest.mark.parametrize(
    ("config", "is_warned"),
    [
        ({"gpu-fleet:scrapeInterval": "60s"}, True),
        ({"gpu-fleet:scrapeInterval": "30s"}, False),
        ({"gpu-fleet:scrapeInterval": "60s", "gpu-fleet:alerts": {"targets": ["ruler"]}}, False),
        ({"gpu-fleet:cluster": "scrapeInterval"}, False),
    ],
)
def test_a_site_that_is_scraped_less_often_than_its_rules_expect_is_named(
    base: Path, config: dict[str, object], is_warned: bool
) -> None:
    (base / "Pulumi.us-west-training.yaml").write_text(yaml.safe_dump({"config": config}))
    found = check_signals(load(base, scrapeInterval="30s"))
    assert [warning.partition(":")[0] for warning in found] == ["Pulumi.us-west-training.yaml has gpu-fleet"] * is_warned
    assert check_signals(load(base, scrapeInterval="60s")) == []


@pytest.mark.parametrize(
    "text", ["[gpu-fleet:scrapeInterval", "config:\n- gpu-fleet:scrapeInterval\n", "\xff gpu-fleet:scrapeInterval"]
)
def test_a_broken_stack_file_of_another_site_is_its_own_trouble(base: Path, text: str) -> None:
    (base / "Pulumi.us-west-training.yaml").write_text(text, encoding="latin-1")
    assert check_signals(load(base)) == []
