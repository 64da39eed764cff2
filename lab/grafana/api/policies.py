"""The notification policy tree, of which there is one: /api/v1/provisioning/policies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lab.grafana.api import durations
from lab.grafana.api.call import Answer, Call, Route
from lab.grafana.errors import ApiError
from lab.grafana.store import DEFAULT_POLICY, Store

MATCHES = ("=", "!=", "=~", "!~")


class Policies:
    def __init__(self, store: Store) -> None:
        self._store = store

    def routes(self) -> list[Route]:
        path = "/api/v1/provisioning/policies"
        return [Route("GET", path, self.tree), Route("PUT", path, self.replace), Route("DELETE", path, self.reset)]

    def tree(self, call: Call) -> Answer:
        return Answer(self._store.data["policy"])

    def replace(self, call: Call) -> Answer:
        tree = call.document()
        if not tree.get("receiver"):
            raise _invalid("root route must specify a default receiver")
        if tree.get("object_matchers") or tree.get("matchers"):
            raise _invalid("root route must not have any matchers")
        if tree.get("mute_time_intervals") or tree.get("active_time_intervals"):
            raise _invalid("root route must not have any mute time intervals")
        for route in routes_of(tree):
            self._check(route)
        self._store.data["policy"] = {**tree, "provenance": call.provenance}
        self._store.save()
        return Answer({"message": "policies updated"}, 202)

    def reset(self, call: Call) -> Answer:
        self._store.data["policy"] = dict(DEFAULT_POLICY)
        self._store.save()
        return Answer(self._store.data["policy"], 202)

    def _check(self, route: Mapping[str, Any]) -> None:
        receiver = route.get("receiver")
        if receiver and receiver not in {point["name"] for point in self._store.data["contact_points"]}:
            raise _invalid(f"receiver '{receiver}' does not exist")
        for timing in timings_of(route):
            if timing not in self._store.data["mute_timings"]:
                raise _invalid(f"time interval '{timing}' does not exist")
        labels = route.get("group_by") or []
        if len(set(labels)) < len(labels):
            raise _invalid(f"duplicated label in group_by: {', '.join(labels)}")
        if "..." in labels and len(labels) > 1:
            raise _invalid("cannot have wildcard group_by (`...`) and other labels at the same time")
        for name in ("group_wait", "group_interval", "repeat_interval"):
            if route.get(name):
                wait_s = durations.seconds(route[name])
                if wait_s is None:
                    raise _invalid(f"{name}: not a valid duration string: {route[name]!r}")
                if not wait_s and name != "group_wait":
                    raise _invalid(f"{name} cannot be zero")
        for matcher in route.get("object_matchers") or []:
            _check_matcher(matcher)


def _check_matcher(matcher: Any) -> None:
    if not isinstance(matcher, list) or len(matcher) != 3 or matcher[1] not in MATCHES:
        raise _invalid(f"unknown matcher {matcher}: a label, one of {', '.join(MATCHES)}, and a value are expected")
    if matcher[1].endswith("~"):
        try:
            re.compile(matcher[2])
        except re.error as error:
            raise _invalid(f"invalid regular expression {matcher[2]!r}: {error}") from None


def routes_of(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The root and everything below it."""
    yield tree
    for child in tree.get("routes") or []:
        yield from routes_of(child)


def receivers_of(tree: Mapping[str, Any]) -> set[str]:
    return {route["receiver"] for route in routes_of(tree) if route.get("receiver")}


def timings_of(route: Mapping[str, Any]) -> list[str]:
    return [*(route.get("mute_time_intervals") or []), *(route.get("active_time_intervals") or [])]


def _invalid(what: str) -> ApiError:
    return ApiError(400, f"invalid object specification: {what}")
