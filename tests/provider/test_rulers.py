"""Rule groups and Alertmanager configurations through the real plugin process, against a ruler's HTTP API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from pulumi.runtime.proto import provider_pb2

from provider.ruler import duration, normalised
from provider.values import UNKNOWN, Secret, decode
from tests.provider.plugin import Failure, Plugin
from tests.provider.ruler_server import RulerServer

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
        ("name: other\nrules: []", 'the group calls itself "other" and the resource "fleet"'),
    ],
)
def test_text_that_is_no_group_is_refused_before_any_server_is_asked(
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
def test_a_group_is_created_read_changed_and_deleted_with_one_request_each(
    plugin: Plugin, ruler: RulerServer, backend: str
) -> None:
    namespace = {"mimir": "gpu fleet/a", "loki": "gpu fleet"}[backend]
    inputs = plugin.checked(GROUP, group(ruler, backend=backend, namespace=namespace, tenant="us-west"))
    id_, outputs = plugin.create(GROUP, inputs)
    assert id_ == f"{backend}/{namespace}/fleet"
    assert outputs == {"rules": KEPT}
    assert yaml.safe_load(KEPT) == ruler.groups[backend, "us-west", namespace, "fleet"]

    read = plugin.read(GROUP, id_, inputs, outputs)
    assert (decode(read.properties), decode(read.inputs)) == (outputs, inputs), "what nobody changed must not look changed"

    changed = plugin.checked(
        GROUP, group(ruler, backend=backend, namespace=namespace, tenant="us-west", rules=RULES.replace("60s", "30s"))
    )
    plugin.update(GROUP, id_, inputs, changed)
    assert ruler.groups[backend, "us-west", namespace, "fleet"]["interval"] == "30s"

    plugin.delete(GROUP, id_, changed)
    assert not ruler.groups
    assert [request.split()[0] for request in ruler.requests] == ["POST", "GET", "POST", "DELETE"]


def test_a_group_that_somebody_changed_is_read_as_it_is_and_differs(plugin: Plugin, ruler: RulerServer) -> None:
    inputs = plugin.checked(GROUP, group(ruler))
    id_, outputs = plugin.create(GROUP, inputs)
    ruler.groups["mimir", "", "gpu fleet/a", "fleet"]["rules"].pop()
    read = plugin.read(GROUP, id_, inputs, outputs)
    assert "record" not in decode(read.properties)["rules"]
    diff = plugin.diff(GROUP, decode(read.inputs), inputs, decode(read.properties))
    assert list(diff.detailedDiff) == ["rules"]


def test_a_group_that_somebody_deleted_is_gone(plugin: Plugin, ruler: RulerServer) -> None:
    inputs = plugin.checked(GROUP, group(ruler))
    assert plugin.read(GROUP, "mimir/gpu fleet/a/fleet", inputs).id == ""
    plugin.delete(GROUP, "mimir/gpu fleet/a/fleet", inputs)


def test_a_server_that_refuses_at_a_refresh_is_said_and_the_group_kept(plugin: Plugin, ruler: RulerServer) -> None:
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


def test_a_preview_asks_no_server_and_unknown_rules_survive_it(plugin: Plugin, ruler: RulerServer) -> None:
    inputs = plugin.checked(GROUP, group(ruler, rules=UNKNOWN, url=UNKNOWN))
    assert plugin.create(GROUP, inputs, preview=True)[1] == {"rules": UNKNOWN}
    plugin.update(GROUP, "x", inputs, inputs, preview=True)
    assert not ruler.requests


def test_a_mistake_in_an_expression_is_told_in_one_line(plugin: Plugin, ruler: RulerServer) -> None:
    inputs = plugin.checked(GROUP, group(ruler, rules="name: fleet\nrules: [{alert: GpuLost, expr: sum(}]"))
    with pytest.raises(Failure) as failure:
        plugin.create(GROUP, inputs)
    assert failure.value.message == (
        f'rule group gpu fleet/a/fleet: {ruler.url} answered 400: group "fleet", rule 0, "GpuLost": could not parse expression: '
        "1:5: parse error: unclosed left parenthesis"
    )
    assert len(ruler.requests) == 1, "what is wrong stays wrong"
    assert failure.value.kept is None


def test_a_server_that_has_just_started_is_asked_again(plugin: Plugin, ruler: RulerServer) -> None:
    ruler.refusals = [(500, "too many unhealthy instances in the ring")]
    plugin.create(GROUP, plugin.checked(GROUP, group(ruler)))
    assert ruler.groups


def test_the_password_goes_with_the_user_and_its_refusal_names_the_key(plugin: Plugin, ruler: RulerServer) -> None:
    ruler.password = "open sesame"
    inputs = plugin.checked(GROUP, group(ruler, username="writer"))
    plugin.configure(rulerPassword="wrong sesame")
    with pytest.raises(Failure, match=r"gpu-fleet:rulersPassword") as failure:
        plugin.create(GROUP, inputs)
    assert "sesame" not in failure.value.message
    plugin.configure(rulerPassword=ruler.password)
    plugin.create(GROUP, inputs)


def test_a_server_without_a_ruler_is_told(plugin: Plugin, ruler: RulerServer) -> None:
    with pytest.raises(Failure, match=r"has no such API"):
        plugin.create(GROUP, plugin.checked(GROUP, group(ruler, url=f"{ruler.url}/api")))


# --- Alertmanager -----------------------------------------------------------------------------------------------------------


def test_a_configuration_is_always_a_secret(plugin: Plugin, ruler: RulerServer) -> None:
    response = plugin.check(ALERTS, alerts(ruler, config="route: {receiver: pager}\n"))
    assert "1b47061264138c4ac30d75fd1eb44270" in str(response.inputs.fields["config"]), "receivers hold tokens"


def test_a_configuration_is_created_read_changed_and_deleted(plugin: Plugin, ruler: RulerServer) -> None:
    inputs = plugin.checked(ALERTS, alerts(ruler, tenant="us-west", templates={"page.tmpl": "{{ . }}"}))
    id_, outputs = plugin.create(ALERTS, inputs)
    assert (id_, outputs) == ("alertmanager/us-west", {}), "outputs must not repeat what is secret"
    assert yaml.safe_load(ruler.alertmanagers["us-west"]) == {
        "template_files": {"page.tmpl": "{{ . }}"},
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


def test_a_refused_configuration_does_not_show_its_values(plugin: Plugin, ruler: RulerServer) -> None:
    inputs = plugin.checked(ALERTS, alerts(ruler, config=Secret("receiver: nobody")))
    with pytest.raises(Failure, match=r"^Alertmanager configuration: .* error validating") as failure:
        plugin.create(ALERTS, inputs)
    assert "hunter2" not in failure.value.message


def test_another_tenant_is_a_replacement(plugin: Plugin, ruler: RulerServer) -> None:
    assert plugin.diff(ALERTS, alerts(ruler), alerts(ruler, tenant="b")).replaces == ["tenant"]
