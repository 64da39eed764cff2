"""grafana:alerting/muteTiming:MuteTiming."""

from __future__ import annotations

from typing import Any

from lab.standins.grafana.client import quoted
from lab.standins.grafana.resource import ORGANISATION, GrafanaResource, id_of, parts_of
from lab.standins.plugin import Call
from lab.standins.properties import Properties
from lab.standins.schema import ListOf, Object, Property

PATH = "/api/v1/provisioning/mute-timings"
POLICIES = "/api/v1/provisioning/policies"
TIME = Object(
    "grafana:alerting/MuteTimingIntervalTime:MuteTimingIntervalTime",
    {"start": Property(required=True), "end": Property(required=True)},
)
RANGES = {"weekdays": "weekdays", "daysOfMonths": "days_of_month", "months": "months", "years": "years"}
INTERVAL = Object(
    "grafana:alerting/MuteTimingInterval:MuteTimingInterval",
    {
        "times": Property(type=ListOf(TIME)),
        **dict.fromkeys(RANGES, Property(type=ListOf("string"))),
        "location": Property(),
    },
)
INPUTS = {
    "name": Property(replaces=True),
    "intervals": Property(type=ListOf(INTERVAL)),
    "disableProvenance": Property(type="boolean", default=False, replaces=True),
    "orgId": ORGANISATION,
}
OUTPUTS: dict[str, Property] = {}
MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)


class MuteTiming(GrafanaResource):
    type_name = "grafana:alerting/muteTiming:MuteTiming"
    inputs = INPUTS
    outputs = OUTPUTS
    autonamed = "name"
    write_only = frozenset({"disableProvenance"})

    def comparable(self, inputs: Properties) -> Properties:
        result = super().comparable(inputs)
        if isinstance(result.get("intervals"), list):
            result["intervals"] = [_comparable(interval) for interval in result["intervals"]]
        return result

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        organisation = self.grafana.organisation(inputs)
        self.grafana.change("POST", PATH, organisation, _body(inputs), editable=bool(inputs.get("disableProvenance")))
        return id_of(organisation, inputs["name"]), {}

    def update(self, call: Call, id: str, olds: Properties, news: Properties) -> Properties:
        organisation, name = parts_of(id)
        path = f"{PATH}/{quoted(name)}"
        self.grafana.change("PUT", path, organisation, _body(news), editable=bool(news.get("disableProvenance")))
        return {}

    def read(self, call: Call, id: str, inputs: Properties, outputs: Properties) -> tuple[Properties, Properties] | None:
        organisation, name = parts_of(id)
        found = self.grafana.find(f"{PATH}/{quoted(name)}", organisation)
        if found is None:
            return None
        live = {"name": name, "intervals": [_shown(interval) for interval in found["time_intervals"]]}
        return self.refreshed(inputs, live), live

    def delete(self, call: Call, id: str, outputs: Properties) -> None:
        """Grafana keeps one that a policy names, so it is taken out of the policies first, as the official plugin does."""
        organisation, name = parts_of(id)
        tree = self.grafana.get(POLICIES, organisation)
        without = _without(tree, name)
        if without != tree:
            self.grafana.change("PUT", POLICIES, organisation, without, editable=not tree.get("provenance"))
        self.grafana.change("DELETE", f"{PATH}/{quoted(name)}", organisation, missing_ok=True)


def _comparable(interval: Any) -> Any:
    if not isinstance(interval, dict) or not isinstance(interval.get("months"), list):
        return interval
    return {**interval, "months": [":".join(_number(end) for end in str(month).split(":")) for month in interval["months"]]}


def _number(month: str) -> str:
    return str(MONTHS.index(month.lower()) + 1) if month.lower() in MONTHS else month


def _body(inputs: Properties) -> dict[str, Any]:
    """Lists that are not given are sent too, empty, as the official plugin's client does."""
    intervals = []
    for interval in inputs.get("intervals", []):
        body = {field: interval.get(name) or [] for name, field in RANGES.items()}
        body["times"] = [{"start_time": time["start"], "end_time": time["end"]} for time in interval.get("times") or []]
        if interval.get("location"):
            body["location"] = interval["location"]
        intervals.append(body)
    return {"name": inputs["name"], "time_intervals": intervals}


def _shown(interval: dict[str, Any]) -> Properties:
    shown: Properties = {name: interval[field] for name, field in RANGES.items() if interval.get(field)}
    if interval.get("times"):
        shown["times"] = [{"start": time["start_time"], "end": time["end_time"]} for time in interval["times"]]
    return {**shown, "location": interval["location"]} if interval.get("location") else shown


def _without(route: dict[str, Any], timing: str) -> dict[str, Any]:
    cleaned = dict(route)
    if timing in (route.get("mute_time_intervals") or []):
        cleaned["mute_time_intervals"] = [name for name in route["mute_time_intervals"] if name != timing]
    if route.get("routes"):
        cleaned["routes"] = [_without(child, timing) for child in route["routes"]]
    return cleaned
