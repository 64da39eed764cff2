"""Grafana's notification policy and mute timings from the section `alerts` of a stack file. Pure.

Routes and times are the same as in Mimir's Alertmanager configuration (alerts/alertmanager.py), except:

- A contact point needs an integration; a route to a receiver without channels is one that is always muted.
- The name that the stack file calls `alertname` is a label of its own (grafana_rules.ALERT_LABEL).
- Queries that fail are alerts too, one per rule: they are grouped, and sent only when they last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from alerts.grafana_rules import ALERT_LABEL
from alerts.notifications import PAGE_GROUP, PAGE_INTERVAL, PAGE_WAIT
from gpu_fleet.stackfile.alerts import Alerts, MuteTiming, Route
from gpu_fleet.stackfile.naming import PROJECT

if TYPE_CHECKING:
    from pulumiverse_grafana.alerting import MuteTimingIntervalArgsDict

# Names that Grafana gives to the alerts about its own queries. A Mimir that restarts is back within two minutes.
ABOUT_QUERIES: Final = "DatasourceError|DatasourceNoData"
ABOUT_QUERIES_GROUP: Final = ("alertname", "datasource_uid")
ABOUT_QUERIES_WAIT: Final = "2m"

# For routes to a receiver without channels. A range of days is what Grafana takes and a stack file does not.
FOR_EVER: Final = f"{PROJECT}-nobody"
_FOR_EVER: Final = MuteTiming.model_construct(weekdays=("sunday:saturday",))


def as_grafana_can(section: Alerts) -> Alerts:
    """The same without receivers that have no channels. The default receiver must have channels."""
    silent = {name for name, receiver in section.receivers.items() if not receiver.channels}
    if not silent:
        return section
    muted = {"receiver": section.default_receiver}
    routes = tuple(
        route.model_copy(update={**muted, "mute_timings": (*route.mute_timings, FOR_EVER)}) if route.receiver in silent else route
        for route in section.routes
    )
    return section.model_copy(
        update={
            "receivers": {name: receiver for name, receiver in section.receivers.items() if name not in silent},
            "routes": routes,
            "mute_timings": {**section.mute_timings, FOR_EVER: _FOR_EVER},
        }
    )


def policy(section: Alerts) -> dict[str, Any]:
    """The whole tree, as arguments of grafana.alerting.NotificationPolicy."""
    policies = [_policy(route) for route in section.routes]
    # After a route with `continue`, an alert that matched it would reach the default receiver as well.
    if not any(route.go_on for route in section.routes):
        policies += _branches({})
    return {
        "contact_point": section.default_receiver,
        "group_bies": _labels(section.group_by),
        "group_wait": section.group_wait,
        "group_interval": section.group_interval,
        "repeat_interval": section.repeat_interval,
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
        interval["times"] = [{"start": one.start, "end": one.end} for one in timing.times]
    if timing.days_of_month:
        interval["days_of_months"] = [str(day) for day in timing.days_of_month]
    if timing.months:
        interval["months"] = list(timing.months)
    if timing.years:
        interval["years"] = [str(year) for year in timing.years]
    if timing.location:
        interval["location"] = timing.location
    return interval
