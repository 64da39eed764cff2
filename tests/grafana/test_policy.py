"""Contact points and the notification policy: the same as Mimir's Alertmanager has, in Grafana's words."""

from __future__ import annotations

from alerts.alertmanager import alertmanager_config
from alerts.notifications import Email, MuteTiming, Notifications, PagerDuty, Receiver, Route, Slack, Webhook
from components.grafana.policy import FOR_EVER, as_grafana_can, contact_point, mute_timing, policy

TEAM = Receiver(name="team", channels=(Webhook(url="https://hooks.example.com/"),))
ONCALL = Receiver(name="oncall", channels=(PagerDuty(routing_key="the-key"),))
EVERYONE = Receiver(
    name="everyone",
    channels=(
        Webhook(url="https://a.example.com/", username="u", password="p"),
        Webhook(url="https://b.example.com/", bearer_token="t", send_resolved=False),
        Slack(url="https://hooks.example.com/x", channel="#gpu"),
        PagerDuty(routing_key="k"),
        Email(to="a@example.com", sender="b@example.com", smarthost="smtp.example.com:587", username="u", password="p"),
    ),
)
NIGHTS = MuteTiming(name="nights", weekdays=("saturday",), times=(("22:00", "24:00"),))


def described(**changes):
    return Notifications(**({"receiver": "team", "receivers": (TEAM, ONCALL), "mute_timings": (NIGHTS,)} | changes))


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
        group_by=("cluster",),
        routes=(
            Route(receiver="oncall", matchers=("severity=critical", 'datacenter=~"eu-.*"'), mute_timings=("nights",)),
            Route(receiver="team", matchers=("cluster!=a",), group_by=("cluster",), group_wait="2m"),
        ),
    )
    of_mimir = list(leaves(alertmanager_config(given)["route"], OF_MIMIR))
    of_grafana = [
        branch for branch in leaves(policy(given), OF_GRAFANA) if not any("Datasource" in text for text in branch[0][-1])
    ]
    assert of_grafana == of_mimir


def test_queries_that_fail_are_one_notification_and_only_when_it_lasts():
    tree = policy(described(routes=(Route(receiver="oncall", matchers=("severity=critical",)),)))
    for branches in (tree["policies"][0]["policies"], tree["policies"]):
        about = next(one for one in branches if one["matchers"][0]["label"] == "alertname")
        assert about["matchers"] == [{"label": "alertname", "match": "=~", "value": "DatasourceError|DatasourceNoData"}]
        assert about["group_bies"] == ["alertname", "datasource_uid"]
        assert about["group_wait"] == "2m"
    first, second = tree["policies"][0]["policies"]
    assert "Datasource" in first["matchers"][0]["value"], "a page's branch would take them, one page per code"
    assert second["matchers"] == [{"label": "severity", "match": "=", "value": "critical"}]


def test_an_alert_s_name_is_matched_and_grouped_by_the_label_that_has_it():
    tree = policy(described(group_by=("alertname",), routes=(Route(receiver="team", matchers=('alertname="GpuXid"',)),)))
    assert tree["group_bies"] == ["alert"], "Grafana's alertname is the title of the rule, GpuXid 79"
    assert tree["policies"][0]["matchers"] == [{"label": "alert", "match": "=", "value": "GpuXid"}]


def test_every_kind_of_channel_becomes_its_integration():
    made = contact_point(EVERYONE)
    assert {kind: len(items) for kind, items in made.items()} == {"webhooks": 2, "slacks": 1, "pagerduties": 1, "emails": 1}
    basic, bearer = made["webhooks"]
    assert (basic["basic_auth_user"], basic["basic_auth_password"]) == ("u", "p")
    assert (bearer["authorization_scheme"], bearer["authorization_credentials"]) == ("Bearer", "t")
    assert [one["disable_resolve_message"] for one in made["webhooks"]] == [False, True]
    assert made["slacks"][0]["recipient"] == "#gpu"
    assert made["emails"][0]["addresses"] == ["a@example.com"]
    (receiver,) = alertmanager_config(Notifications(receiver="everyone", receivers=(EVERYONE,)))["receivers"]
    of_mimir = {kind: receiver[f"{kind}_configs"][0] for kind in ("slack", "pagerduty", "email")}
    slack, pager, email = made["slacks"][0], made["pagerduties"][0], made["emails"][0]
    assert (slack["title"], slack["text"]) == (of_mimir["slack"]["title"], of_mimir["slack"]["text"])
    assert pager["details"] == of_mimir["pagerduty"]["details"]
    assert (pager["source"], pager["class_"]) == (of_mimir["pagerduty"]["source"], of_mimir["pagerduty"]["class"])
    assert (email["subject"], email["message"]) == (of_mimir["email"]["headers"]["Subject"], of_mimir["email"]["text"])
    assert made["webhooks"][0]["message"] == of_mimir["email"]["text"]


def test_a_mute_timing_keeps_all_its_conditions():
    window = MuteTiming(name="move", days_of_month=(24,), months=("december",), years=(2026,), location="Europe/Berlin")
    assert mute_timing(window) == {
        "days_of_months": ["24"],
        "months": ["december"],
        "years": ["2026"],
        "location": "Europe/Berlin",
    }
    assert mute_timing(NIGHTS)["times"] == [{"start": "22:00", "end": "24:00"}]


def test_a_route_to_a_receiver_without_channels_is_always_muted():
    nobody = Receiver(name="nobody", channels=())
    given = described(
        receivers=(TEAM, nobody),
        routes=(
            Route(receiver="nobody", matchers=("alertname=GpuIdleWhileAllocated",)),
            Route(receiver="team", matchers=("a=b",)),
        ),
    )
    made = as_grafana_can(given)
    assert made.receivers == (TEAM,), "Grafana takes no contact point without an integration"
    quiet, loud = policy(made)["policies"][:2]
    assert (quiet["contact_point"], quiet["mute_timings"]) == ("team", [FOR_EVER.name])
    assert all(branch["mute_timings"] == [FOR_EVER.name] for branch in quiet["policies"])
    assert "mute_timings" not in loud
    assert FOR_EVER in made.mute_timings
    assert mute_timing(FOR_EVER) == {"weekdays": ["sunday:saturday"], "location": "UTC"}


def test_nothing_is_muted_where_every_receiver_has_a_channel():
    assert as_grafana_can(described()) == described()
