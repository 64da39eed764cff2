"""Contact points and the notification policy: the same as Mimir's Alertmanager has, in Grafana's words."""

from __future__ import annotations

import importlib
import inspect

import pytest

from alerts.alertmanager import alertmanager_config
from alerts.channels import KINDS, contact_point
from components.grafana.policy import FOR_EVER, as_grafana_can, mute_timing, policy
from gpu_fleet.stackfile.alerts import MuteTiming, Receiver
from tests.alerts.receivers import EVERYONE, SECRETS, section

TEAM = {"webhook": {"url": "https://hooks.example.com/"}}
ONCALL = {"pagerduty": EVERYONE["pagerduty"]}
NIGHTS = {"weekdays": ["saturday"], "times": [{"start": "22:00", "end": "24:00"}]}


def described(**changes):
    receivers = {"team": TEAM, "oncall": ONCALL}
    return section(**({"receiver": "team", "receivers": receivers, "muteTimings": {"nights": NIGHTS}} | changes))


def route(receiver, *matchers, **changes):
    return {"receiver": receiver, "matchers": list(matchers), **changes}


def leaves(tree, names, path=()):
    """Of every branch: the matchers on the way to it, its receiver, grouping, wait and mute timings."""
    here = (*path, tuple(names["matchers"](tree)))
    yield here, tree.get(names["receiver"]), tree.get(names["group"]), tree.get(names["wait"]), tree.get(names["mute"])
    for branch in tree.get(names["branches"], []):
        yield from leaves(branch, names, here)


OF_MIMIR = {
    "matchers": lambda route: [text.replace('"', "") for text in route.get("matchers", [])],
    "receiver": "receiver",
    "group": "group_by",
    "wait": "group_wait",
    "mute": "mute_time_intervals",
    "branches": "routes",
}
OF_GRAFANA = {
    "matchers": lambda route: [f"{one['label']}{one['match']}{one['value']}" for one in route.get("matchers", [])],
    "receiver": "contact_point",
    "group": "group_bies",
    "wait": "group_wait",
    "mute": "mute_timings",
    "branches": "policies",
}


def test_the_tree_is_that_of_mimir_s_alertmanager_but_for_alerts_about_queries():
    given = described(
        groupBy=["cluster"],
        routes=[
            route("oncall", "severity=critical", 'datacenter=~"eu-.*"', muteTimings=["nights"]),
            route("team", "cluster!=a", groupBy=["cluster"], groupWait="2m"),
        ],
    )
    of_mimir = list(leaves(alertmanager_config(given, SECRETS)["route"], OF_MIMIR))
    of_grafana = [
        branch for branch in leaves(policy(given), OF_GRAFANA) if not any("Datasource" in text for text in branch[0][-1])
    ]
    assert of_grafana == of_mimir


def test_queries_that_fail_are_one_notification_and_only_when_it_lasts():
    tree = policy(described(routes=[route("oncall", "severity=critical")]))
    for branches in (tree["policies"][0]["policies"], tree["policies"]):
        about = next(one for one in branches if one["matchers"][0]["label"] == "alertname")
        assert about["matchers"] == [{"label": "alertname", "match": "=~", "value": "DatasourceError|DatasourceNoData"}]
        assert about["group_bies"] == ["alertname", "datasource_uid"]
        assert about["group_wait"] == "2m"
    first, second = tree["policies"][0]["policies"]
    assert "Datasource" in first["matchers"][0]["value"], "a page's branch would take them, one page per code"
    assert second["matchers"] == [{"label": "severity", "match": "=", "value": "critical"}]


def test_an_alert_s_name_is_matched_and_grouped_by_the_label_that_has_it():
    tree = policy(described(groupBy=["alertname"], routes=[route("team", 'alertname="GpuXid"')]))
    assert tree["group_bies"] == ["alert"], "Grafana's alertname is the title of the rule, GpuXid 79"
    assert tree["policies"][0]["matchers"] == [{"label": "alert", "match": "=", "value": "GpuXid"}]


def test_every_kind_of_channel_becomes_its_integration_with_the_texts_that_alertmanager_has():
    made = contact_point(Receiver.model_validate(EVERYONE), SECRETS)
    assert {kind: len(items) for kind, items in made.items()} == {kind.grafana: 1 for kind in KINDS.values()}
    (webhook,), (slack,), (teams,), (pager,), (email,) = made.values()
    assert (webhook["basic_auth_user"], webhook["basic_auth_password"]) == ("u", "p")
    assert (slack["recipient"], teams["url"], pager["integration_key"]) == ("#gpu", SECRETS["teamsUrl"], "the-key")
    assert email["addresses"] == ["a@example.com"]
    (receiver,) = alertmanager_config(section(receivers={"everyone": EVERYONE}), SECRETS)["receivers"]
    of_mimir = {kind: receiver[f"{kind}_configs"][0] for kind in ("slack", "msteamsv2", "pagerduty", "email")}
    assert (slack["title"], slack["text"]) == (of_mimir["slack"]["title"], of_mimir["slack"]["text"])
    assert (teams["title"], teams["message"]) == (of_mimir["msteamsv2"]["title"], of_mimir["msteamsv2"]["text"])
    assert pager["details"] == of_mimir["pagerduty"]["details"]
    assert (pager["source"], pager["class_"]) == (of_mimir["pagerduty"]["source"], of_mimir["pagerduty"]["class"])
    assert (email["subject"], email["message"]) == (of_mimir["email"]["headers"]["Subject"], of_mimir["email"]["text"])
    assert webhook["message"] == of_mimir["email"]["text"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the SDK warns about its own old classes
@pytest.mark.parametrize("kind", [kind.grafana for kind in KINDS.values()])
def test_the_plugin_knows_every_argument(kind):
    (given,) = contact_point(Receiver.model_validate(EVERYONE), SECRETS)[kind]
    name = {"pagerduties": "Pagerduty"}.get(kind, kind.removesuffix("s").capitalize())
    known = inspect.signature(
        getattr(importlib.import_module("pulumiverse_grafana.alerting"), f"ContactPoint{name}Args")
    ).parameters
    assert set(given) <= set(known), f"arguments of ContactPoint{name}Args"


def test_a_webhook_with_a_token_and_without_resolved_alerts():
    desk = {"webhook": {"url": "https://b.example.com/", "authorizationSecret": "deskToken", "sendResolved": False}}
    (bearer,) = contact_point(Receiver.model_validate(desk), SECRETS)["webhooks"]
    assert (bearer["authorization_scheme"], bearer["authorization_credentials"]) == ("Bearer", "t")
    assert bearer["disable_resolve_message"] is True


def test_a_mute_timing_keeps_all_its_conditions():
    window = {"daysOfMonth": [24], "months": ["december"], "years": [2026], "location": "Europe/Berlin"}
    assert mute_timing(MuteTiming.model_validate(window)) == {
        "days_of_months": ["24"],
        "months": ["december"],
        "years": ["2026"],
        "location": "Europe/Berlin",
    }
    assert mute_timing(MuteTiming.model_validate(NIGHTS))["times"] == [{"start": "22:00", "end": "24:00"}]


def test_a_route_to_a_receiver_without_channels_is_always_muted():
    given = described(
        receivers={"team": TEAM, "nobody": {}},
        routes=[route("nobody", "alertname=GpuIdleWhileAllocated"), route("team", "a=b")],
    )
    made = as_grafana_can(given)
    assert set(made.receivers) == {"team"}, "Grafana takes no contact point without an integration"
    quiet, loud = policy(made)["policies"][:2]
    assert (quiet["contact_point"], quiet["mute_timings"]) == ("team", [FOR_EVER])
    assert all(branch["mute_timings"] == [FOR_EVER] for branch in quiet["policies"])
    assert "mute_timings" not in loud
    assert FOR_EVER in made.mute_timings
    assert mute_timing(made.mute_timings[FOR_EVER]) == {"weekdays": ["sunday:saturday"], "location": "UTC"}


def test_nothing_is_muted_where_every_receiver_has_a_channel():
    assert as_grafana_can(described()) == described()
