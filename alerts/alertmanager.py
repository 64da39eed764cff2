"""Mimir's Alertmanager configuration, built from notifications.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alerts.notifications import (
    DASHBOARD,
    HTML,
    INHIBITIONS,
    PAGE_GROUP,
    PAGE_INTERVAL,
    PAGE_WAIT,
    PAGER_DETAILS,
    PAGER_FIELDS,
    PAGER_LINKS,
    PAGER_SEVERITY,
    SLACK_COLOR,
    SLACK_TEXT,
    SLACK_TITLE,
    TEMPLATE_FILE,
    TEXT,
    TITLE,
    Channel,
    Email,
    Inhibition,
    MuteTiming,
    Notifications,
    PagerDuty,
    Receiver,
    Route,
    Slack,
    Webhook,
)


def alertmanager_config(notifications: Notifications) -> dict[str, Any]:
    """The content of Alertmanager's configuration file, for to_yaml. It contains the receivers' secrets."""
    config = {
        "route": _root(notifications),
        "receivers": [_receiver(receiver) for receiver in notifications.receivers],
        "inhibit_rules": inhibit_rules(),
        "templates": list(templates()),
    }
    if notifications.mute_timings:
        config["time_intervals"] = [_time_interval(timing) for timing in notifications.mute_timings]
    return config


def inhibit_rules() -> list[dict[str, Any]]:
    """Also for an Alertmanager whose configuration is not ours."""
    return [_inhibition(inhibition) for inhibition in INHIBITIONS]


def templates() -> dict[str, str]:
    """The template files that the configuration references: file name to content."""
    return {TEMPLATE_FILE.name: TEMPLATE_FILE.read_text()}


def _root(notifications: Notifications) -> dict[str, Any]:
    routes = [_route(route) for route in notifications.routes]
    # With a route that continues, alerts that it matched would reach the default receiver as well.
    if not any(route.go_on for route in notifications.routes):
        routes.append(_page({}))
    return {
        "receiver": notifications.receiver,
        "group_by": list(notifications.group_by),
        "group_wait": notifications.group_wait,
        "group_interval": notifications.group_interval,
        "repeat_interval": notifications.repeat_interval,
        "routes": routes,
    }


def _route(route: Route) -> dict[str, Any]:
    settings = {
        "group_by": list(route.group_by) if route.group_by is not None else None,
        "group_wait": route.group_wait,
        "group_interval": route.group_interval,
        "repeat_interval": route.repeat_interval,
        "mute_time_intervals": list(route.mute_timings) or None,
        "continue": route.go_on or None,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    return {"receiver": route.receiver, "matchers": list(route.matchers), **given, "routes": [_page(given)]}


def _page(given: Mapping[str, Any]) -> dict[str, Any]:
    """The child route for pages. Grouping set on the route takes precedence; mute timings are not inherited, so they are
    repeated.
    """
    page: dict[str, Any] = {"matchers": ['severity="critical"']}
    own: dict[str, Any] = {"group_by": list(PAGE_GROUP), "group_wait": PAGE_WAIT, "group_interval": PAGE_INTERVAL}
    page.update({name: value for name, value in own.items() if name not in given})
    if "mute_time_intervals" in given:
        page["mute_time_intervals"] = given["mute_time_intervals"]
    return page


def _receiver(receiver: Receiver) -> dict[str, Any]:
    configs: dict[str, Any] = {"name": receiver.name}
    for channel in receiver.channels:
        kind, settings = _channel(channel)
        configs.setdefault(kind, []).append({"send_resolved": channel.send_resolved, **settings})
    return configs


def _channel(channel: Channel) -> tuple[str, dict[str, Any]]:
    match channel:
        case Webhook():
            login: dict[str, Any] = {}
            if channel.username is not None:
                login["basic_auth"] = {"username": channel.username, "password": channel.password}
            if channel.bearer_token is not None:
                login["authorization"] = {"credentials": channel.bearer_token}
            return "webhook_configs", {"url": channel.url, **({"http_config": login} if login else {})}
        case Slack():
            return "slack_configs", {
                "api_url": channel.url,
                "channel": channel.channel,
                "color": SLACK_COLOR,
                "title": SLACK_TITLE,
                "title_link": DASHBOARD,
                "text": SLACK_TEXT,
                "fallback": TITLE,
            }
        case PagerDuty():
            return "pagerduty_configs", {
                "routing_key": channel.routing_key,
                "description": TITLE,
                "severity": PAGER_SEVERITY,
                **PAGER_FIELDS,
                "details": PAGER_DETAILS,
                "client": "GPU Fleet",
                "client_url": DASHBOARD,
                "links": [{"text": text, "href": href} for text, href in PAGER_LINKS.items()],
            }
        case Email():
            login = {"auth_username": channel.username, "auth_password": channel.password} if channel.username else {}
            return "email_configs", {
                "to": channel.to,
                "from": channel.sender,
                "smarthost": channel.smarthost,
                **login,
                "headers": {"Subject": TITLE},
                "text": TEXT,
                "html": HTML,
            }


def _inhibition(inhibition: Inhibition) -> dict[str, Any]:
    return {
        "source_matchers": list(inhibition.source),
        "target_matchers": list(inhibition.target),
        "equal": list(inhibition.equal),
    }


def _time_interval(timing: MuteTiming) -> dict[str, Any]:
    interval: dict[str, Any] = {"location": timing.location}
    if timing.weekdays:
        interval["weekdays"] = list(timing.weekdays)
    if timing.times:
        interval["times"] = [{"start_time": start, "end_time": end} for start, end in timing.times]
    if timing.days_of_month:
        interval["days_of_month"] = [str(day) for day in timing.days_of_month]
    if timing.months:
        interval["months"] = list(timing.months)
    if timing.years:
        interval["years"] = [str(year) for year in timing.years]
    return {"name": timing.name, "time_intervals": [interval]}
