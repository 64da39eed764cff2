"""The alerts as Grafana-managed rules: the same rule files, converted for Grafana's own scheduler.

Differences between Grafana and a ruler, and how they are handled here (source: Grafana's documentation of alert rules, of its
no-data and error states, and of the import of Prometheus rules, v12.4 and v13, read 2026-11-21):

- It fires on a value other than 0, a ruler on every row of the result: `up == 0` returns rows with value 0. So two expressions
  follow the query, which turn every number into 1. Grafana's own import of Prometheus rules does the same.
- No row means "no data". Our expressions return no row when everything is healthy, so that is the normal state, for every
severity; missing data has rules of its own (inventory.yaml, and grafana/ruler.yaml, which only Grafana has). - A failed query is
a separate state. Its handling depends on the severity of the alert that could be missed. - The name of an alert is its rule's
title, and titles are unique within a folder: the label `alert` has the name used by a ruler. - Annotations cannot use `query`,
and `$value` has another name. - Before version 13 it has no inhibition rules, in 13 only behind an experimental feature toggle:
inhibitions are in the expressions. - Loki's copies of Mimir's alerts would be notified, too: only Mimir's are used.

Recording rules stay in Mimir's ruler: Grafana's own need a feature toggle and a remote-write target, and Kubernetes and rulers
need the series anyway.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import alerts
from alerts import Backend
from alerts.customization import NO_CUSTOMIZATION, Customization
from alerts.links import NO_LINKS, Links
from alerts.model import Rule, RuleGroup
from alerts.notifications import INHIBITIONS, Inhibition
from alerts.xid_rules import ALERT as XID_ALERT
from alerts.xid_rules import GPU_BY_UUID_OR_ADDRESS, GPU_IN_WORDS, open_incidents

Source = Literal["mimir", "loki"]
Inhibiting = list[tuple[Inhibition, str]]  # with the expression of the alerts that inhibit

# The rule files evaluated with each source, in the order of evaluation.
_RULE_FILES: Final[tuple[tuple[Source, Backend], ...]] = (("mimir", "mimir"), ("loki", "loki"), ("mimir", "grafana"))

ALERT_LABEL: Final = "alert"

# Evaluation intervals are multiples of this (unified_alerting.min_interval, Grafana's default).
STEP_S: Final = 10

# How a failed query is handled, by severity. A critical alert must not be missed: Grafana raises an alert DatasourceError with
# the labels of the rule. A warning keeps its state, and an info alert is dropped.
ON_ERROR: Final[Mapping[str, str]] = {"critical": "Error", "warning": "KeepLast", "info": "OK"}
ON_NO_DATA: Final = "OK"

# Names of the nodes of a rule; annotations reference the first.
QUERY: Final = "query"
ANY_NUMBER: Final = "any_number"
IS_FIRING: Final = "is_firing"


@dataclass(frozen=True, kw_only=True)
class GrafanaRule:
    """One alert rule. `title`: unique in the folder. `annotations`: Grafana's templates. `for_`, `keep_firing_for`: durations."""

    title: str
    source: Source
    expr: str
    severity: str
    for_: str
    keep_firing_for: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @property
    def condition(self) -> str:
        return IS_FIRING

    @property
    def on_error(self) -> str:
        return ON_ERROR[self.severity]

    def nodes(self, data_source_uid: str) -> list[dict[str, Any]]:
        """The query and the expressions that follow it, as Grafana's provisioning API expects them."""
        kind = {"mimir": "prometheus", "loki": "loki"}[self.source]
        query = {"refId": QUERY, "datasource": {"type": kind, "uid": data_source_uid}, "expr": self.expr, "instant": True}
        if self.source == "loki":
            query["queryType"] = "instant"
        number = f"is_number(${QUERY}) || is_nan(${QUERY}) || is_inf(${QUERY})"
        above_zero = {"evaluator": {"type": "gt", "params": [0]}}
        return [
            {
                "refId": QUERY,
                "datasourceUid": data_source_uid,
                "queryType": query.get("queryType", ""),
                # An instant query is evaluated at the end of the range; Grafana only requires that the range is not empty.
                "relativeTimeRange": {"from": 600, "to": 0},
                "model": query,
            },
            _expression(ANY_NUMBER, type="math", expression=number),
            _expression(IS_FIRING, type="threshold", expression=ANY_NUMBER, conditions=[above_zero]),
        ]


@dataclass(frozen=True, kw_only=True)
class GrafanaRuleGroup:
    name: str
    interval_s: int
    rules: tuple[GrafanaRule, ...]


def _expression(name: str, **model: Any) -> dict[str, Any]:
    return {
        "refId": name,
        "datasourceUid": "__expr__",
        "queryType": "",
        "relativeTimeRange": {"from": 0, "to": 0},
        "model": {"refId": name, "datasource": {"type": "__expr__", "uid": "__expr__"}, **model},
    }


def rule_groups(
    sources: Iterable[Source], links: Links = NO_LINKS, custom: Customization = NO_CUSTOMIZATION
) -> list[GrafanaRuleGroup]:
    """Every group with alerts, for the `sources` that Grafana can query."""
    given: list[tuple[Source, RuleGroup]] = []
    for source, files in _RULE_FILES:
        if source in sources:
            given += [(source, group) for group in alerts.rule_groups(files, replace(links, has_jobs=False), custom)]
    in_mimir = {rule.get("alert") for source, group in given for rule in group.rules if source == "mimir"}
    alerting: list[tuple[Source, RuleGroup, list[Rule]]] = []
    for source, group in given:
        rules = [rule for rule in group.rules if "alert" in rule and (source == "mimir" or rule["alert"] not in in_mimir)]
        if rules:
            alerting.append((source, group, rules))
    inhibiting = _inhibiting([rule for source, _, rules in alerting for rule in rules if source == "mimir"])
    names = Counter(_name(rule) for _, _, rules in alerting for rule in rules)
    return [
        GrafanaRuleGroup(
            name=group.name,
            interval_s=_interval_s(group.interval),
            rules=tuple(_rule(rule, source, inhibiting, is_only=names[_name(rule)] == 1) for rule in rules),
        )
        for source, group, rules in alerting
    ]


def _interval_s(text: str) -> int:
    """Rounded up to a multiple of STEP_S."""
    found = re.fullmatch(r"(\d+)([smh])", text)
    assert found, f"signals lets no interval like {text} through"
    seconds = int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]
    return -(-seconds // STEP_S) * STEP_S


def _rule(rule: Rule, source: Source, inhibiting: Inhibiting, *, is_only: bool) -> GrafanaRule:
    labels = rule["labels"]
    expr = rule["expr"]
    return GrafanaRule(
        title=_name(rule) if is_only else f"{_name(rule)} {labels['severity']}",
        source=source,
        expr=_unless_inhibited(rule, inhibiting) if source == "mimir" else expr,
        severity=labels["severity"],
        for_=rule.get("for", "0s"),
        keep_firing_for=rule.get("keep_firing_for", "0s"),
        labels={**labels, ALERT_LABEL: rule["alert"]},
        annotations={name: _template(text) for name, text in rule["annotations"].items()},
    )


def _name(rule: Rule) -> str:
    """The alert with the code of an XID, or with the event of AMD's driver."""
    labels = rule["labels"]
    return f"{rule['alert']} {labels.get('xid') or labels.get('event', '')}".rstrip()


def _template(text: str) -> str:
    """A Prometheus template converted to Grafana's syntax."""
    text = text.replace(GPU_IN_WORDS, GPU_BY_UUID_OR_ADDRESS)
    return re.sub(r"\$value\b", f"$values.{QUERY}.Value", text)


# --- inhibition -------------------------------------------------------------------------------------------------------------


def _inhibiting(of_mimir: list[Rule]) -> Inhibiting:
    """For all rules at once: to compare each of them with all takes 0.04 s of each run."""
    sources = ((inhibition, [rule for rule in of_mimir if _matches(inhibition.source, rule)]) for inhibition in INHIBITIONS)
    return [(inhibition, _any_of(rules).rstrip()) for inhibition, rules in sources if rules]


def _unless_inhibited(rule: Rule, inhibiting: Inhibiting) -> str:
    """The rule's expression, without rows for which an inhibiting alert holds."""
    expr: str = rule["expr"]
    for inhibition, inhibits in inhibiting:
        if _matches(inhibition.target, rule):
            expr = f"(\n{expr.rstrip()}\n)\nunless on ({', '.join(inhibition.equal)}) (\n{inhibits}\n)\n"
    return expr


def _any_of(rules: list[Rule]) -> str:
    """The union of the expressions of the rules."""
    if all(rule["alert"] == XID_ALERT for rule in rules):  # dozens, which differ only by the code
        return open_incidents([rule["labels"]["xid"] for rule in rules])
    return "\nor\n".join(f"({rule['expr'].rstrip()})" for rule in rules)


def _matches(matchers: Iterable[str], rule: Rule) -> bool:
    """Whether all alerts of the rule match. False if that depends on a label of the series."""
    return all(_matches_one(matcher, {**rule["labels"], "alertname": rule["alert"]}) for matcher in matchers)


def _matches_one(matcher: str, labels: Mapping[str, str]) -> bool:
    found = re.fullmatch(r'(\w+)(=~|!~|!=|=)"(.*)"', matcher)
    assert found, f"INHIBITIONS has the matcher {matcher}"
    name, sign, value = found.groups()
    if name not in labels:
        return False
    is_equal = bool(re.fullmatch(value, labels[name])) if sign.endswith("~") else labels[name] == value
    return is_equal != sign.startswith("!")
