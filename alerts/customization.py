"""What a stack changes in our rules, and the rule files that it adds to them.

Applied where rules are read (alerts/__init__.py), so that Mimir, Loki, Kubernetes, Grafana and `make rules` get the same rules.
Not done here: reporting overrides that name no alert or contradict each other (gpu_fleet/signals/overrides.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import promql_parser as promql

from alerts.model import Rule, RuleGroup
from alerts.xid_rules import ALERT as XID

# Not `==` and `!=`: what they compare with is a state.
_COMPARED: Final = re.compile(r"(?:>=|<=|>|<)\s*(?P<number>\d+(?:\.\d+)?)(?![\w.])")
_LOG_CODES: Final = re.compile(r'\{job="kernel", xid=~"([\d|]+)"\}')
# The window of a rate of counters; those in hours are longer than any.
_RATES: Final = re.compile(r"(?P<of>\b(?:rate|irate|increase|delta|deriv)\([^][()]+)\[(?P<count>\d+)(?P<unit>[sm])\]")
_NEWEST: Final = re.compile(r"(\btime\(\) - host:newest_sample:timestamp_seconds > )(\d+)")
_NEWEST_LATE_S: Final = 105  # the record's age, the wait of the rule that reads it, and 15 s to be sent
_COMPARISONS: Final = (">=", "<=", ">", "<")
_MARK: Final = 987654321.0  # no rule compares with it


@dataclass(frozen=True, kw_only=True)
class Override:
    """Changes to rules of one alert; None leaves a value as it is. `labels`: added to those that the rule has."""

    threshold: float | None = None
    for_: str | None = None
    severity: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    is_enabled: bool = True


@dataclass(frozen=True, kw_only=True)
class Customization:
    """`overrides`: by the name of an alert, or by a name that `names_of` gives to some of its rules. `labels`: of every alert.

    `files`: rule files of the stack's own, by backend (rules, loki), which are loaded beside ours. `scrape_interval_s`: the
    longest of the hosts that send to these rulers; 0: the rules as they are written.
    """

    overrides: Mapping[str, Override] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    scrape_interval_s: int = 0


NO_CUSTOMIZATION: Final = Customization()


def names_of(rule: Rule) -> tuple[str, ...]:
    """Names by which an override selects an alert's rule, the most general first: `GpuXid`, `GpuXid critical`, `GpuXid 79`."""
    labels = rule.get("labels") or {}
    distinctions = [str(labels[name]) for name in ("severity", "xid", "event") if name in labels]
    return (rule["alert"], *(f"{rule['alert']} {one}" for one in distinctions))


def customized(groups: Iterable[RuleGroup], custom: Customization) -> Iterator[RuleGroup]:
    """Our groups with the overrides applied. A group without rules is left out."""
    for group in groups:
        rules: Iterable[Rule] = [for_interval(rule, custom.scrape_interval_s) for rule in group.rules]
        if custom.overrides:
            rules = _merged(overridden(rule, custom.overrides) for rule in rules)
        if kept := tuple(rules):
            yield replace(group, rules=kept)


def for_interval(rule: Rule, scrape_interval_s: int) -> Rule:
    """A rule for hosts that are scraped every `scrape_interval_s` seconds. The rules are written for 15 s, which changes nothing.

    A rate needs two samples, and four scrapes so that one may fail. Whether the newest sample of a host is late is asked of a
    record that is up to a minute old, by a rule that is evaluated each minute.
    """
    expression = _RATES.sub(lambda found: _raised(found, 4 * scrape_interval_s), rule["expr"])
    expression = _NEWEST.sub(lambda found: f"{found[1]}{max(int(found[2]), scrape_interval_s + _NEWEST_LATE_S)}", expression)
    return rule if expression == rule["expr"] else {**rule, "expr": expression}


def _raised(found: re.Match[str], least_s: int) -> str:
    """A rate over `least_s` or more."""
    window_s = int(found["count"]) * {"s": 1, "m": 60}[found["unit"]]
    return found[0] if window_s >= least_s else f"{found['of']}[{least_s // 60}m]"


def labelled(group: RuleGroup, labels: Mapping[str, str]) -> RuleGroup:
    """The group with labels added to its alerts; those that an alert has already stay."""
    if not labels:
        return group
    return replace(group, rules=tuple(_labelled(rule, labels) if "alert" in rule else rule for rule in group.rules))


def _labelled(rule: Rule, labels: Mapping[str, str]) -> Rule:
    return {**rule, "labels": {**labels, **(rule.get("labels") or {})}}


def overridden(rule: Rule, overrides: Mapping[str, Override]) -> Rule | None:
    """A rule with what the overrides change; None: it is disabled."""
    if "alert" not in rule:
        return rule
    changed: dict[str, Any] | None = _without_overridden_codes(rule, overrides)
    if changed is None:
        return None
    for name in names_of(rule):
        if (override := overrides.get(name)) is None:
            continue
        if not override.is_enabled:
            return None
        if override.threshold is not None:
            changed["expr"] = with_threshold(changed["expr"], override.threshold)
        if override.for_ is not None:
            changed["annotations"] = _with_duration(changed.get("annotations", {}), changed.get("for", "0s"), override.for_)
            changed["for"] = override.for_
        severity = {} if override.severity is None else {"severity": override.severity}
        changed["labels"] = {**changed.get("labels", {}), **override.labels, **severity}
    return changed


def _without_overridden_codes(rule: Rule, overrides: Mapping[str, Override]) -> dict[str, Any] | None:
    """Loki pages every critical XID with one rule, which cannot differ by code: a code with an override of its own is left to its
    rule in Mimir, which notifies up to a minute later. None: no code is left."""
    changed = dict(rule)
    found = _LOG_CODES.search(rule["expr"]) if rule["alert"] == XID else None
    if found is not None:
        codes = [code for code in found[1].split("|") if f"{XID} {code}" not in overrides]
        if not codes:
            return None
        changed["expr"] = rule["expr"].replace(found[0], found[0].replace(found[1], "|".join(codes)))
    return changed


def _with_duration(annotations: Mapping[str, str], old: str, new: str) -> dict[str, str]:
    """Texts of the alert that give its duration."""
    return {name: text.replace(f"for {_in_words(old)}", f"for {_in_words(new)}") for name, text in annotations.items()}


def _in_words(duration: str) -> str:
    """10m: 10 minutes."""
    units = {"h": "hour", "m": "minute", "s": "second"}
    parts = [(int(count), units[unit]) for count, unit in re.findall(r"(\d+)([hms])", duration)]
    return " ".join(f"{count} {unit}{'' if count == 1 else 's'}" for count, unit in parts)


def _merged(rules: Iterable[Rule | None]) -> list[Rule]:
    """Without disabled rules, and with one rule where several now differ only by their expression: critical and warning of one
    condition, of which each excludes the other, after both became a warning."""
    kept: dict[str, dict[str, Any]] = {}
    for number, rule in enumerate(rules):
        if rule is None:
            continue
        rest = {key: value for key, value in rule.items() if key != "expr"}
        key = repr(sorted(rest.items())) if "alert" in rule else str(number)
        if key in kept:
            kept[key]["expr"] = f"(\n{kept[key]['expr'].rstrip()}\n)\nor\n(\n{rule['expr'].rstrip()}\n)\n"
        else:
            kept[key] = dict(rule)
    return list(kept.values())


# --- thresholds -------------------------------------------------------------------------------------------------------------


def threshold(expression: str) -> str | None:
    """The number that the values of an alert are compared with, as the expression writes it; None: it has none, or several."""
    found = _place_of_threshold(expression)
    return None if found is None else expression[slice(*found)]


def with_threshold(expression: str, value: float) -> str:
    """The expression with another threshold; unchanged if it has none."""
    found = _place_of_threshold(expression)
    return expression if found is None else f"{expression[: found[0]]}{number(value)}{expression[found[1] :]}"


def number(value: float) -> str:
    """As PromQL and people write it: 85, 0.9, 1073741824."""
    return str(int(value)) if float(value).is_integer() else repr(value)


def _place_of_threshold(expression: str) -> tuple[int, int] | None:
    for found in _COMPARED.finditer(expression):
        start, end = found.span("number")
        if _is_threshold(f"{expression[:start]}{number(_MARK)}{expression[end:]}", is_last=not expression[end:].strip()):
            return start, end
    return None


def _is_threshold(marked: str, *, is_last: bool) -> bool:
    try:
        return _compared_with(promql.parse(marked)) == _MARK
    except ValueError:  # LogQL: there a threshold is the last thing in the expression
        return is_last


def _compares_series(node: promql.Expr) -> bool:
    return isinstance(node, promql.BinaryExpr) and str(node.op) in _COMPARISONS and not isinstance(node.rhs, promql.NumberLiteral)


def _compared_with(node: promql.Expr) -> float | None:
    """The number in the comparison that decides whether the expression has a result."""
    match node:
        case promql.ParenExpr():
            return _compared_with(node.expr)
        case promql.BinaryExpr() if str(node.op) in ("and", "unless"):
            return _compared_with(node.lhs)
        # The limit that each GPU reports, or a number for those that report none.
        case promql.BinaryExpr() if str(node.op) == "or" and _compares_series(node.lhs):
            return _compared_with(node.rhs)
        case promql.BinaryExpr() if str(node.op) in _COMPARISONS and isinstance(node.rhs, promql.NumberLiteral):
            return float(node.rhs.val)
    return None
