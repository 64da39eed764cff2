"""grafana:alerting/ruleGroup:RuleGroup: a group of Grafana-managed alert rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from lab.standins.grafana.client import quoted
from lab.standins.grafana.resource import ORGANISATION, GrafanaResource, compact, id_of, is_json_object, parsed, parts_of
from lab.standins.plugin import Call, Failure
from lab.standins.properties import UNKNOWN, Properties
from lab.standins.schema import ListOf, MapOf, Mistake, Object, Property

ALERT_RULES = "/api/v1/provisioning/alert-rules"
OF = "grafana:alerting/RuleGroupRule"
TIME_RANGE = Object(
    f"{OF}DataRelativeTimeRange:RuleGroupRuleDataRelativeTimeRange",
    {"from": Property(type="integer", required=True), "to": Property(type="integer", required=True)},
)
DATA = Object(
    f"{OF}Data:RuleGroupRuleData",
    {
        "refId": Property(required=True),
        "datasourceUid": Property(required=True),
        "model": Property(required=True),
        "queryType": Property(),
        "relativeTimeRange": Property(type=TIME_RANGE, required=True),
    },
)
SETTINGS = Object(
    f"{OF}NotificationSettings:RuleGroupRuleNotificationSettings",
    {
        "contactPoint": Property(),
        "groupBies": Property(type=ListOf("string")),
        "groupWait": Property(),
        "groupInterval": Property(),
        "repeatInterval": Property(),
        "muteTimings": Property(type=ListOf("string")),
        "activeTimings": Property(type=ListOf("string")),
    },
)
RECORD = Object(
    f"{OF}Record:RuleGroupRuleRecord",
    {"metric": Property(required=True), "from": Property(required=True), "targetDatasourceUid": Property()},
)
RULE = Object(
    f"{OF}:RuleGroupRule",
    {
        "uid": Property(),
        "name": Property(required=True),
        "condition": Property(),
        "datas": Property(type=ListOf(DATA), required=True),
        "for": Property(),
        "keepFiringFor": Property(),
        "noDataState": Property(),
        "execErrState": Property(),
        "missingSeriesEvalsToResolve": Property(type="integer"),
        "labels": Property(type=MapOf("string")),
        "annotations": Property(type=MapOf("string")),
        "isPaused": Property(type="boolean"),
        "notificationSettings": Property(type=SETTINGS),
        "record": Property(type=RECORD),
    },
)
INPUTS = {
    "name": Property(replaces=True),
    "folderUid": Property(required=True, replaces=True),
    "intervalSeconds": Property(type="integer", required=True),
    "rules": Property(type=ListOf(RULE), required=True),
    "disableProvenance": Property(type="boolean", default=False),
    "orgId": ORGANISATION,
}
OUTPUTS: dict[str, Property] = {}
# Our name of a rule's field, and the API's.
RULE_FIELDS = {
    "uid": "uid",
    "name": "title",
    "condition": "condition",
    "for": "for",
    "keepFiringFor": "keep_firing_for",
    "noDataState": "noDataState",
    "execErrState": "execErrState",
    "missingSeriesEvalsToResolve": "missingSeriesEvalsToResolve",
    "labels": "labels",
    "annotations": "annotations",
    "isPaused": "isPaused",
}
SETTINGS_FIELDS = {
    "contactPoint": "receiver",
    "groupBies": "group_by",
    "groupWait": "group_wait",
    "groupInterval": "group_interval",
    "repeatInterval": "repeat_interval",
    "muteTimings": "mute_time_intervals",
    "activeTimings": "active_time_intervals",
}
RECORD_FIELDS = {"metric": "metric", "from": "from", "targetDatasourceUid": "target_datasource_uid"}
# What a recording rule has none of; of an alert rule the state that Grafana takes when none is named.
ONLY_ALERTING = ("for", "keepFiringFor", "missingSeriesEvalsToResolve", "noDataState", "execErrState", "condition")
DEFAULT_STATES = {"noDataState": "NoData", "execErrState": "Alerting"}
# Grafana writes these into a model that does not have them.
MODEL_DEFAULTS = {"intervalMs": 1000, "maxDataPoints": 43200}
SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class RuleGroup(GrafanaResource):
    type_name = "grafana:alerting/ruleGroup:RuleGroup"
    inputs = INPUTS
    outputs = OUTPUTS
    autonamed = "name"

    def check(self, inputs: Properties) -> Iterator[Mistake]:
        if inputs["rules"] == UNKNOWN:
            return
        if not inputs["rules"]:
            yield Mistake("rules", "at least one rule is required")
        for index, rule in enumerate(inputs["rules"]):
            for name in ("for", "keepFiringFor"):
                if isinstance(duration_s(rule.get(name)), str) and rule[name] != UNKNOWN:
                    yield Mistake(f"rules[{index}].{name}", f"{rule[name]!r} is not a duration such as 30s, 5m or 1d")
            for number, data in enumerate(rule["datas"] if isinstance(rule["datas"], list) else []):
                if not is_json_object(data["model"]):
                    yield Mistake(f"rules[{index}].datas[{number}].model", "must be JSON: an object")

    def comparable(self, inputs: Properties) -> Properties:
        result = super().comparable(inputs)
        if isinstance(result.get("rules"), list):
            result["rules"] = [_comparable_rule(rule) for rule in result["rules"]]
        return result

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        organisation = self.grafana.organisation(inputs)
        folder, name = inputs["folderUid"], inputs["name"]
        if self.grafana.find(_path(folder, name), organisation) is not None:
            raise Failure(f'rule group with name "{name}" already exists')
        return id_of(organisation, folder, name), self._put(organisation, folder, name, inputs)

    def update(self, call: Call, id: str, olds: Properties, news: Properties) -> Properties:
        organisation, rest = parts_of(id)
        return self._put(organisation, *rest.split(":", 1), news)

    def read(self, call: Call, id: str, inputs: Properties, outputs: Properties) -> tuple[Properties, Properties] | None:
        organisation, rest = parts_of(id)
        folder, name = rest.split(":", 1)
        found = self.grafana.find(_path(folder, name), organisation)
        if found is None:
            return None
        outputs = self._outputs(found, folder, name)
        # A uid that Grafana chose is no input.
        given = inputs.get("rules", [])
        chosen = [bool(inputs) and not (index < len(given) and given[index].get("uid")) for index in range(len(outputs["rules"]))]
        rules = [_without(rule, "uid") if is_chosen else rule for rule, is_chosen in zip(outputs["rules"], chosen, strict=True)]
        return self.refreshed(inputs, {**outputs, "rules": rules}), outputs

    def delete(self, call: Call, id: str, outputs: Properties) -> None:
        organisation, rest = parts_of(id)
        self.grafana.change("DELETE", _path(*rest.split(":", 1)), organisation, missing_ok=True)

    def _put(self, organisation: str, folder: str, name: str, inputs: Properties) -> Properties:
        self._check_names(organisation, folder, name, inputs["rules"])
        rules = [_rule(rule, folder, name) for rule in inputs["rules"]]
        body = {"title": name, "folderUid": folder, "interval": inputs["intervalSeconds"], "rules": rules}
        editable = bool(inputs.get("disableProvenance"))
        self.grafana.change("PUT", _path(folder, name), organisation, body, editable=editable)
        return self._outputs(self.grafana.get(_path(folder, name), organisation), folder, name)

    def _check_names(self, organisation: str, folder: str, group: str, rules: list[Properties]) -> None:
        """Grafana takes equal titles since version 12, the official plugin does not."""
        names = [rule["name"] for rule in rules]
        for name in names:
            if names.count(name) > 1:
                raise Failure(f'rule with name "{name}" is defined more than once')
        for rule in self.grafana.get(ALERT_RULES, organisation):
            if rule["title"] in names and rule["folderUID"] == folder and rule["ruleGroup"] != group:
                raise Failure(f'rule with name "{rule["title"]}" already exists in the folder')

    def _outputs(self, group: dict[str, Any], folder: str, name: str) -> Properties:
        return {
            "name": name,
            "folderUid": folder,
            "intervalSeconds": group["interval"],
            "disableProvenance": not any(rule.get("provenance") for rule in group["rules"]),
            "rules": [_shown(rule) for rule in group["rules"]],
        }


def duration_s(text: Any) -> Any:
    """Seconds; what is no duration as it is."""
    if not isinstance(text, str) or not re.fullmatch(r"(\d+(ms|[smhdw]))+", text):
        return 0 if text in ("0", None, "") else text
    return sum(int(number) * SECONDS[unit] for number, unit in re.findall(r"(\d+)(ms|[smhdw])", text))


def _path(folder: str, name: str) -> str:
    return f"/api/v1/provisioning/folder/{quoted(folder)}/rule-groups/{quoted(name)}"


def _without(rule: Properties, name: str) -> Properties:
    return {key: value for key, value in rule.items() if key != name}


def _comparable_rule(rule: Any) -> Any:
    if not isinstance(rule, dict):
        return rule
    rule = {**rule, "for": duration_s(rule.get("for")), "keepFiringFor": duration_s(rule.get("keepFiringFor"))}
    if "record" not in rule:
        rule = {**DEFAULT_STATES, **rule}
    if isinstance(rule.get("datas"), list):
        rule["datas"] = [{**data, "model": _model(data["model"])} for data in rule["datas"]]
    return rule


def _model(text: str) -> str:
    model = parsed(text)
    if not isinstance(model, dict):
        return text
    return compact({name: value for name, value in model.items() if MODEL_DEFAULTS.get(name) != value})


def _rule(rule: Properties, folder: str, group: str) -> dict[str, Any]:
    if "record" in rule:
        for name in ONLY_ALERTING:
            if rule.get(name):
                raise Failure(f'conflicting fields "record" and "{name}"')
    elif not rule.get("condition"):
        raise Failure('"condition" is required')
    sent = {field: rule[name] for name, field in RULE_FIELDS.items() if name in rule}
    if "record" in rule:
        sent["record"] = _renamed(rule["record"], RECORD_FIELDS)
    else:
        sent = {**DEFAULT_STATES, **sent}
    if "notificationSettings" in rule:
        sent["notification_settings"] = _renamed(rule["notificationSettings"], SETTINGS_FIELDS)
    queries = [{**data, "queryType": data.get("queryType", ""), "model": json.loads(data["model"])} for data in rule["datas"]]
    times = {"for": sent.get("for") or "0s", "keep_firing_for": sent.get("keep_firing_for") or "0s"}
    return {**sent, **times, "data": queries, "folderUID": folder, "ruleGroup": group, "orgID": 1}


def _shown(rule: dict[str, Any]) -> Properties:
    shown = {name: rule.get(field) for name, field in RULE_FIELDS.items()}
    shown["datas"] = [
        {name: query.get(name) for name in ("refId", "datasourceUid", "queryType", "relativeTimeRange")}
        | {"model": _model(compact(query["model"]))}
        for query in rule["data"]
    ]
    for name, field, fields in (
        ("record", "record", RECORD_FIELDS),
        ("notificationSettings", "notification_settings", SETTINGS_FIELDS),
    ):
        if rule.get(field):
            shown[name] = {ours: rule[field].get(theirs) for ours, theirs in fields.items()}
    return shown


def _renamed(given: Properties, fields: dict[str, str]) -> dict[str, Any]:
    return {fields[name]: value for name, value in given.items()}
