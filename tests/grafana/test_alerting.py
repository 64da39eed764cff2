"""Alerts in Grafana with the real engine: one stack owns them, twice changes nothing, and destroy leaves Grafana as it was."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import alerts
from components.grafana.alerting import FOLDER_UID
from tests.hosts.stack import Stack
from tests.provider.ruler_server import RulerServer
from tests.signals.custom import examples
from tests.standins.grafana_server import GrafanaServer

PROVISIONING = "/api/v1/provisioning"
SECRETS = {
    "slackUrl": "https://hooks.slack.example.com/services/planted",
    "pagerdutyKey": "planted-integration-key",
    "teamsUrl": "https://prod.example.com/workflows/planted?sig=planted-signature",
    "rulersPassword": "planted-password",
}
ALERTS = {
    "targets": ["grafana"],
    "runbookUrl": "https://git.example.com/gpu-fleet/blob/main",
    "receiver": "team",
    "receivers": {
        "team": {"slack": {"urlSecret": "slackUrl", "channel": "#gpu"}},
        "floor": {"teams": {"urlSecret": "teamsUrl"}},
        "oncall": {"pagerduty": {"routingKeySecret": "pagerdutyKey"}},
    },
    "routes": [{"matchers": ["severity=critical"], "receiver": "oncall", "muteTimings": ["move"]}],
    "muteTimings": {"move": {"daysOfMonth": [24], "months": ["december"], "years": [2026]}},
    "labels": {"site": "lab"},
    "rules": {
        "GpuTemperatureHigh": {"threshold": 88, "for": "15m", "severity": "critical", "labels": {"team": "ml"}},
        "GpuEccUncorrected": {"severity": "warning"},
        "GpuMissing": {"enabled": False},
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrafanaServer]:
    server = GrafanaServer(tmp_path_factory.mktemp("grafana"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def ruler() -> Iterator[RulerServer]:
    ruler = RulerServer()
    ruler.password = SECRETS["rulersPassword"]
    yield ruler
    ruler.close()


def config(server: GrafanaServer, ruler: RulerServer) -> dict[str, Any]:
    login = {"url": ruler.url, "tenant": "us-west", "username": "writer"}
    return {
        "rulers": {"mimir": login, "loki": login},
        "grafana": {"url": server.url, "folderPermissions": [{"role": "Viewer", "permission": "View"}]},
        "alerts": ALERTS,
        "custom": "custom",
    }


@pytest.fixture(scope="module")
def stack(server: GrafanaServer, ruler: RulerServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    secrets = {**SECRETS, "grafanaAuth": server.auth}
    stack = Stack(tmp_path_factory.mktemp("observability"), "observability", config(server, ruler), secrets).create()
    examples(stack.directory)
    shown = stack.up("--diff")
    assert not [value for value in SECRETS.values() if value in shown]
    yield stack


def test_grafana_holds_the_rules_with_fixed_uids_and_the_ruler_only_records(stack, server, ruler):
    rules = {rule["uid"]: rule for rule in server.get(f"{PROVISIONING}/alert-rules")}
    written = "".join(file.read_text() for file in [*alerts.rule_files("mimir"), *alerts.rule_files("grafana")])
    in_grafana = {rule["labels"]["alert"] for rule in rules.values()}
    assert set(re.findall(r"(?m)^ *- alert: (\w+)$", written)) - in_grafana == {"GpuMissing"}, "which the stack disables"
    (lost,) = [rule for rule in rules.values() if rule["title"] == "GpuXid 79"]
    assert re.fullmatch(r"alert-gpuxid-79-[0-9a-f]{8}", lost["uid"])
    assert (lost["folderUID"], lost["execErrState"], lost["noDataState"]) == (FOLDER_UID, "Error", "OK")
    assert (
        lost["annotations"]["runbook_url"] == "https://git.example.com/gpu-fleet/blob/main/alerts/runbooks/GpuXid.md#reboot_node"
    )
    recorded = [rule for group in ruler.groups.values() for rule in group["rules"]]
    assert recorded and all("record" in rule for rule in recorded)
    assert ruler.alertmanagers == {}, "Grafana notifies; Mimir's Alertmanager is left alone"


def test_grafana_has_the_overrides_the_rules_and_the_dashboard_of_the_stack(stack, server):
    rules = {rule["title"]: rule for rule in server.get(f"{PROVISIONING}/alert-rules")}
    hot = rules["GpuTemperatureHigh"]
    assert (hot["for"], hot["execErrState"]) == ("15m", "Error")
    assert hot["labels"].items() >= {"severity": "critical", "team": "ml", "site": "lab"}.items()
    assert ") >= 88" in hot["data"][0]["model"]["expr"]
    assert rules["GpuEccUncorrected"]["labels"]["severity"] == "warning", "critical and warning have become one"
    assert rules["ModelServerDown"]["annotations"]["runbook_url"] == "https://wiki.example.com/model-servers"
    folders = {board["uid"]: board["folderUid"] for board in server.get("/api/search?type=dash-db")}
    assert folders["our-models"] == folders["gpu-fleet-host"]


def test_grafana_queries_mimir_as_configured_in_the_stack_file(stack, server):
    kept = {source["type"]: source for source in server.get("/api/datasources")}
    for source in kept.values():
        assert source["jsonData"]["httpHeaderName1"] == "X-Scope-OrgID"
        assert (source["basicAuth"], source["basicAuthUser"]) == (True, "writer")
        assert set(source["secureJsonFields"]) == {"basicAuthPassword", "httpHeaderValue1"}


def test_grafana_knows_who_is_notified_and_when_not(stack, server):
    tree = server.get(f"{PROVISIONING}/policies")
    assert tree["receiver"] == "team"
    assert tree["routes"][0]["receiver"] == "oncall"
    assert tree["routes"][0]["mute_time_intervals"] == ["move"]
    points = {point["name"]: point for point in server.get(f"{PROVISIONING}/contact-points") if point["uid"]}
    assert {name: point["type"] for name, point in points.items()} == {"team": "slack", "floor": "teams", "oncall": "pagerduty"}
    assert points["floor"]["settings"]["url"] == "[REDACTED]" and "gpu_fleet.teams" in points["floor"]["settings"]["message"]
    (template,) = server.get(f"{PROVISIONING}/templates")
    assert "gpu_fleet.text" in template["template"]
    (timing,) = server.get(f"{PROVISIONING}/mute-timings")
    assert timing["time_intervals"] == [{"days_of_month": ["24"], "months": ["december"], "years": ["2026"], "location": "UTC"}]


def test_only_the_named_roles_see_both_folders(stack, server):
    for folder in server.get("/api/folders"):
        assert [one["builtInRole"] for one in server.get(f"/api/access-control/folders/{folder['uid']}")] == ["Viewer"]


def test_a_second_up_changes_nothing_and_nothing_has_drifted(stack):
    stack.up_unchanged()


def test_the_state_holds_no_secret_in_clear(stack):
    kept = stack.state.read_text()
    assert "GpuTemperatureHigh" in kept and not [value for value in SECRETS.values() if value in kept]


def test_a_second_stack_is_refused_before_it_touches_the_policy_or_a_dashboard(stack, server, ruler, tmp_path):
    def shown() -> dict[str, str]:
        return {board["uid"]: board["folderUid"] for board in server.get("/api/search?type=dash-db")}

    before, boards = server.get(f"{PROVISIONING}/policies"), shown()
    assert boards
    wanted = config(server, ruler)
    wanted["grafana"] = {**wanted["grafana"], "folder": "Another"}
    wanted["alerts"] = {**wanted["alerts"], "receiver": "oncall"}
    second = Stack(tmp_path, "second", wanted, {**SECRETS, "grafanaAuth": server.auth}).create()
    examples(second.directory)
    output = second.up(ok=False)
    assert "with the same uid already exists" in output, "data sources and the rules' folder have one uid, whoever makes them"
    assert (server.get(f"{PROVISIONING}/policies"), shown()) == (before, boards)
    second.destroy()
    assert (server.get(f"{PROVISIONING}/policies"), shown()) == (before, boards), "and it takes nothing away"


@pytest.fixture(scope="module")
def destroyed(stack: Stack) -> Stack:
    """For the last tests of this module: it does not come back by itself."""
    stack.destroy()
    return stack


@pytest.mark.usefixtures("destroyed")
def test_destroy_leaves_grafana_as_it_was(server):
    assert server.get(f"{PROVISIONING}/alert-rules") == []
    assert server.get(f"{PROVISIONING}/policies")["receiver"] == "grafana-default-email"
    assert [point["name"] for point in server.get(f"{PROVISIONING}/contact-points")] == ["grafana-default-email"]
    assert server.get("/api/folders") == []
    for kind in ("templates", "mute-timings"):
        assert server.get(f"{PROVISIONING}/{kind}") == []


def test_what_somebody_else_has_in_grafana_is_refused_and_stays_until_it_is_handed_over(destroyed, server):
    """The same stack creates everything again."""
    stack = destroyed

    def put(method: str, path: str, body: Any) -> None:
        status, answer = server.ask(method, path, body)
        assert 200 <= status < 300, answer

    def theirs() -> list[Any]:
        points = [point for point in server.get(f"{PROVISIONING}/contact-points") if point["uid"]]
        boards = [(board["uid"], board["title"]) for board in server.get("/api/search?type=dash-db")]
        return [points, server.get(f"{PROVISIONING}/policies"), server.get(f"{PROVISIONING}/templates"), boards]

    mail = {"name": "team", "type": "email", "settings": {"addresses": "them@example.com"}}
    put("POST", f"{PROVISIONING}/contact-points", mail)
    put("PUT", f"{PROVISIONING}/templates/gpu-fleet", {"template": '{{ define "theirs" }}x{{ end }}'})
    put("PUT", f"{PROVISIONING}/policies", {"receiver": "team", "group_by": ["alertname"]})
    put("POST", "/api/dashboards/db", {"dashboard": {"uid": "gpu-fleet-host", "title": "Their hosts"}})
    before = theirs()
    assert "changed by someone else" in stack.up(ok=False), "Grafana's own refusal of a dashboard under our uid"
    assert theirs()[:3] == before[:3] and ("gpu-fleet-host", "Their hosts") in theirs()[3]
    server.ask("DELETE", "/api/dashboards/uid/gpu-fleet-host")
    refused = stack.up(ok=False)
    assert 'has a notification template "gpu-fleet" that this stack did not create' in refused
    assert "write `takeOver: true` under gpu-fleet:grafana" in refused
    assert theirs()[:3] == before[:3]
    stack.destroy()
    assert theirs()[:3] == before[:3], "destroy takes nothing of theirs"

    put("POST", "/api/dashboards/db", {"dashboard": {"uid": "gpu-fleet-host", "title": "Their hosts"}})
    stack.config["grafana"]["takeOver"] = True
    stack.write()
    stack.up()
    assert server.get(f"{PROVISIONING}/policies")["routes"]
    assert ("gpu-fleet-host", "Their hosts") not in theirs()[3]
    stack.config["grafana"].pop("takeOver")
    stack.write()
    stack.up()
    stack.up("--expect-no-changes")
    stack.destroy()
