"""Mute timings: /api/v1/provisioning/mute-timings."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Mapping
from typing import Any

from lab.grafana.api.call import Answer, Call, Route
from lab.grafana.api.policies import routes_of, timings_of
from lab.grafana.errors import ApiError
from lab.grafana.store import Store

WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)


class MuteTimings:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._timings: dict[str, Any] = store.data["mute_timings"]

    def routes(self) -> list[Route]:
        one = "/api/v1/provisioning/mute-timings/{name}"
        return [
            Route("GET", "/api/v1/provisioning/mute-timings", self.all),
            Route("POST", "/api/v1/provisioning/mute-timings", self.create),
            Route("GET", one, self.one),
            Route("PUT", one, self.update),
            Route("DELETE", one, self.delete),
        ]

    def all(self, call: Call) -> Answer:
        return Answer(list(self._timings.values()))

    def one(self, call: Call) -> Answer:
        return Answer(self._find(call.path["name"]))

    def create(self, call: Call) -> Answer:
        given = call.document()
        if given.get("name") in self._timings:
            raise ApiError(
                400,
                "Time interval with this name already exists. Use a different name or update existing one.",
                messageId="alerting.notifications.time-intervals.nameExists",
            )
        return Answer(self._save(given.get("name") or "", given, call.provenance), 201)

    def update(self, call: Call) -> Answer:
        self._find(call.path["name"])
        return Answer(self._save(call.path["name"], call.document(), call.provenance), 202)

    def delete(self, call: Call) -> Answer:
        name = call.path["name"]
        if name in self._timings and any(name in timings_of(route) for route in routes_of(self._store.data["policy"])):
            raise ApiError(409, "Time interval is used", messageId="alerting.notifications.time-intervals.used")
        self._timings.pop(name, None)
        self._store.save()
        return Answer(None, 204)

    def _find(self, name: str) -> dict[str, Any]:
        if name not in self._timings:
            raise ApiError(404, f"Time interval {name} not found", messageId="alerting.notifications.time-intervals.notFound")
        return self._timings[name]

    def _save(self, name: str, given: Mapping[str, Any], provenance: str) -> dict[str, Any]:
        """Empty conditions are not kept: `omitempty` in prometheus/alertmanager, timeinterval.TimeInterval, read 2026-11-22."""
        if not name:
            raise _invalid("missing name in time interval")
        intervals = given.get("time_intervals") or []
        for interval in intervals:
            _check(interval)
        kept = [{key: value for key, value in interval.items() if value} for interval in intervals]
        self._timings[name] = {"name": name, "time_intervals": kept, "version": "", "provenance": provenance}
        self._store.save()
        return self._timings[name]


def _check(interval: Mapping[str, Any]) -> None:
    for span in interval.get("times") or []:
        start, end = (_minutes(span.get(name)) for name in ("start_time", "end_time"))
        if start >= end:
            raise _invalid("start time cannot be equal or greater than end time")
    _check_ranges(interval.get("weekdays"), "weekday", lambda day: day in WEEKDAYS)
    _check_ranges(interval.get("months"), "month", lambda month: month in MONTHS or _is_within(month, 1, 12))
    _check_ranges(interval.get("days_of_month"), "day of the month", lambda day: _is_within(day.lstrip("-"), 1, 31))
    _check_ranges(interval.get("years"), "year", str.isdigit)
    if (location := interval.get("location")) and location not in zoneinfo.available_timezones():
        raise _invalid(f"unknown time zone {location}")


def _minutes(text: Any) -> int:
    found = re.fullmatch(r"([01]?\d|2[0-4]):([0-5]\d)", text or "")
    minutes = int(found[1]) * 60 + int(found[2]) if found else None
    if minutes is None or minutes > 24 * 60:
        raise _invalid(f"couldn't parse timestamp {text}, invalid format")
    return minutes


def _check_ranges(ranges: Any, what: str, is_valid: Any) -> None:
    for written in ranges or []:
        ends = str(written).lower().split(":")
        if len(ends) > 2 or not all(is_valid(end) for end in ends):
            raise _invalid(f"{written} is not a valid {what}")


def _is_within(text: str, least: int, most: int) -> bool:
    return text.isdigit() and least <= int(text) <= most


def _invalid(what: str) -> ApiError:
    return ApiError(
        400,
        "Time interval is in invalid format. Correct the payload and try again.",
        messageId="alerting.notifications.time-intervals.invalidFormat",
        extra={"Error": what},
    )
