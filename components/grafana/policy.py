"""Grafana's contact points, notification policy and mute timings from the description in alerts/notifications.py. Pure.

Notifications, times and receivers are the same as in Mimir's Alertmanager configuration (alerts/alertmanager.py), except:

- Mail is sent by the server of Grafana's own configuration (its section smtp): `from` and `smarthost` have no meaning there.
- A contact point needs an integration; a route to a receiver without channels is one that is always muted.
- The name that the stack file calls `alertname` is a label of its own (grafana_rules.ALERT_LABEL).
- Queries that fail are alerts too, one per rule: they are grouped, and sent only when they last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypedDict

from alerts.grafana_rules import ALERT_LABEL
from alerts.notifications import (
    DASHBOARD,
    PAGE_GROUP,
    PAGE_INTERVAL,
    PAGE_WAIT,
    PAGER_DETAILS,
    PAGER_FIELDS,
    PAGER_SEVERITY,
    SLACK_COLOR,
    SLACK_TEXT,
    SLACK_TITLE,
    TEXT,
    TITLE,
    Email,
    MuteTiming,
    Notifications,
    PagerDuty,
    Receiver,
    Route,
    Slack,
    Webhook,
)
from gpu_fleet.stackfile.naming import PROJECT

if TYPE_CHECKING:
    from pulumiverse_grafana.alerting import (
        ContactPointEmailArgsDict,
        ContactPointPagerdutyArgsDict,
        ContactPointSlackArgsDict,
        ContactPointWebhookArgsDict,
        MuteTimingIntervalArgsDict,
    )

# Names that Grafana gives to the alerts about its own queries. A Mimir that restarts is back within two minutes.
ABOUT_QUERIES: Final = "DatasourceError|DatasourceNoData"
ABOUT_QUERIES_GROUP: Final = ("alertname", "datasource_uid")
ABOUT_QUERIES_WAIT: Final = "2m"


class Integrations(TypedDict, total=False):
    """Those of one contact point, by kind, as arguments of grafana.alerting.ContactPoint."""

    webhooks: list[ContactPointWebhookArgsDict]
    slacks: list[ContactPointSlackArgsDict]
    pagerduties: list[ContactPointPagerdutyArgsDict]
    emails: list[ContactPointEmailArgsDict]


# For routes to a receiver without channels.
FOR_EVER: Final = MuteTiming(name=f"{PROJECT}-nobody", weekdays=("sunday:saturday",))


def as_grafana_can(notifications: Notifications) -> Notifications:
    """The same without receivers that have no channels. The default receiver must have channels."""
    silent = {receiver.name for receiver in notifications.receivers if not receiver.channels}
    if not silent:
        return notifications
    routes = tuple(
        replace(route, receiver=notifications.receiver, mute_timings=(*route.mute_timings, FOR_EVER.name))
        if route.receiver in silent
        else route
        for route in notifications.routes
    )
    return replace(
        notifications,
        receivers=tuple(receiver for receiver in notifications.receivers if receiver.channels),
        routes=routes,
        mute_timings=(*notifications.mute_timings, FOR_EVER),
    )


def contact_point(receiver: Receiver) -> Integrations:
    integrations: Integrations = {}
    for channel in receiver.channels:
        is_resolve_muted = not channel.send_resolved
        match channel:
            case Webhook():
                webhook = _webhook(channel)
                webhook["disable_resolve_message"] = is_resolve_muted
                integrations.setdefault("webhooks", []).append(webhook)
            case Slack():
                slack: ContactPointSlackArgsDict = {
                    "url": channel.url,
                    "recipient": channel.channel,
                    "color": SLACK_COLOR,
                    "title": SLACK_TITLE,
                    "text": SLACK_TEXT,
                    "disable_resolve_message": is_resolve_muted,
                }
                integrations.setdefault("slacks", []).append(slack)
            case PagerDuty():
                pager: ContactPointPagerdutyArgsDict = {
                    "integration_key": channel.routing_key,
                    "summary": TITLE,
                    "severity": PAGER_SEVERITY,
                    "source": PAGER_FIELDS["source"],
                    "component": PAGER_FIELDS["component"],
                    "group": PAGER_FIELDS["group"],
                    "class_": PAGER_FIELDS["class"],
                    "details": PAGER_DETAILS,
                    "client": "GPU Fleet",
                    "client_url": DASHBOARD,
                    "disable_resolve_message": is_resolve_muted,
                }
                integrations.setdefault("pagerduties", []).append(pager)
            case Email():
                email: ContactPointEmailArgsDict = {
                    "addresses": [channel.to],
                    "subject": TITLE,
                    "message": TEXT,
                    "single_email": True,
                    "disable_resolve_message": is_resolve_muted,
                }
                integrations.setdefault("emails", []).append(email)
    return integrations


def _webhook(channel: Webhook) -> ContactPointWebhookArgsDict:
    webhook: ContactPointWebhookArgsDict = {"url": channel.url, "title": TITLE, "message": TEXT}
    if channel.username is not None:
        webhook["basic_auth_user"] = channel.username
    if channel.password is not None:
        webhook["basic_auth_password"] = channel.password
    if channel.bearer_token is not None:
        webhook["authorization_scheme"] = "Bearer"
        webhook["authorization_credentials"] = channel.bearer_token
    return webhook


def policy(notifications: Notifications) -> dict[str, Any]:
    """The whole tree, as arguments of grafana.alerting.NotificationPolicy."""
    policies = [_policy(route) for route in notifications.routes]
    # After a route with `continue`, an alert that matched it would reach the default receiver as well.
    if not any(route.go_on for route in notifications.routes):
        policies += _branches({})
    return {
        "contact_point": notifications.receiver,
        "group_bies": _labels(notifications.group_by),
        "group_wait": notifications.group_wait,
        "group_interval": notifications.group_interval,
        "repeat_interval": notifications.repeat_interval,
        "policies": policies,
    }


def _policy(route: Route) -> dict[str, Any]:
    settings = {
        "group_bies": None if route.group_by is None else _labels(route.group_by),
        "group_wait": route.group_wait,
        "group_interval": route.group_interval,
        "repeat_interval": route.repeat_interval,
        "mute_timings": list(route.mute_timings) or None,
        "continue_": route.go_on or None,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    return {
        "contact_point": route.receiver,
        "matchers": [_matcher(text) for text in route.matchers],
        **given,
        "policies": list(_branches(given)),
    }


def _branches(given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Child routes for alerts about queries and for pages. The grouping of the route itself applies to pages."""
    silence = {name: value for name, value in given.items() if name == "mute_timings"}  # it is not inherited
    yield {
        "matchers": [{"label": "alertname", "match": "=~", "value": ABOUT_QUERIES}],
        "group_bies": list(ABOUT_QUERIES_GROUP),
        "group_wait": ABOUT_QUERIES_WAIT,
        **silence,
    }
    own = {"group_bies": list(PAGE_GROUP), "group_wait": PAGE_WAIT, "group_interval": PAGE_INTERVAL}
    yield {
        "matchers": [{"label": "severity", "match": "=", "value": "critical"}],
        **{name: value for name, value in own.items() if name not in given},
        **silence,
    }


def _labels(names: tuple[str, ...]) -> list[str]:
    return [_label(name) for name in names]


def _label(name: str) -> str:
    return ALERT_LABEL if name == "alertname" else name


def _matcher(text: str) -> dict[str, str]:
    """`label=value` as the stack file has it, the value with or without double quotes."""
    found = re.fullmatch(r"(\w+)\s*(=~|!~|!=|=)\s*(.*?)\s*", text, re.DOTALL)
    assert found, f"the stack file's checks let no matcher like {text} through"
    label, sign, value = found.groups()
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = json.loads(value)
    return {"label": _label(label), "match": sign, "value": value}


def mute_timing(timing: MuteTiming) -> MuteTimingIntervalArgsDict:
    """The one interval of a mute timing, as an argument of grafana.alerting.MuteTiming."""
    interval: MuteTimingIntervalArgsDict = {}
    if timing.weekdays:
        interval["weekdays"] = list(timing.weekdays)
    if timing.times:
        interval["times"] = [{"start": start, "end": end} for start, end in timing.times]
    if timing.days_of_month:
        interval["days_of_months"] = [str(day) for day in timing.days_of_month]
    if timing.months:
        interval["months"] = list(timing.months)
    if timing.years:
        interval["years"] = [str(year) for year in timing.years]
    if timing.location:
        interval["location"] = timing.location
    return interval
