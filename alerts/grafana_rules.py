"""The alerts as Grafana-managed rules: the same rule files, in the form in which Grafana's own scheduler judges them.

What Grafana does otherwise than a ruler, and what is done about it here (source: Grafana's documentation of alert rules, of its
no-data and error states, and of the import of Prometheus rules, v12.4 and v13, read 2026-11-21):

- It fires on a value other than 0, a ruler on every row of the answer: `up == 0` answers rows of value 0. So two expressions
  follow the query, which make 1 of every number, whatever it is. This is also how Grafana imports Prometheus rules.
- No row means "no data". Our expressions answer no row when all is well, so that has to be taken as normal, for every severity;
  that data is missing is told by rules that ask for it (inventory.yaml, and grafana/ruler.yaml, which only Grafana has).
- A query that fails is a state of its own. What becomes of it depends on how bad a missed alert would be.
- The name of an alert is its rule's title, and titles differ within a folder: label `alert` has the name that a ruler would give.
- It keeps nothing of `query` in annotations, and calls `$value` differently.
- Before version 13 it has no inhibition rules, in 13 behind an experimental switch: who is hidden by whom is in the expression.
- Equal alerts of Mimir and Loki would be told twice, since the rule is part of an alert's identity: Mimir's stays.

Recording rules stay in Mimir's ruler: Grafana's own need a switch and a remote-write target, and Kubernetes and rulers need the
series anyway.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import alerts
from alerts import Backend
from alerts.model import Rule, RuleGroup
from alerts.notifications import INHIBITIONS
from alerts.xid_rules import ALERT as XID_ALERT
from alerts.xid_rules import GPU_BY_UUID_OR_ADDRESS, GPU_IN_WORDS, metric_expression

Source = Literal["mimir", "loki"]

# The rule files that each source answers, in the order of evaluation.
_ASKED: Final[tuple[tuple[Source, Backend], ...]] = (("mimir", "mimir"), ("loki", "loki"), ("mimir", "grafana"))

ALERT_LABEL: Final = "alert"

# A rule group is evaluated every so many seconds or a multiple of them (unified_alerting.min_interval, Grafana's default).
STEP_S: Final = 10

# What a query that fails means for the alerts of its rule. A critical one must not be lost: Grafana tells so itself, by an alert
# DatasourceError with the labels of the rule. A warning waits as it was, and for the record nothing is worth telling.
ON_ERROR: Final[Mapping[str, str]] = {"critical": "Error", "warning": "KeepLast", "info": "OK"}
ON_NO_DATA: Final = "OK"

# Names of the nodes of a rule; annotations name the first.
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
        """The query and the expressions after it, in the words of Grafana's provisioning API."""
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
                # An instant query is made for the end of the range; that it begins before is all that Grafana asks of it.
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


def rule_groups(sources: Iterable[Source], runbook_url: str | None = None) -> list[GrafanaRuleGroup]:
    """Every group with alerts, of the `sources` that Grafana can ask. `runbook_url`: see model.with_runbook_url."""
    given: list[tuple[Source, RuleGroup]] = []
    for source, files in _ASKED:
        if source in sources:
            given += [(source, group) for group in alerts.rule_groups(files, runbook_url)]
    told = {_identity(rule) for source, group in given for rule in group.rules if source == "mimir"}
    alerting: list[tuple[Source, RuleGroup, list[Rule]]] = []
    for source, group in given:
        rules = [rule for rule in group.rules if "alert" in rule and (source == "mimir" or _identity(rule) not in told)]
        if rules:
            alerting.append((source, group, rules))
    of_mimir = [rule for source, _, rules in alerting for rule in rules if source == "mimir"]
    names = Counter(rule["alert"] for _, _, rules in alerting for rule in rules)
    return [
        GrafanaRuleGroup(
            name=group.name,
            interval_s=_interval_s(group.interval),
            rules=tuple(_rule(rule, source, of_mimir, is_only=names[rule["alert"]] == 1) for rule in rules),
        )
        for source, group, rules in alerting
    ]


def _identity(rule: Rule) -> tuple[Any, ...]:
    return rule.get("alert"), *sorted(rule.get("labels", {}).items())


def _interval_s(text: str) -> int:
    """Rounded up to what Grafana can do."""
    found = re.fullmatch(r"(\d+)([smh])", text)
    assert found, f"signals lets no interval like {text} through"
    seconds = int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]
    return -(-seconds // STEP_S) * STEP_S


def _rule(rule: Rule, source: Source, of_mimir: list[Rule], *, is_only: bool) -> GrafanaRule:
    labels = rule["labels"]
    distinction = labels.get("xid") or ("" if is_only else labels["severity"])
    expr = rule["expr"]
    return GrafanaRule(
        title=f"{rule['alert']} {distinction}".rstrip(),
        source=source,
        expr=_unless_hidden(rule, of_mimir) if source == "mimir" else expr,
        severity=labels["severity"],
        for_=rule.get("for", "0s"),
        keep_firing_for=rule.get("keep_firing_for", "0s"),
        labels={**labels, ALERT_LABEL: rule["alert"]},
        annotations={name: _template(text) for name, text in rule["annotations"].items()},
    )


def _template(text: str) -> str:
    """A Prometheus template in Grafana's words."""
    text = text.replace(GPU_IN_WORDS, GPU_BY_UUID_OR_ADDRESS)
    return re.sub(r"\$value\b", f"$values.{QUERY}.Value", text)


# --- inhibition -------------------------------------------------------------------------------------------------------------


def _unless_hidden(rule: Rule, of_mimir: list[Rule]) -> str:
    """The rule's expression, silent where an alert that hides it holds."""
    expr: str = rule["expr"]
    for inhibition in INHIBITIONS:
        if _matches(inhibition.target, rule):
            sources = [other for other in of_mimir if _matches(inhibition.source, other)]
            if sources:
                expr = f"(\n{expr.rstrip()}\n)\nunless on ({', '.join(inhibition.equal)}) (\n{_any_of(sources).rstrip()}\n)\n"
    return expr


def _any_of(rules: list[Rule]) -> str:
    """An expression with a row for everything that one of the rules has a row for."""
    if all(rule["alert"] == XID_ALERT for rule in rules):  # dozens, and all alike but for the code
        return metric_expression([int(rule["labels"]["xid"]) for rule in rules])
    return "\nor\n".join(f"({rule['expr'].rstrip()})" for rule in rules)


def _matches(matchers: Iterable[str], rule: Rule) -> bool:
    """Whether all alerts of the rule match. No, where that depends on a label that comes from the series."""
    return all(_matches_one(matcher, {**rule["labels"], "alertname": rule["alert"]}) for matcher in matchers)


def _matches_one(matcher: str, labels: Mapping[str, str]) -> bool:
    found = re.fullmatch(r'(\w+)(=~|!~|!=|=)"(.*)"', matcher)
    assert found, f"INHIBITIONS has the matcher {matcher}"
    name, sign, value = found.groups()
    if name not in labels:
        return False
    is_equal = bool(re.fullmatch(value, labels[name])) if sign.endswith("~") else labels[name] == value
    return is_equal != sign.startswith("!")
