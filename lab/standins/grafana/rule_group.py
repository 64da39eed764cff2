"""grafana:alerting/ruleGroup:RuleGroup: a group of Grafana-managed alert rules."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from lab.standins.grafana.client import quoted
from lab.standins.grafana.resource import ORGANISATION, GrafanaResource, compact, id_of, is_json_object, parsed, parts_of
from lab.standins.plugin import Call, Failure
from lab.standins.properties import UNKNOWN, Properties
from lab.standins.schema import ListOf, MapOf, Object, Problem, Property

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
# The states that Grafana takes when none is named.
DEFAULT_STATES = {"noDataState": "NoData", "execErrState": "Alerting"}
# Grafana writes these into a model that does not have them.
MODEL_DEFAULTS = {"intervalMs": 1000, "maxDataPoints": 43200}
GONE = "[GET /v1/provisioning/folder/{FolderUID}/rule-groups/{Group}][404] getAlertRuleGroupNotFound"
RETRY_S, FIRST_PAUSE_S, LONGEST_PAUSE_S = 120, 0.5, 10
SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class RuleGroup(GrafanaResource):
    type_name = "grafana:alerting/ruleGroup:RuleGroup"
    inputs = INPUTS
    outputs = OUTPUTS
    autonamed = "name"

    def check(self, inputs: Properties) -> Iterator[Problem]:
        if inputs["rules"] == UNKNOWN:
            return
        if not inputs["rules"]:
            yield Problem("rules", "at least one rule is required")
        for index, rule in enumerate(inputs["rules"]):
            for name in ("for", "keepFiringFor"):
                if isinstance(duration_s(rule.get(name)), str) and rule[name] != UNKNOWN:
                    yield Problem(f"rules[{index}].{name}", f"{rule[name]!r} is not a duration such as 30s, 5m or 1d")
            for number, data in enumerate(rule["datas"] if isinstance(rule["datas"], list) else []):
                if not is_json_object(data["model"]):
                    yield Problem(f"rules[{index}].datas[{number}].model", "must be JSON: an object")

    def comparable(self, inputs: Properties) -> Properties:
        result = super().comparable(inputs)
        if isinstance(result.get("rules"), list):
            result["rules"] = [
                _comparable_rule(rule) | {"isPaused": bool(given.get("isPaused"))}
                for rule, given in zip(result["rules"], inputs["rules"], strict=True)
            ]
        return result

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        organisation = self.grafana.organisation(inputs)
        folder, name = inputs["folderUid"], inputs["name"]
        if self.grafana.find(_path(folder, name), organisation) is not None:
            raise Failure(f'rule group with name "{name}" already exists')
        return id_of(organisation, folder, name), self._put(call, organisation, folder, name, inputs)

    def update(self, call: Call, id: str, olds: Properties, news: Properties) -> Properties:
        organisation, rest = parts_of(id)
        return self._put(call, organisation, *rest.split(":", 1), news)

    def read(self, call: Call, id: str, inputs: Properties, outputs: Properties) -> tuple[Properties, Properties] | None:
        organisation, rest = parts_of(id)
        folder, name = rest.split(":", 1)
        found = self.grafana.find(_path(folder, name), organisation)
        if found is None:
            return None
        outputs = self._outputs(found, folder, name)
        rules = outputs["rules"]
        if inputs:  # what the program does not say is no input: a uid that Grafana chose
            given = [*inputs["rules"], *({} for _ in rules)]
            rules = [_as_far_as(said, rule, ("uid",)) for said, rule in zip(given, rules, strict=False)]
        return self.refreshed(inputs, {**outputs, "rules": rules}), outputs

    def delete(self, call: Call, id: str, outputs: Properties) -> None:
        """Rule by rule, and so a group that is gone is an error, as with the official plugin."""
        organisation, rest = parts_of(id)
        group = self.grafana.find(_path(*rest.split(":", 1)), organisation)
        if group is None:
            raise Failure(GONE)
        for rule in group["rules"]:
            self.grafana.change("DELETE", f"{ALERT_RULES}/{quoted(rule['uid'])}", organisation, missing_ok=True)

    def _put(self, call: Call, organisation: str, folder: str, name: str, inputs: Properties) -> Properties:
        rules = [_rule(rule, folder, name) for rule in inputs["rules"]]
        _check_uids(rules)
        body = {"title": name, "folderUid": folder, "interval": inputs["intervalSeconds"], "rules": rules}
        editable = bool(inputs.get("disableProvenance"))
        retried(call, lambda: self.grafana.change("PUT", _path(folder, name), organisation, body, editable=editable))
        return self._outputs(self.grafana.get(_path(folder, name), organisation), folder, name)

    def _outputs(self, group: dict[str, Any], folder: str, name: str) -> Properties:
        return {
            "name": name,
            "folderUid": folder,
            "intervalSeconds": group["interval"],
            "disableProvenance": not any(rule.get("provenance") for rule in group["rules"]),
            "rules": [_shown(rule) for rule in group["rules"]],
        }


def retried(call: Call, change: Callable[[], None]) -> None:
    """The official plugin takes every refusal of a rule group for a passing one: it repeats the request for two minutes, with
    growing pauses, and then ends with the last answer. Source: terraform-provider-grafana 4.44.0, putAlertRuleGroup.
    """
    ended = threading.Event()
    until, pause_s = time.monotonic() + RETRY_S, FIRST_PAUSE_S
    with call.ending(ended.set):
        while True:
            try:
                return change()
            except Failure:
                left_s = until - time.monotonic()
                if left_s <= 0 or ended.wait(min(pause_s, left_s)):
                    raise
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _check_uids(rules: list[dict[str, Any]]) -> None:
    seen: dict[str, str] = {}
    for uid, title in ((rule["uid"], rule["title"]) for rule in rules if rule.get("uid")):
        if uid in seen:
            both = f'Rules with name "{seen[uid]}" and "{title}" have the same uid'
            raise Failure(f'rule with UID "{uid}" is defined more than once. {both}')
        seen[uid] = title


def duration_s(text: Any) -> Any:
    """Seconds; what is no duration as it is."""
    if not isinstance(text, str) or not re.fullmatch(r"(\d+(ms|[smhdw]))+", text):
        return 0 if text in ("0", None, "") else text
    return sum(int(number) * SECONDS[unit] for number, unit in re.findall(r"(\d+)(ms|[smhdw])", text))


def _path(folder: str, name: str) -> str:
    return f"/api/v1/provisioning/folder/{quoted(folder)}/rule-groups/{quoted(name)}"


def _as_far_as(said: Properties, rule: Properties, names: tuple[str, ...]) -> Properties:
    """The rule, with those of `names` alone that were said."""
    return {key: value for key, value in rule.items() if key not in names or key in said}


def _comparable_rule(rule: Any) -> Any:
    if not isinstance(rule, dict):
        return rule
    rule = {**rule, "for": duration_s(rule.get("for")), "keepFiringFor": duration_s(rule.get("keepFiringFor"))}
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
    if not rule.get("condition"):
        raise Failure('"condition" is required')
    sent = {**DEFAULT_STATES, **{field: rule[name] for name, field in RULE_FIELDS.items() if name in rule}}
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
    return shown
