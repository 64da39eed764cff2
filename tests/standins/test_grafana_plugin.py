"""The grafana plugin against the lab's Grafana: every resource type is made, changed, drifts, is repaired, imported, deleted."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.standins.grafana_server import GrafanaServer
from tests.standins.running import Refused, Resource, RunningPlugin, is_secret, revealed, secret

PROVISIONING = "/api/v1/provisioning"
QUERY = {"refId": "A", "datasourceUid": "mimir", "relativeTimeRange": {"from": 600, "to": 0}, "model": '{"expr": "up"}'}
THRESHOLD = {
    "refId": "B",
    "datasourceUid": "__expr__",
    "relativeTimeRange": {"from": 0, "to": 0},
    "model": '{"type": "threshold", "expression": "A"}',
}
RULE = {"name": "GpuLost", "condition": "B", "for": "5m", "labels": {"severity": "critical"}, "datas": [QUERY, THRESHOLD]}


def dashboard_json(title: str = "Overview", uid: str | None = "overview", **more: Any) -> str:
    panel = {"id": 7, "type": "timeseries", "title": "Utilization"}
    return json.dumps({**({"uid": uid} if uid else {}), "title": title, "panels": [panel], "id": None, "version": 3, **more})


def written(inputs: Any) -> Any:
    """What the program wrote of inputs: without what the plugin fills in, of which the official one keeps a list."""
    if isinstance(inputs, list):
        return [written(item) for item in inputs]
    if not isinstance(inputs, dict):
        return inputs
    plain = revealed(inputs)
    filled_in = {"__defaults", *plain.get("__defaults", ())}
    return {key: written(value) for key, value in plain.items() if key not in filled_in and value not in ("", {}, [], False)}


@pytest.fixture
def folder(grafana: RunningPlugin) -> Resource:
    folder = grafana.resource("grafana:oss/folder:Folder")
    folder.create(title="GPU fleet", uid="gpu-fleet")
    return folder


@pytest.fixture
def source(grafana: RunningPlugin) -> Resource:
    source = grafana.resource("grafana:oss/dataSource:DataSource")
    source.create(name="Mimir", type="prometheus", uid="mimir", url="http://127.0.0.1:9009/prometheus")
    return source


@pytest.fixture
def dashboard(grafana: RunningPlugin) -> Resource:
    return grafana.resource("grafana:oss/dashboard:Dashboard")


@pytest.fixture
def rules(grafana: RunningPlugin, folder: Resource, source: Resource) -> Resource:
    return grafana.resource("grafana:alerting/ruleGroup:RuleGroup")


@pytest.fixture
def contact_point(grafana: RunningPlugin) -> Resource:
    return grafana.resource("grafana:alerting/contactPoint:ContactPoint")


# --- folders ----------------------------------------------------------------------------------------------------------------


def test_a_folder_is_made_with_its_address(folder: Resource, server: GrafanaServer) -> None:
    assert folder.id == "1:gpu-fleet"
    assert folder.outputs["url"].endswith("/dashboards/f/gpu-fleet/gpu-fleet")
    assert server.get("/api/folders/gpu-fleet")["title"] == "GPU fleet"


def test_a_renamed_folder_is_drift_and_the_next_update_repairs_it(folder: Resource, server: GrafanaServer) -> None:
    server.ask("PUT", "/api/folders/gpu-fleet", {"title": "Renamed by hand", "overwrite": True})
    assert folder.refresh() and folder.inputs["title"] == "Renamed by hand"
    assert folder.diff(title="GPU fleet", uid="gpu-fleet") == ({"title": "UPDATE"}, set())
    folder.update(title="GPU fleet", uid="gpu-fleet")
    assert server.get("/api/folders/gpu-fleet")["title"] == "GPU fleet"


def test_another_uid_needs_another_folder(folder: Resource) -> None:
    kinds, replaces = folder.diff(title="GPU fleet", uid="other")
    assert set(kinds) == {"uid"} and replaces == {"uid"}


def test_deleting_what_is_gone_already_is_no_error(folder: Resource, server: GrafanaServer) -> None:
    server.ask("DELETE", "/api/folders/gpu-fleet")
    folder.delete()


def test_a_folder_in_use_is_kept_when_its_deletion_is_prevented(
    grafana: RunningPlugin, dashboard: Resource, server: GrafanaServer
) -> None:
    folder = grafana.resource("grafana:oss/folder:Folder")
    folder.create(title="Kept", uid="kept", preventDestroyIfNotEmpty=True)
    dashboard.create(configJson=dashboard_json(), folder="kept")
    with pytest.raises(Refused, match="not empty"):
        folder.delete()
    assert server.get("/api/folders/kept")


def test_an_empty_title_is_refused_in_grafanas_words(grafana: RunningPlugin) -> None:
    with pytest.raises(Refused, match="folder title cannot be empty"):
        grafana.resource("grafana:oss/folder:Folder").create(title="")


def test_permissions_are_exactly_those_that_are_named(grafana: RunningPlugin, folder: Resource, server: GrafanaServer) -> None:
    permissions = grafana.resource("grafana:oss/folderPermission:FolderPermission")
    wanted = [{"role": "Viewer", "permission": "Edit"}]
    permissions.create(folderUid="gpu-fleet", permissions=wanted)
    listed = server.get("/api/access-control/folders/gpu-fleet")
    assert [(item["builtInRole"], item["permission"]) for item in listed] == [("Viewer", "Edit")]

    server.ask(
        "POST", "/api/access-control/folders/gpu-fleet", {"permissions": [{"builtInRole": "Editor", "permission": "Admin"}]}
    )
    permissions.refresh()
    assert permissions.diff(folderUid="gpu-fleet", permissions=wanted)[0], "what was added by hand is drift"
    permissions.update(folderUid="gpu-fleet", permissions=wanted)
    assert len(server.get("/api/access-control/folders/gpu-fleet")) == 1


# --- dashboards -------------------------------------------------------------------------------------------------------------


def test_a_dashboard_is_saved_in_its_folder(dashboard: Resource, folder: Resource, server: GrafanaServer) -> None:
    outputs = dashboard.create(configJson=dashboard_json(), folder=folder.id)
    assert dashboard.id == "1:overview" and outputs["uid"] == "overview"
    assert outputs["url"] == f"{server.url}/d/overview/overview"
    kept = server.get("/api/dashboards/uid/overview")
    assert kept["meta"]["folderUid"] == "gpu-fleet"
    assert json.loads(outputs["configJson"]) == {
        "uid": "overview",
        "title": "Overview",
        "panels": [{"type": "timeseries", "title": "Utilization"}],
    }, "numbers that Grafana gives by itself would be a difference at every run"


def test_layout_and_numbers_of_the_json_are_no_change(dashboard: Resource) -> None:
    dashboard.create(configJson=dashboard_json())
    other = json.dumps({**json.loads(dashboard_json()), "version": 9}, indent=2, sort_keys=True)
    assert dashboard.diff(configJson=other) == ({}, set())


def test_another_title_updates_and_another_uid_replaces(dashboard: Resource) -> None:
    dashboard.create(configJson=dashboard_json())
    assert dashboard.diff(configJson=dashboard_json("Other")) == ({"configJson": "UPDATE"}, set())
    kinds, replaces = dashboard.diff(configJson=dashboard_json(uid="other"))
    assert kinds == {"configJson": "UPDATE", "__meta": "UPDATE_REPLACE"} and replaces == {"__meta"}


def test_a_panel_in_the_state_has_no_id_unless_it_is_in_a_folded_row(dashboard: Resource) -> None:
    row = {"id": 1, "type": "row", "title": "Folded", "collapsed": True, "panels": [{"id": 2, "type": "stat", "title": "Inside"}]}
    outputs = dashboard.create(configJson=dashboard_json(panels=[row]))
    (kept,) = json.loads(outputs["configJson"])["panels"]
    assert "id" not in kept and kept["panels"] == row["panels"]


def test_a_refresh_brings_the_state_up_to_date_and_leaves_the_json_as_it_was_written(
    dashboard: Resource, server: GrafanaServer
) -> None:
    text = dashboard_json()
    dashboard.create(configJson=text)
    model = server.get("/api/dashboards/uid/overview")["dashboard"]
    server.ask("POST", "/api/dashboards/db", {"dashboard": {**model, "title": "By hand"}})
    assert dashboard.refresh()
    assert json.loads(dashboard.outputs["configJson"])["title"] == "By hand"
    assert dashboard.inputs["configJson"] == text
    assert dashboard.diff(configJson=text) == ({"configJson": "UPDATE"}, set()), "and so the next update repairs it"


def test_an_update_overwrites_what_somebody_saved_by_hand(dashboard: Resource, server: GrafanaServer) -> None:
    dashboard.create(configJson=dashboard_json())
    model = server.get("/api/dashboards/uid/overview")["dashboard"]
    status, _ = server.ask("POST", "/api/dashboards/db", {"dashboard": {**model, "title": "By hand"}})
    assert status == 200
    assert dashboard.refresh()
    assert dashboard.update(configJson=dashboard_json("Wanted"))["version"] == 3
    assert server.get("/api/dashboards/uid/overview")["dashboard"]["title"] == "Wanted"


def test_an_existing_dashboard_is_not_overwritten_by_a_creation(dashboard: Resource, server: GrafanaServer) -> None:
    server.ask("POST", "/api/dashboards/db", {"dashboard": {"uid": "overview", "title": "Somebody's"}})
    with pytest.raises(Refused, match="changed by someone else"):
        dashboard.create(configJson=dashboard_json())
    dashboard.create(configJson=dashboard_json(version=None), overwrite=True)


def test_a_dashboard_that_is_no_json_is_refused_without_the_name_of_the_property(dashboard: Resource) -> None:
    assert set(dashboard.failures({"configJson": "{"})) == {""}


# --- data sources -----------------------------------------------------------------------------------------------------------


def test_a_data_source_keeps_its_secrets_secret(grafana: RunningPlugin, server: GrafanaServer) -> None:
    source = grafana.resource("grafana:oss/dataSource:DataSource")
    outputs = source.create(
        name="Loki",
        type="loki",
        uid="loki",
        url="http://127.0.0.1:3100",
        basicAuthEnabled=True,
        basicAuthUsername="reader",
        secureJsonDataEncoded=secret('{"basicAuthPassword": "hush"}'),
        httpHeaders=secret({"X-Scope-OrgID": "us-west"}),
    )
    assert is_secret(outputs["secureJsonDataEncoded"]) and is_secret(outputs["httpHeaders"])
    kept = server.get("/api/datasources/uid/loki")
    assert kept["secureJsonFields"] == {"basicAuthPassword": True, "httpHeaderValue1": True}
    assert "hush" not in json.dumps(kept)


def test_a_data_source_is_made_secret_even_where_the_program_forgets_it(source: Resource) -> None:
    checked = source.checked({"name": "n", "type": "loki", "secureJsonDataEncoded": '{"password": "hush"}'})
    assert is_secret(checked["secureJsonDataEncoded"])


def test_a_changed_address_is_drift_and_other_writing_of_settings_is_not(source: Resource, server: GrafanaServer) -> None:
    wanted = {"name": "Mimir", "type": "prometheus", "uid": "mimir", "url": "http://127.0.0.1:9009/prometheus"}
    assert source.diff(**wanted, jsonDataEncoded="{ }") == ({}, set())
    kept = server.get("/api/datasources/uid/mimir")
    server.ask("PUT", "/api/datasources/uid/mimir", {**kept, "url": "http://elsewhere"})
    source.refresh()
    assert source.diff(**wanted) == ({"url": "UPDATE"}, set())
    source.update(**wanted)
    assert server.get("/api/datasources/uid/mimir")["url"] == wanted["url"]


def test_two_data_sources_cannot_have_one_name(grafana: RunningPlugin, source: Resource) -> None:
    with pytest.raises(Refused, match="data source with the same name already exists"):
        grafana.resource("grafana:oss/dataSource:DataSource").create(name="Mimir", type="prometheus")


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ({"type": "loki", "jsonDataEncoded": "{"}, "jsonDataEncoded"),
        ({"type": "loki", "jsonDataEncoded": '{"httpHeaderName1": "X"}'}, "jsonDataEncoded"),
        ({"name": "n"}, "type"),
        ({"type": "loki", "adress": "http://typo"}, "adress"),
    ],
)
def test_a_wrong_data_source_is_refused(source: Resource, inputs: dict[str, str], named: str) -> None:
    failures = source.failures(inputs)
    assert any(named in path or named in reason for path, reason in failures.items()), failures


# --- rule groups ------------------------------------------------------------------------------------------------------------


def test_a_rule_group_is_made_and_shows_no_drift(rules: Resource, server: GrafanaServer) -> None:
    in_its_words = {**RULE, "for": "5m0s"}  # as the official plugin writes durations
    wanted = {"name": "gpus", "folderUid": "gpu-fleet", "intervalSeconds": 60, "rules": [in_its_words]}
    rules.create(**wanted)
    assert rules.id == "1:gpu-fleet:gpus"
    kept = server.get(f"{PROVISIONING}/folder/gpu-fleet/rule-groups/gpus")["rules"][0]
    assert kept["title"] == "GpuLost" and kept["noDataState"] == "NoData" and kept["execErrState"] == "Alerting"
    before = written(rules.inputs)
    assert rules.refresh() and written(rules.inputs) == before, "what Grafana fills in is no drift"
    assert rules.diff(**wanted) == ({}, set())
    assert rules.outputs["rules"][0]["uid"], "the uid that Grafana chose is an output"


def test_a_changed_label_is_reported_by_its_path(rules: Resource) -> None:
    wanted = {"name": "gpus", "folderUid": "gpu-fleet", "intervalSeconds": 60}
    rules.create(**wanted, rules=[RULE])
    changed = {**RULE, "labels": {"severity": "warning"}}
    kinds, replaces = rules.diff(**wanted, rules=[changed])
    assert kinds.pop("rules[0].labels.severity") == "UPDATE" and not replaces
    assert set(kinds) <= {"rules[0].annotations"}, "the official plugin names what the rule has none of as well"
    assert rules.diff(**{**wanted, "name": "other"}, rules=[RULE])[1] == {"name"}


@pytest.mark.parametrize("said", [{}, {"isPaused": False}], ids=["nothing said", "said"])
def test_a_rule_paused_by_hand_is_unpaused(said: dict[str, bool], rules: Resource, server: GrafanaServer) -> None:
    wanted = {"name": "gpus", "folderUid": "gpu-fleet", "intervalSeconds": 60, "rules": [{**RULE, **said}]}
    rules.create(**wanted)
    path = f"{PROVISIONING}/folder/gpu-fleet/rule-groups/gpus"
    group = server.get(path)
    group["rules"][0]["isPaused"] = True
    server.ask("PUT", path, group)
    rules.refresh()
    assert rules.diff(**wanted)[0] == {"rules[0].isPaused": "UPDATE"}
    rules.update(**wanted)
    assert server.get(path)["rules"][0]["isPaused"] is False


def test_an_existing_group_is_not_taken_over(rules: Resource, grafana: RunningPlugin) -> None:
    wanted = {"name": "gpus", "folderUid": "gpu-fleet", "intervalSeconds": 60, "rules": [RULE]}
    rules.create(**wanted)
    with pytest.raises(Refused, match='rule group with name "gpus" already exists'):
        grafana.resource("grafana:alerting/ruleGroup:RuleGroup", "second").create(**wanted)


REFUSED = [
    ({"intervalSeconds": 15}, {}, "divided exactly by scheduler interval: 10"),
    ({"folderUid": "nowhere"}, {}, "folder does not exist"),
    ({}, {"condition": "Z"}, "condition Z does not exist"),
    ({}, {"noDataState": "Maybe"}, "unknown NoData state option Maybe"),
    ({}, {"datas": [{**QUERY, "datasourceUid": "gone"}, THRESHOLD]}, "data source not found"),
    ({}, {"annotations": {"__panelId__": "1"}}, "Panel ID without a Dashboard UID"),
    ({}, {"notificationSettings": {"contactPoint": "nobody"}}, "receiver 'nobody' does not exist"),
]


def test_refused_rule_groups_are_retried_and_end_in_grafanas_words(
    grafana: RunningPlugin, rules: Resource, server: GrafanaServer
) -> None:
    """All at once: the official plugin retries each of them for two minutes."""

    def refused(number: int) -> tuple[float, str]:
        group, rule, _ = REFUSED[number]
        wanted = {"name": f"gpus-{number}", "folderUid": "gpu-fleet", "intervalSeconds": 60, "rules": [{**RULE, **rule}], **group}
        began = time.monotonic()
        with pytest.raises(Refused) as refusal:
            grafana.resource("grafana:alerting/ruleGroup:RuleGroup", f"refused-{number}").create(**wanted)
        return time.monotonic() - began, str(refusal.value)

    with ThreadPoolExecutor(len(REFUSED)) as pool:
        answers = list(pool.map(refused, range(len(REFUSED))))
    for (_, _, words), (took_s, answer) in zip(REFUSED, answers, strict=True):
        assert words in answer
        assert took_s >= 5, f"given up after {took_s:.1f} s: {answer}"
    assert server.get(f"{PROVISIONING}/alert-rules") == []


def test_what_is_refused_at_first_is_created_once_grafana_accepts_it(rules: Resource, server: GrafanaServer) -> None:
    late = {**QUERY, "datasourceUid": "late"}
    source = {"name": "Late", "type": "prometheus", "uid": "late", "url": "http://127.0.0.1:9009"}
    timer = threading.Timer(1, lambda: server.ask("POST", "/api/datasources", source))
    timer.start()
    rules.create(name="gpus", folderUid="gpu-fleet", intervalSeconds=60, rules=[{**RULE, "datas": [late, THRESHOLD]}])
    timer.join()
    assert len(server.get(f"{PROVISIONING}/alert-rules")) == 1


def test_a_rule_that_cannot_be_sent_is_refused_at_once(rules: Resource) -> None:
    wanted = {"name": "gpus", "folderUid": "gpu-fleet", "intervalSeconds": 60}
    began = time.monotonic()
    with pytest.raises(Refused, match='conflicting fields "record"'):
        rules.create(**wanted, rules=[{**RULE, "record": {"metric": "m", "from": "B"}}])
    with pytest.raises(Refused, match='rule with UID "one" is defined more than once'):
        rules.create(**wanted, rules=[{**RULE, "uid": "one"}, {**RULE, "uid": "one", "name": "Other"}])
    assert time.monotonic() - began < 25, "each that is tried again takes 15 seconds"


def test_a_deleted_group_leaves_no_rule(rules: Resource, server: GrafanaServer) -> None:
    rules.create(name="gpus", folderUid="gpu-fleet", intervalSeconds=60, rules=[RULE])
    rules.delete()
    assert server.get(f"{PROVISIONING}/alert-rules") == []


def test_deleting_a_group_that_is_gone_fails_until_a_refresh(rules: Resource, server: GrafanaServer) -> None:
    rules.create(name="gpus", folderUid="gpu-fleet", intervalSeconds=60, rules=[RULE])
    server.ask("DELETE", f"{PROVISIONING}/folder/gpu-fleet/rule-groups/gpus")
    with pytest.raises(Refused, match=r"\[404\] getAlertRuleGroupNotFound"):
        rules.delete()
    assert not rules.refresh(), "a refresh takes it out of the state"


# --- contact points, policies, mute timings, templates ----------------------------------------------------------------------


def test_a_contact_point_keeps_its_secrets_and_shows_no_drift(contact_point: Resource, server: GrafanaServer) -> None:
    wanted = {
        "name": "ops",
        "webhooks": [{"url": "http://127.0.0.1/", "basicAuthUser": "u", "basicAuthPassword": secret("hush")}],
        "slacks": [{"url": secret("https://hooks.example.com/T0"), "title": "GPU"}],
        "emails": [{"addresses": ["a@example.com", "b@example.com"]}],
    }
    outputs = contact_point.create(**wanted)
    assert contact_point.id == "1:ops"
    assert is_secret(outputs["webhooks"]) or is_secret(outputs["webhooks"][0]["basicAuthPassword"])
    points = {point["type"]: point for point in server.get(f"{PROVISIONING}/contact-points?name=ops")}
    assert points["webhook"]["settings"] == {
        "url": "http://127.0.0.1/",
        "username": "u",
        "password": "[REDACTED]",
        "maxAlerts": 0,  # sent though nobody gave it
    }
    assert points["email"]["settings"]["addresses"] == "a@example.com;b@example.com"
    before = written(contact_point.inputs)
    assert contact_point.refresh() and written(contact_point.inputs) == before
    assert contact_point.diff(**wanted) == ({}, set())


def test_a_changed_integration_gets_another_uid_and_a_removed_one_is_deleted(
    contact_point: Resource, server: GrafanaServer
) -> None:
    both = [{"url": "http://127.0.0.1/1"}, {"url": "http://127.0.0.1/2"}]
    before = [item["uid"] for item in revealed(contact_point.create(name="ops", webhooks=both))["webhooks"]]
    (after,) = revealed(contact_point.update(name="ops", webhooks=[{"url": "http://127.0.0.1/changed"}]))["webhooks"]
    assert after["uid"] not in before
    points = server.get(f"{PROVISIONING}/contact-points?name=ops")
    assert [(point["uid"], point["settings"]["url"]) for point in points] == [(after["uid"], "http://127.0.0.1/changed")]


def test_an_integration_deleted_by_hand_is_drift_and_is_restored(contact_point: Resource, server: GrafanaServer) -> None:
    wanted = {"name": "ops", "webhooks": [{"url": "http://127.0.0.1/"}], "emails": [{"addresses": ["a@example.com"]}]}
    uid = revealed(contact_point.create(**wanted))["emails"][0]["uid"]
    server.ask("DELETE", f"{PROVISIONING}/contact-points/{uid}")
    contact_point.refresh()
    assert contact_point.diff(**wanted)[0]
    contact_point.update(**wanted)
    assert len(server.get(f"{PROVISIONING}/contact-points?name=ops")) == 2


def test_a_contact_point_needs_an_integration(contact_point: Resource) -> None:
    assert contact_point.failures({"name": "ops"})


def test_a_wrong_contact_point_is_refused_in_grafanas_words(contact_point: Resource) -> None:
    with pytest.raises(Refused, match="recipient must be specified when using the Slack chat API"):
        contact_point.create(name="ops", slacks=[{"token": "t"}])


def test_the_policy_tree_is_set_shows_no_drift_and_is_reset_at_the_end(
    grafana: RunningPlugin, contact_point: Resource, server: GrafanaServer
) -> None:
    contact_point.create(name="ops", webhooks=[{"url": "http://127.0.0.1/"}])
    policy = grafana.resource("grafana:alerting/notificationPolicy:NotificationPolicy")
    severe, west = (
        {"label": "severity", "match": "=", "value": "critical"},
        {"label": "datacenter", "match": "=~", "value": "us-.*"},
    )
    wanted = {"contactPoint": "ops", "groupBies": ["alertname"], "groupWait": "30s"}
    child = {"contactPoint": "ops", "matchers": [severe, west], "continue": True}
    policy.create(**wanted, policies=[child])
    assert policy.id == "1:policy"
    route = server.get(f"{PROVISIONING}/policies")["routes"][0]
    assert route["object_matchers"] == [["severity", "=", "critical"], ["datacenter", "=~", "us-.*"]] and route["continue"]
    assert policy.refresh()
    assert policy.diff(**wanted, policies=[{**child, "matchers": [west, severe]}]) == ({}, set()), "matchers have no order"
    policy.delete()
    assert server.get(f"{PROVISIONING}/policies")["receiver"] == "grafana-default-email"


def test_routes_that_were_all_removed_by_hand_are_not_seen_and_a_changed_one_is(
    grafana: RunningPlugin, contact_point: Resource, server: GrafanaServer
) -> None:
    contact_point.create(name="ops", webhooks=[{"url": "http://127.0.0.1/"}])
    policy = grafana.resource("grafana:alerting/notificationPolicy:NotificationPolicy")
    severe = {"label": "severity", "match": "=", "value": "critical"}
    wanted = {"contactPoint": "ops", "groupBies": ["alertname"], "policies": [{"contactPoint": "ops", "matchers": [severe]}]}
    policy.create(**wanted)
    tree = server.get(f"{PROVISIONING}/policies")
    assert server.ask("PUT", f"{PROVISIONING}/policies", {**tree, "routes": []})[0] == 202
    policy.refresh()
    assert policy.diff(**wanted) == ({}, set())
    policy.update(**wanted, groupWait="31s")
    assert len(server.get(f"{PROVISIONING}/policies")["routes"]) == 1, "any other change writes the whole tree"
    tree["routes"][0]["group_wait"] = "1h"
    assert server.ask("PUT", f"{PROVISIONING}/policies", tree)[0] == 202
    policy.refresh()
    assert policy.diff(**wanted)[0]
    policy.update(**wanted)
    assert "group_wait" not in server.get(f"{PROVISIONING}/policies")["routes"][0]


def test_a_policy_for_a_receiver_that_is_not_there_is_refused(grafana: RunningPlugin) -> None:
    policy = grafana.resource("grafana:alerting/notificationPolicy:NotificationPolicy")
    with pytest.raises(Refused, match="receiver 'nobody' does not exist"):
        policy.create(contactPoint="nobody", groupBies=["alertname"])


def test_a_mute_timing_in_use_is_taken_out_of_the_policies_first(
    grafana: RunningPlugin, contact_point: Resource, server: GrafanaServer
) -> None:
    timing = grafana.resource("grafana:alerting/muteTiming:MuteTiming")
    wanted = {"name": "weekends", "intervals": [{"weekdays": ["saturday", "sunday"], "months": ["january:march"]}]}
    timing.create(**wanted)
    (kept,) = server.get(f"{PROVISIONING}/mute-timings")
    assert kept["time_intervals"] == wanted["intervals"], "a condition that is not given is not there, not an empty list"
    assert timing.refresh()
    assert timing.diff(name="weekends", intervals=[{**wanted["intervals"][0], "months": ["1:3"]}]) == ({}, set())
    contact_point.create(name="ops", webhooks=[{"url": "http://127.0.0.1/"}])
    tree = {"receiver": "ops", "routes": [{"receiver": "ops", "mute_time_intervals": ["weekends"]}]}
    assert server.ask("PUT", f"{PROVISIONING}/policies", tree)[0] == 202
    timing.delete()
    assert server.get(f"{PROVISIONING}/mute-timings") == []
    assert server.get(f"{PROVISIONING}/policies")["routes"][0]["mute_time_intervals"] == []


def test_a_mute_timing_at_an_hour_that_is_none_is_refused(grafana: RunningPlugin) -> None:
    timing = grafana.resource("grafana:alerting/muteTiming:MuteTiming")
    with pytest.raises(Refused, match="Time interval is in invalid format"):
        timing.create(name="bad", intervals=[{"times": [{"start": "25:00", "end": "26:00"}]}])


def test_a_template_changes_and_space_around_it_is_no_change(grafana: RunningPlugin, server: GrafanaServer) -> None:
    template = grafana.resource("grafana:alerting/messageTemplate:MessageTemplate")
    text = '{{ define "gpu" }}{{ .Status }}{{ end }}'
    template.create(name="gpu", template=text)
    assert template.diff(name="gpu", template=text + "\n") == ({}, set())
    changed = text.replace(".Status", ".Receiver")
    template.update(name="gpu", template=changed)
    assert server.get(f"{PROVISIONING}/templates/gpu")["template"] == changed
    template.delete()
    assert server.ask("GET", f"{PROVISIONING}/templates/gpu")[0] == 404


def test_a_template_that_does_not_close_is_refused(grafana: RunningPlugin) -> None:
    with pytest.raises(Refused, match="Template is in invalid format"):
        grafana.resource("grafana:alerting/messageTemplate:MessageTemplate").create(name="gpu", template='{{ define "gpu" }}')


@pytest.mark.parametrize("disabled", [False, True])
def test_whether_people_may_edit_it_in_grafana_follows_the_input(
    grafana: RunningPlugin, server: GrafanaServer, disabled: bool
) -> None:
    template = grafana.resource("grafana:alerting/messageTemplate:MessageTemplate")
    template.create(name="gpu", template='{{ define "gpu" }}{{ end }}', disableProvenance=disabled)
    assert server.get(f"{PROVISIONING}/templates/gpu")["provenance"] == ("" if disabled else "api")


# --- the provider itself ----------------------------------------------------------------------------------------------------


def test_a_wrong_login_is_reported_without_the_login(grafana: RunningPlugin, server: GrafanaServer) -> None:
    settings = {"url": server.url, "auth": server.auth, "retries": "0"}
    grafana.configure({**settings, "auth": "admin:wrong-and-secret"})
    try:
        with pytest.raises(Refused, match="401") as refused:
            grafana.resource("grafana:oss/folder:Folder").create(title="t")
    finally:
        grafana.configure(settings)
    assert "wrong-and-secret" not in str(refused.value)
