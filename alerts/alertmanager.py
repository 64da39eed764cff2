"""Mimir's Alertmanager configuration, built from the section `alerts` of a stack file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alerts import texts
from alerts.channels import TEMPLATE_FILE, Secrets, receiver_of_alertmanager
from alerts.notifications import INHIBITIONS, PAGE_GROUP, PAGE_INTERVAL, PAGE_WAIT, Inhibition
from gpu_fleet.stackfile.alerts import Alerts, MuteTiming, Route


def alertmanager_config(section: Alerts, secrets: Secrets) -> dict[str, Any]:
    """The content of Alertmanager's configuration file, for to_yaml, of a section with receivers. It contains their secrets."""
    config = {
        "route": _root(section),
        "receivers": [receiver_of_alertmanager(name, receiver, secrets) for name, receiver in section.receivers.items()],
        "inhibit_rules": inhibit_rules(),
        "templates": list(templates()),
    }
    if section.mute_timings:
        config["time_intervals"] = [_time_interval(name, timing) for name, timing in section.mute_timings.items()]
    return config


def inhibit_rules() -> list[dict[str, Any]]:
    """Also for an Alertmanager whose configuration is not ours."""
    return [_inhibition(inhibition) for inhibition in INHIBITIONS]


def templates() -> dict[str, str]:
    """The template files that the configuration references: file name to content."""
    return {TEMPLATE_FILE.name: texts.read(TEMPLATE_FILE)}


def _root(section: Alerts) -> dict[str, Any]:
    routes = [_route(route) for route in section.routes]
    # With a route that continues, alerts that it matched would reach the default receiver as well.
    if not any(route.go_on for route in section.routes):
        routes.append(_page({}))
    return {
        "receiver": section.default_receiver,
        "group_by": list(section.group_by),
        "group_wait": section.group_wait,
        "group_interval": section.group_interval,
        "repeat_interval": section.repeat_interval,
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


def _inhibition(inhibition: Inhibition) -> dict[str, Any]:
    return {
        "source_matchers": list(inhibition.source),
        "target_matchers": list(inhibition.target),
        "equal": list(inhibition.equal),
    }


def _time_interval(name: str, timing: MuteTiming) -> dict[str, Any]:
    interval: dict[str, Any] = {"location": timing.location}
    if timing.weekdays:
        interval["weekdays"] = list(timing.weekdays)
    if timing.times:
        interval["times"] = [{"start_time": one.start, "end_time": one.end} for one in timing.times]
    if timing.days_of_month:
        interval["days_of_month"] = [str(day) for day in timing.days_of_month]
    if timing.months:
        interval["months"] = list(timing.months)
    if timing.years:
        interval["years"] = [str(year) for year in timing.years]
    return {"name": name, "time_intervals": [interval]}
