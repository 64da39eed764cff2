"""The state of the alert rules: /api/prometheus/grafana/api/v1/rules, whose alerts Grafana's scheduler would keep.

A rule is evaluated when somebody asks, by what Grafana documents: a node of the condition whose value is 0 is normal, any other
value, NaN too, alerts; no row is "no data" and a query that fails is "error", and the rule says what becomes of these. Of the
server-side expressions there are `threshold` (gt, lt) and the one `math` that makes 1 of every number. Source: Grafana's
documentation of alert rule evaluation and its pkg/services/ngalert/eval/eval.go, v12.4, read 2026-11-21.

Not done here: templates of annotations, and notifications.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from lab.grafana.api import durations
from lab.grafana.proxy import login
from lab.grafana.store import Store

TIMEOUT_S = 30
INSTANT = {"prometheus": "api/v1/query", "loki": "loki/api/v1/query"}
ANY_NUMBER = re.compile(r"is_number\(\$(\w+)\) \|\| is_nan\(\$\1\) \|\| is_inf\(\$\1\)")
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {"gt": lambda a, b: a > b, "lt": lambda a, b: a < b}
# What a rule says of no data and of errors, and the state that its alert is in then.
OUTCOMES = {"OK": "Normal", "Alerting": "Alerting", "NoData": "NoData", "Error": "Error", "KeepLast": "Normal"}

Row = tuple[dict[str, str], float]  # labels and value


class EvaluationError(Exception):
    """A query or an expression failed; the rule is in state Error."""


@dataclass
class Evaluator:
    """`store` holds rules and data sources. Remembers since when which alert is active, which is what `for` counts from."""

    store: Store

    def __post_init__(self) -> None:
        self._active_since: dict[tuple[str, str], float] = {}

    async def rules(self, request: web.Request) -> web.StreamResponse:
        """Groups of one folder with `?folder_uid=`, else all."""
        folder = request.query.get("folder_uid")
        groups = [group for group in self.store.data["rule_groups"].values() if folder in (None, group["folderUid"])]
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:
            shown = [
                {
                    "name": group["title"],
                    "file": self.store.data["folders"][group["folderUid"]]["title"],
                    "folderUid": group["folderUid"],
                    "interval": group["interval"],
                    "rules": [await self._rule(session, rule) for rule in group["rules"]],
                }
                for group in groups
            ]
        return web.json_response({"status": "success", "data": {"groups": shown}})

    async def _rule(self, session: aiohttp.ClientSession, rule: Mapping[str, Any]) -> dict[str, Any]:
        error = ""
        try:
            rows = await self._condition(session, rule)
            health, states = "ok", [(labels, value, "Normal" if value == 0 else "Alerting") for labels, value in rows]
            if not rows:
                health, states = "nodata", [({}, math.nan, OUTCOMES[rule["noDataState"]])]
        except EvaluationError as failure:
            health, states, error = "error", [({}, math.nan, OUTCOMES[rule["execErrState"]])], str(failure)
        alerts = [self._alert(rule, *state) for state in states]
        self._forget_others(rule, alerts)
        state = "firing" if any(alert["state"] in ("Alerting", "NoData", "Error") for alert in alerts) else "inactive"
        if state == "inactive" and any(alert["state"] == "Pending" for alert in alerts):
            state = "pending"
        return {
            "uid": rule["uid"],
            "name": rule["title"],
            "type": "alerting",
            "state": state,
            "health": health,
            "lastError": error,
            "labels": rule["labels"],
            "annotations": rule["annotations"],
            "alerts": alerts,
        }

    def _alert(self, rule: Mapping[str, Any], labels: Mapping[str, str], value: float, state: str) -> dict[str, Any]:
        name = {"NoData": "DatasourceNoData", "Error": "DatasourceError"}.get(state, rule["title"])
        labels = {**rule["labels"], **labels, "alertname": name}
        key = rule["uid"], json.dumps(labels, sort_keys=True)
        if state == "Normal":
            self._active_since.pop(key, None)
        else:
            since = self._active_since.setdefault(key, time.time())
            if time.time() - since < (durations.seconds(rule["for"]) or 0):
                state = "Pending"
        return {"labels": labels, "state": state, "value": f"{value:g}"}

    def _forget_others(self, rule: Mapping[str, Any], alerts: list[dict[str, Any]]) -> None:
        """An alert whose row is gone is over."""
        there = {json.dumps(alert["labels"], sort_keys=True) for alert in alerts}
        for uid, labels in [key for key in self._active_since if key[0] == rule["uid"] and key[1] not in there]:
            del self._active_since[uid, labels]

    async def _condition(self, session: aiohttp.ClientSession, rule: Mapping[str, Any]) -> list[Row]:
        results: dict[str, list[Row]] = {}
        for node in rule["data"]:
            if node["datasourceUid"] == "__expr__":
                results[node["refId"]] = _expression(node["model"], results)
            else:
                results[node["refId"]] = await self._query(session, node)
        return results[rule["condition"]]

    async def _query(self, session: aiohttp.ClientSession, node: Mapping[str, Any]) -> list[Row]:
        source, model = self.store.data["datasources"][node["datasourceUid"]], node["model"]
        if not (model.get("instant") or model.get("queryType") == "instant"):
            raise EvaluationError(f"{node['refId']}: looks like time series data, only reduced data can be alerted on")
        url = f"{source['url'].rstrip('/')}/{INSTANT[source['type']]}"
        query = {"query": model["expr"], "time": str(int(time.time()) - node["relativeTimeRange"]["to"])}
        try:
            async with session.get(url, params=query, headers=login(source)) as answer:
                if answer.status != 200:
                    raise EvaluationError(f"{node['refId']}: {answer.status}: {(await answer.text())[:500]}")
                found = (await answer.json(content_type=None))["data"]
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EvaluationError(f"{node['refId']}: {source['name']} does not answer: {error}") from None
        rows = found["result"] if found["resultType"] == "vector" else [{"metric": {}, "value": found["result"]}]
        return [(dict(row["metric"]), float(row["value"][1])) for row in rows]


def _expression(model: Mapping[str, Any], results: Mapping[str, list[Row]]) -> list[Row]:
    kind, text = model.get("type"), model.get("expression", "")
    if kind == "math" and (found := ANY_NUMBER.fullmatch(text)):
        return [(labels, 1.0) for labels, _ in _named(found[1], results)]
    if kind == "threshold":
        evaluator = model["conditions"][0]["evaluator"]
        if evaluator["type"] in COMPARISONS:
            holds, limit = COMPARISONS[evaluator["type"]], evaluator["params"][0]
            return [(labels, float(holds(value, limit))) for labels, value in _named(text, results)]
    raise EvaluationError(f"this stand-in of Grafana does not know the expression {kind}: {text}")


def _named(name: str, results: Mapping[str, list[Row]]) -> list[Row]:
    if name not in results:
        raise EvaluationError(f"could not find the node {name}")
    return results[name]
