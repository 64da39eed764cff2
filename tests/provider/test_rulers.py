"""Rule groups and Alertmanager configurations through the real plugin process, against a ruler's HTTP API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
import yaml
from google.protobuf.empty_pb2 import Empty
from pulumi.runtime.proto import engine_pb2, provider_pb2

from gpu_fleet.provider.ruler import duration, normalised
from gpu_fleet.provider.values import UNKNOWN, Secret, decode, encode
from tests.provider.plugin import PASSWORD, Failure, Plugin, urn
from tests.provider.ruler_server import RulerServer

OWNER_FILE = "gpu-fleet-owner.tmpl"
GROUP, ALERTS = "gpu-fleet:ruler:RuleGroup", "gpu-fleet:ruler:AlertmanagerConfig"
RULES = """
name: fleet
interval: 60s
rules:
  - alert: GpuLost
    expr: |
      gpu:count:expected
        - gpu:count > 0
    for: 0s
    labels: {severity: page, cluster: training}
    annotations: {}
  - record: gpu:count
    expr: count by (instance) (gpu:utilization:ratio)
"""
KEPT = """\
name: fleet
interval: 1m
rules:
  - alert: GpuLost
    expr: |-
      gpu:count:expected
        - gpu:count > 0
    labels:
      cluster: training
      severity: page
  - record: gpu:count
    expr: count by (instance) (gpu:utilization:ratio)
"""


@pytest.fixture
def ruler() -> Iterator[RulerServer]:
    ruler = RulerServer()
    yield ruler
    ruler.close()


def group(ruler: RulerServer, **changed: Any) -> dict[str, Any]:
    return {"backend": "mimir", "url": ruler.url, "namespace": "gpu fleet/a", "name": "fleet", "rules": RULES, **changed}


def alerts(ruler: RulerServer, **changed: Any) -> dict[str, Any]:
    return {"url": ruler.url, "config": Secret("route: {receiver: pager}\nreceivers: [{name: pager}]\n"), **changed}


# --- rule groups ------------------------------------------------------------------------------------------------------------


def test_rules_are_kept_in_one_spelling(plugin: Plugin, ruler: RulerServer) -> None:
    assert plugin.checked(GROUP, group(ruler))["rules"] == KEPT
    assert normalised(KEPT) == KEPT


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("name: fleet\nrules: [", "is not YAML in line 2"),
        ("[]", "must be one group"),
        ("name: fleet\nrules: {}", "must be one group"),
        ("name: other\nrules: []", 'the name in the YAML is "other" and `name` is "fleet"'),
    ],
)
def test_text_that_is_no_group_is_refused_before_any_server_is_contacted(
    plugin: Plugin, ruler: RulerServer, rules: str, message: str
) -> None:
    (failure,) = plugin.check(GROUP, group(ruler, rules=rules)).failures
    assert failure.property == "rules"
    assert message in failure.reason
    assert not ruler.requests


def test_a_namespace_that_loki_cannot_address_is_refused(plugin: Plugin, ruler: RulerServer) -> None:
    (failure,) = plugin.check(GROUP, group(ruler, backend="loki")).failures
    assert failure.property == "namespace"


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("60s", "1m"),
        ("90m", "1h30m"),
        ("1d12h", "1d12h"),
        ("7d", "1w"),
        ("8d", "8d"),
        ("1500ms", "1s500ms"),
        ("0m", "0s"),
        ("soon", "soon"),
    ],
)
def test_durations_read_as_prometheus_writes_them(written: str, kept: str) -> None:
    assert duration(written) == kept


@pytest.mark.parametrize("backend", ["mimir", "loki"])
def test_a_group_is_created_read_changed_and_deleted_with_few_requests(plugin: Plugin, ruler: RulerServer, backend: str) -> None:
    namespace = {"mimir": "gpu fleet/a", "loki": "gpu fleet"}[backend]
    inputs = plugin.checked(GROUP, group(ruler, backend=backend, namespace=namespace, tenant="us-west"))
    id_, outputs = plugin.create(GROUP, inputs)
    assert id_ == f"{backend}/{namespace}/fleet"
    assert outputs == {"rules": KEPT}
    assert yaml.safe_load(KEPT) == ruler.groups[backend, "us-west", namespace, "fleet"]

    read = plugin.read(GROUP, id_, inputs, outputs)
    assert (decode(read.properties), decode(read.inputs)) == (outputs, inputs), "what was not changed must not look changed"

    changed = plugin.checked(
        GROUP, group(ruler, backend=backend, namespace=namespace, tenant="us-west", rules=RULES.replace("60s", "30s"))
    )
    plugin.update(GROUP, id_, inputs, changed)
    assert ruler.groups[backend, "us-west", namespace, "fleet"]["interval"] == "30s"

    plugin.delete(GROUP, id_, changed)
    assert not ruler.groups
    assert [request.split()[0] for request in ruler.requests] == ["GET", "POST", "GET", "POST", "DELETE"]


def test_a_group_that_somebody_changed_is_read_as_it_is_and_differs(plugin: Plugin, ruler: RulerServer) -> None:
    inputs = plugin.checked(GROUP, group(ruler))
    id_, outputs = plugin.create(GROUP, inputs)
    ruler.groups["mimir", "", "gpu fleet/a", "fleet"]["rules"].pop()
    read = plugin.read(GROUP, id_, inputs, outputs)
    assert "record" not in decode(read.properties)["rules"]
    diff = plugin.diff(GROUP, decode(read.inputs), inputs, decode(read.properties))
    assert list(diff.detailedDiff) == ["rules"]


@pytest.mark.parametrize("backend", ["mimir", "loki"])
def test_a_server_that_lost_its_disk_gets_its_rules_again_without_a_refresh(
    plugin: Plugin, ruler: RulerServer, backend: str
) -> None:
    of_stack = [plugin.checked(GROUP, group(ruler, backend=backend, namespace=name)) for name in ("a", "b", "c")]
    for inputs in of_stack:
        plugin.create(GROUP, inputs)
    config = plugin.checked(ALERTS, alerts(ruler))
    plugin.create(ALERTS, config)
    ruler.requests.clear()
    assert not any(plugin.diff(GROUP, inputs, inputs).detailedDiff for inputs in of_stack)
    assert not plugin.diff(ALERTS, config, config).detailedDiff
    assert len(ruler.requests) == 2, "one list for all groups"

    ruler.groups.popitem()
    ruler.alertmanagers.clear()
    plugin.configure(secrets={"metrics-password": PASSWORD})  # another run
    found = [list(plugin.diff(GROUP, inputs, inputs).detailedDiff) for inputs in of_stack]
    assert found == [[], [], ["rules"]]
    assert list(plugin.diff(ALERTS, config, config).detailedDiff) == ["config"]
    plugin.update(GROUP, "id", of_stack[2], of_stack[2])
    plugin.update(ALERTS, "id", config, config)
    assert len(ruler.groups) == 3 and len(ruler.alertmanagers) == 1


def test_a_group_that_somebody_deleted_is_gone(plugin: Plugin, ruler: RulerServer) -> None:
    inputs = plugin.checked(GROUP, group(ruler))
    assert plugin.read(GROUP, "mimir/gpu fleet/a/fleet", inputs).id == ""
    plugin.delete(GROUP, "mimir/gpu fleet/a/fleet", inputs)


def test_a_server_that_refuses_a_refresh_is_reported_and_the_group_kept(plugin: Plugin, ruler: RulerServer) -> None:
    inputs = plugin.checked(GROUP, group(ruler))
    ruler.refusals = [(403, "no")]
    with pytest.raises(Failure, match="refused a request without a user") as failure:
        plugin.read(GROUP, "mimir/gpu fleet/a/fleet", inputs, {"rules": KEPT})
    assert decode(failure.value.kept.properties) == {"rules": KEPT}


@pytest.mark.parametrize(
    ("changed", "replaces"),
    [
        ({"name": "b"}, True),
        ({"namespace": "b"}, True),
        ({"tenant": "b"}, True),
        ({"url": "http://b"}, False),
        ({"rules": "b"}, False),
    ],
)
def test_another_identity_is_another_group(plugin: Plugin, ruler: RulerServer, changed: dict, replaces: bool) -> None:
    diff = plugin.diff(GROUP, group(ruler), group(ruler, **changed))
    assert diff.changes == provider_pb2.DiffResponse.DIFF_SOME
    assert bool(diff.replaces) == replaces


def test_a_preview_contacts_no_server_and_accepts_unknown_rules(plugin: Plugin, ruler: RulerServer) -> None:
    inputs = plugin.checked(GROUP, group(ruler, rules=UNKNOWN, url=UNKNOWN))
    assert plugin.create(GROUP, inputs, preview=True)[1] == {"rules": UNKNOWN}
    plugin.update(GROUP, "x", inputs, inputs, preview=True)
    assert not ruler.requests


def test_an_error_in_an_expression_is_reported_in_one_line(plugin: Plugin, ruler: RulerServer) -> None:
    inputs = plugin.checked(GROUP, group(ruler, rules="name: fleet\nrules: [{alert: GpuLost, expr: sum(}]"))
    with pytest.raises(Failure) as failure:
        plugin.create(GROUP, inputs)
    assert failure.value.message == (
        f'rule group gpu fleet/a/fleet: {ruler.url} answered 400: group "fleet", rule 0, "GpuLost": could not parse expression: '
        "1:5: parse error: unclosed left parenthesis"
    )
    assert len(ruler.requests) == 2, "what is wrong stays wrong"
    assert failure.value.kept is None


def test_a_request_to_a_server_that_has_just_started_is_retried(plugin: Plugin, ruler: RulerServer) -> None:
    ruler.refusals = [(500, "too many unhealthy instances in the ring")]
    plugin.create(GROUP, plugin.checked(GROUP, group(ruler)))
    assert ruler.groups


def test_the_password_is_sent_with_the_user_and_its_rejection_names_the_key(plugin: Plugin, ruler: RulerServer) -> None:
    ruler.password = "open sesame"
    inputs = plugin.checked(GROUP, group(ruler, username="writer"))
    plugin.configure(rulerPassword="wrong sesame")
    with pytest.raises(Failure, match=r"gpu-fleet:rulersPassword") as failure:
        plugin.create(GROUP, inputs)
    assert "sesame" not in failure.value.message
    plugin.configure(rulerPassword=ruler.password)
    plugin.create(GROUP, inputs)


def test_a_server_without_a_ruler_is_reported(plugin: Plugin, ruler: RulerServer) -> None:
    with pytest.raises(Failure, match=r"has no such API"):
        plugin.create(GROUP, plugin.checked(GROUP, group(ruler, url=f"{ruler.url}/api")))


# --- a server that moves ----------------------------------------------------------------------------------------------------


@pytest.fixture
def new_ruler() -> Iterator[RulerServer]:
    ruler = RulerServer()
    yield ruler
    ruler.close()


def moved(plugin: Plugin, ruler: RulerServer, url: str, **changed: Any) -> None:
    """The group was made at `ruler`, and the stack file names another URL by now."""
    old = plugin.checked(GROUP, group(ruler, tenant="us-west"))
    plugin.create(GROUP, old)
    plugin.update(GROUP, "x", old, plugin.checked(GROUP, group(ruler, tenant="us-west", url=url, **changed)))


@pytest.mark.parametrize("rules", [RULES, RULES.replace("60s", "30s")])
def test_rules_that_move_to_another_server_are_deleted_at_the_old_one(
    plugin: Plugin, ruler: RulerServer, new_ruler: RulerServer, rules: str
) -> None:
    """Nobody would ever delete them there, and they go on paging."""
    moved(plugin, ruler, new_ruler.url, rules=rules)
    assert (len(ruler.groups), len(new_ruler.groups)) == (0, 1)
    assert plugin.engine.texts(engine_pb2.INFO) == [f"rule group gpu fleet/a/fleet: deleted at {ruler.url}"]


def test_a_preview_reports_that_rules_move_and_contacts_no_server(
    plugin: Plugin, ruler: RulerServer, new_ruler: RulerServer
) -> None:
    old, new = plugin.checked(GROUP, group(ruler)), plugin.checked(GROUP, group(new_ruler))
    plugin.update(GROUP, "x", old, new, preview=True)
    (text,) = plugin.engine.texts(engine_pb2.INFO)
    assert text == f"rule group gpu fleet/a/fleet moves from {ruler.url} to {new_ruler.url}, and is deleted at {ruler.url}"
    assert not ruler.requests and not new_ruler.requests


def test_an_old_server_that_is_gone_is_reported_with_what_is_left_there(plugin: Plugin, ruler: RulerServer) -> None:
    gone = "http://127.0.0.1:9"
    old = plugin.checked(GROUP, group(ruler, tenant="us-west", url=gone))
    plugin.update(GROUP, "x", old, plugin.checked(GROUP, group(ruler, tenant="us-west")))
    assert len(ruler.groups) == 1
    (warning,) = plugin.engine.texts(engine_pb2.WARNING)
    assert warning.startswith(
        f"rule group gpu fleet/a/fleet stays at {gone}, where it goes on alerting: {gone} cannot be reached"
    )
    assert warning.endswith(
        f"curl --request DELETE --header 'X-Scope-OrgID: us-west' '{gone}/prometheus/config/v1/rules/gpu%20fleet%2Fa/fleet'"
    )


def test_two_names_of_one_server_do_not_delete_what_was_just_written(plugin: Plugin, ruler: RulerServer) -> None:
    alias = ruler.url.replace("127.0.0.1", "localhost")
    moved(plugin, ruler, alias, rules=RULES.replace("60s", "30s"))
    (kept,) = ruler.groups.values()
    assert kept["interval"] == "30s"
    assert not plugin.engine.texts(engine_pb2.WARNING)


def test_where_one_server_cannot_be_distinguished_from_two_nothing_is_deleted(plugin: Plugin, ruler: RulerServer) -> None:
    alias = ruler.url.replace("127.0.0.1", "localhost")
    moved(plugin, ruler, alias)
    assert len(ruler.groups) == 1
    (warning,) = plugin.engine.texts(engine_pb2.WARNING)
    assert f"curl --request DELETE --header 'X-Scope-OrgID: us-west' '{ruler.url}/" in warning


def test_an_alertmanager_configuration_that_moves_is_deleted_at_the_old_server(
    plugin: Plugin, ruler: RulerServer, new_ruler: RulerServer
) -> None:
    old, new = plugin.checked(ALERTS, alerts(ruler)), plugin.checked(ALERTS, alerts(new_ruler))
    plugin.create(ALERTS, old)
    plugin.update(ALERTS, "x", old, new)
    assert (len(ruler.alertmanagers), len(new_ruler.alertmanagers)) == (0, 1)


# --- stopping ---------------------------------------------------------------------------------------------------------------


def waited_for(ruler: RulerServer, method: str) -> None:
    deadline = time.monotonic() + 120
    while not any(request.startswith(method) for request in ruler.requests):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_cancel_says_what_a_server_may_have_got(new_plugin: Callable[..., Plugin], ruler: RulerServer) -> None:
    plugin = new_plugin()
    inputs = plugin.checked(GROUP, group(ruler))
    ruler.answers.clear()
    request = provider_pb2.CreateRequest(urn=urn(GROUP), type=GROUP, properties=encode(inputs))
    creating = plugin.start("Create", request)
    waited_for(ruler, "POST")
    plugin.call("Cancel", Empty())
    with pytest.raises(Failure) as failure:
        creating()
    assert failure.value.message == (
        f"stopped: rule group gpu fleet/a/fleet was sent to {ruler.url}, and the answer was not awaited; "
        "`pulumi refresh` shows what the server has, and the next `up` sends it again"
    )
    assert failure.value.kept.id, "the ruler has it, and a destroy has to delete it"
    assert ruler.groups


def test_cancel_says_what_may_have_been_deleted(new_plugin: Callable[..., Plugin], ruler: RulerServer) -> None:
    plugin = new_plugin()
    inputs = plugin.checked(GROUP, group(ruler))
    plugin.create(GROUP, inputs)
    ruler.answers.clear()
    request = provider_pb2.DeleteRequest(id="x", urn=urn(GROUP), type=GROUP, old_inputs=encode(inputs))
    deleting = plugin.start("Delete", request)
    waited_for(ruler, "DELETE")
    plugin.call("Cancel", Empty())
    what = rf"^stopped after \d+ s while deleting rule group gpu fleet/a/fleet at {ruler.url}, which may have been done or not; "
    with pytest.raises(Failure, match=what) as failure:
        deleting()
    assert failure.value.code == grpc.StatusCode.CANCELLED


# --- Alertmanager -----------------------------------------------------------------------------------------------------------


def test_a_configuration_is_always_a_secret(plugin: Plugin, ruler: RulerServer) -> None:
    response = plugin.check(ALERTS, alerts(ruler, config="route: {receiver: pager}\n"))
    assert "1b47061264138c4ac30d75fd1eb44270" in str(response.inputs.fields["config"]), "receivers hold tokens"


def test_a_configuration_is_created_read_changed_and_deleted(plugin: Plugin, ruler: RulerServer) -> None:
    inputs = plugin.checked(ALERTS, alerts(ruler, tenant="us-west", templates={"page.tmpl": "{{ . }}"}))
    id_, outputs = plugin.create(ALERTS, inputs)
    assert (id_, outputs) == ("alertmanager/us-west", {}), "outputs must not repeat what is secret"
    assert yaml.safe_load(ruler.alertmanagers["us-west"]) == {
        "template_files": {"page.tmpl": "{{ . }}", OWNER_FILE: "{{/* gpu-fleet stack test */}}"},
        "alertmanager_config": inputs["config"],
    }
    read = plugin.read(ALERTS, id_, inputs)
    assert decode(read.inputs) == inputs
    assert "1b47061264138c4ac30d75fd1eb44270" in str(read.inputs.fields["config"])
    plugin.update(ALERTS, id_, inputs, plugin.checked(ALERTS, alerts(ruler, tenant="us-west", config="route: {receiver: a}")))
    assert "receiver: a" in ruler.alertmanagers["us-west"]
    plugin.delete(ALERTS, id_, inputs)
    assert not ruler.alertmanagers
    assert plugin.read(ALERTS, id_, inputs).id == ""


# --- what belongs to somebody else --------------------------------------------------------------------------------------------


THEIRS = "route: {receiver: their pager}\nreceivers: [{name: their pager}]\n"


def theirs(config: str = THEIRS, **files: str) -> str:
    return yaml.safe_dump({"template_files": files, "alertmanager_config": config})


@pytest.mark.parametrize("is_preview", [True, False])
@pytest.mark.parametrize(
    ("files", "whose"),
    [
        ({}, "it has no mark of gpu-fleet"),
        ({"gpu-fleet.tmpl": "{{ . }}"}, "it has no mark of gpu-fleet"),
        ({OWNER_FILE: "{{/* gpu-fleet stack other */}}"}, "written by the gpu-fleet stack other"),
    ],
)
def test_an_alertmanager_configuration_of_somebody_else_is_refused_with_the_way_to_hand_it_over(
    plugin: Plugin, ruler: RulerServer, files: dict[str, str], whose: str, is_preview: bool
) -> None:
    ruler.alertmanagers[""] = before = theirs(**files)
    with pytest.raises(Failure) as failure:
        plugin.create(ALERTS, plugin.checked(ALERTS, alerts(ruler)), preview=is_preview)
    assert failure.value.message == (
        f"{ruler.url}, tenant none, has an Alertmanager configuration that this stack did not write ({whose}): nothing was "
        "changed. To replace it, write `takeOver: true` under gpu-fleet:rulers for one `up`; to delete it first: "
        f"curl --request DELETE '{ruler.url}/api/v1/alerts'. Or remove `receivers` from gpu-fleet:alerts: the alerts then go "
        "where that configuration routes them."
    )
    assert ruler.alertmanagers[""] == before
    assert failure.value.kept is None, "a later destroy would delete what is not ours"


def test_a_configuration_that_is_handed_over_is_replaced_and_marked(plugin: Plugin, ruler: RulerServer) -> None:
    ruler.alertmanagers[""] = theirs()
    plugin.configure(takeOverRulers=True)
    inputs = plugin.checked(ALERTS, alerts(ruler))
    plugin.create(ALERTS, inputs)
    assert "stack test" in ruler.alertmanagers[""] and "their pager" not in ruler.alertmanagers[""]
    plugin.configure()
    plugin.update(ALERTS, "x", inputs, inputs)


def test_a_configuration_that_somebody_replaced_since_stays_on_update_and_on_delete(plugin: Plugin, ruler: RulerServer) -> None:
    inputs = plugin.checked(ALERTS, alerts(ruler))
    plugin.create(ALERTS, inputs)
    ruler.alertmanagers[""] = theirs()
    assert plugin.read(ALERTS, "x", inputs).id == "", "a refresh must not record the configuration of somebody else as ours"
    with pytest.raises(Failure, match="that this stack did not write"):
        plugin.update(ALERTS, "x", inputs, plugin.checked(ALERTS, alerts(ruler, config="route: {receiver: a}")))
    plugin.delete(ALERTS, "x", inputs)
    assert ruler.alertmanagers[""] == theirs()
    (warning,) = plugin.engine.texts(engine_pb2.WARNING)
    assert warning.endswith("is not ours any more (it has no mark of gpu-fleet): it stays")


def test_what_an_earlier_version_wrote_without_a_mark_is_ours(plugin: Plugin, ruler: RulerServer) -> None:
    old = plugin.checked(ALERTS, alerts(ruler))
    ruler.alertmanagers[""] = theirs(old["config"])
    assert plugin.read(ALERTS, "x", old).id == "x"
    plugin.update(ALERTS, "x", old, plugin.checked(ALERTS, alerts(ruler, config="route: {receiver: a}")))
    assert "stack test" in ruler.alertmanagers[""]


def test_our_configuration_edited_in_grafana_is_drift_and_is_repaired(plugin: Plugin, ruler: RulerServer) -> None:
    """Grafana rewrites the configuration, which loses comments, and keeps the template files."""
    inputs = plugin.checked(ALERTS, alerts(ruler))
    plugin.create(ALERTS, inputs)
    files = yaml.safe_load(ruler.alertmanagers[""])["template_files"]
    ruler.alertmanagers[""] = theirs(**files)
    assert decode(plugin.read(ALERTS, "x", inputs).inputs)["config"] == THEIRS
    plugin.update(ALERTS, "x", plugin.checked(ALERTS, alerts(ruler, config=THEIRS)), inputs)
    assert "their pager" not in ruler.alertmanagers[""]


@pytest.mark.parametrize("backend", ["mimir", "loki"])
def test_a_rule_group_of_somebody_else_is_refused_with_the_way_to_hand_it_over(
    plugin: Plugin, ruler: RulerServer, backend: str
) -> None:
    inputs = plugin.checked(GROUP, group(ruler, backend=backend, namespace="gpu-fleet"))
    ruler.groups[backend, "", "gpu-fleet", "fleet"] = before = {"name": "fleet", "rules": [{"record": "a", "expr": "b"}]}
    with pytest.raises(Failure) as failure:
        plugin.create(GROUP, inputs)
    assert failure.value.message.startswith(
        f"rule group gpu-fleet/fleet exists at {ruler.url}, tenant none, with other rules, and this stack did not create it: "
        "nothing was changed. To replace it, write `takeOver: true` under gpu-fleet:rulers for one `up`; to delete it first: curl"
    )
    assert ruler.groups[backend, "", "gpu-fleet", "fleet"] == before
    plugin.configure(takeOverRulers=True)
    plugin.create(GROUP, inputs)
    assert ruler.groups[backend, "", "gpu-fleet", "fleet"] == yaml.safe_load(KEPT)


def test_rules_that_an_earlier_run_wrote_before_its_state_was_lost_are_ours(plugin: Plugin, ruler: RulerServer) -> None:
    inputs = plugin.checked(GROUP, group(ruler))
    plugin.create(GROUP, inputs)
    plugin.create(GROUP, inputs)


def test_a_server_that_rules_move_to_keeps_the_group_of_somebody_else(
    plugin: Plugin, ruler: RulerServer, new_ruler: RulerServer
) -> None:
    new_ruler.groups["mimir", "us-west", "gpu fleet/a", "fleet"] = {"name": "fleet", "rules": [{"record": "a", "expr": "b"}]}
    with pytest.raises(Failure, match="with other rules"):
        moved(plugin, ruler, new_ruler.url)
    assert len(ruler.groups) == 1, "rules that did not move still have to alert where they were"


def test_a_refused_configuration_does_not_show_its_values(plugin: Plugin, ruler: RulerServer) -> None:
    inputs = plugin.checked(ALERTS, alerts(ruler, config=Secret("receiver: nobody")))
    with pytest.raises(Failure, match=r"^Alertmanager configuration: .* error validating") as failure:
        plugin.create(ALERTS, inputs)
    assert "hunter2" not in failure.value.message


def test_another_tenant_is_a_replacement(plugin: Plugin, ruler: RulerServer) -> None:
    assert plugin.diff(ALERTS, alerts(ruler), alerts(ruler, tenant="b")).replaces == ["tenant"]
