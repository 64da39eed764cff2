"""Checks what a stack overrides in our alerts: names of alerts, thresholds, labels; and finds overrides that change nothing."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import alerts
from alerts.customization import Customization, Override, names_of, overridden, threshold
from alerts.model import Rule
from alerts.xid_rules import ALERT as XID_ALERT
from gpu_fleet.signals import promql
from gpu_fleet.signals.catalogue import TARGET_LABELS, Catalogue
from gpu_fleet.stackfile.problems import Problem, listed

KEY: Final = "gpu-fleet:alerts.rules"
LABELS_KEY: Final = "gpu-fleet:alerts.labels"
_BACKENDS: Final[tuple[alerts.Backend, ...]] = ("mimir", "loki", "grafana")
# Labels by which routes, inhibitions, links and Grafana's titles identify an alert.
_OURS: Final = TARGET_LABELS | {"alertname", "alert", "severity", "scope", "action", "xid", "gpu", "uuid", "pci", "source"}
_NAMED: Final = 3


def check_overrides(custom: Customization, catalogue: Catalogue) -> Iterator[Problem]:
    for name in sorted(custom.labels.keys() & _OURS):
        yield _reserved(LABELS_KEY, name)
    if not custom.overrides:
        return
    rules = _rules()
    problems = [problem for key, override in custom.overrides.items() for problem in _problems(key, override, rules, catalogue)]
    yield from problems or _equal_alerts(custom)


def warnings(custom: Customization) -> Iterator[str]:
    """What is accepted and probably not meant. The overrides are without errors."""
    rules = _rules() if custom.overrides else ()
    for key, override in custom.overrides.items():
        selected = [rule for rule in rules if key in names_of(rule)]
        others = {name: other for name, other in custom.overrides.items() if name != key}
        if all(overridden(rule, custom.overrides) == overridden(rule, others) for rule in selected):
            yield f"{KEY}.{key} changes nothing ({_values(selected[0])}): remove it, or write what should differ"
        pages = any(rule["alert"] == XID_ALERT and rule["labels"]["severity"] == "critical" for rule in selected)
        if pages and (not override.is_enabled or override.severity not in (None, "critical")):
            yield (
                f"{KEY}.{key}: alerts about consequences of these XIDs are held back while their incident is open, so "
                "that nothing may page; to notify somebody else, write a route with the matchers alertname and xid instead"
            )


def _rules() -> list[Rule]:
    """Our alerts of every backend, as our files have them."""
    return [rule for backend in _BACKENDS for group in alerts.rule_groups(backend) for rule in group.rules if "alert" in rule]


def _problems(key: str, override: Override, rules: Sequence[Rule], catalogue: Catalogue) -> Iterator[Problem]:
    where = f"{KEY}.{key}"
    selected = [rule for rule in rules if key in names_of(rule)]
    if not selected:
        yield _unknown(where, key, rules)
        return
    if not override.is_enabled:
        if override != Override(is_enabled=False):
            yield Problem(where, "disables the alert and changes it", "one of them", "remove `enabled: false`, or the other keys")
        return
    if override.threshold is not None:
        yield from _threshold(f"{where}.threshold", selected)
    for name in sorted(override.labels):
        if name in _OURS:
            yield _reserved(f"{where}.labels", name)
        elif any(name in _labels_of(rule, catalogue) for rule in selected):
            yield Problem(f"{where}.labels", f"the alert has a label {name!r} already", fix="use another name")


def _unknown(where: str, key: str, rules: Sequence[Rule]) -> Problem:
    alert, _, rest = key.partition(" ")
    known = list(dict.fromkeys(name for rule in rules for name in names_of(rule)))
    of_alert = [name for name in known if name.startswith(f"{alert} ")]
    if rest and of_alert:
        near = _near(key, of_alert) or of_alert[:_NAMED]
        return Problem(where, f"{alert} has no rule {rest!r}", f"{alert}, or one of its rules", f"write {listed(near)}")
    near = _near(alert, [name for name in known if " " not in name])
    fix = f"did you mean {listed(near)}?" if near else "docs/alert-coverage.md lists them"
    return Problem(where, "no alert of ours has this name", "the name of an alert", fix)


def _near(word: str, known: Sequence[str]) -> list[str]:
    folded = {name.lower(): name for name in known}
    return [folded[name] for name in difflib.get_close_matches(word.lower(), folded, n=_NAMED, cutoff=0.6)]


def _threshold(where: str, selected: Sequence[Rule]) -> Iterator[Problem]:
    alert = selected[0]["alert"]
    found = {str(rule["labels"]["severity"]): threshold(rule["expr"]) for rule in selected}
    if None in found.values():
        fix = f"write `{alert}: {{enabled: false}}`, and a rule of your own in gpu-fleet:custom (docs/overrides.md)"
        yield Problem(where, f"{alert} does not compare with one number", "an alert that does", fix)
    elif len(set(found.values())) > 1:
        each = [f"{severity} ({value})" for severity, value in found.items()]
        what = f"the rules of {alert} have different thresholds: {listed(each, 'and')}"
        yield Problem(where, what, f"the name with a severity: `{alert} {next(iter(found))}`", "write one entry for each")


def _labels_of(rule: Rule, catalogue: Catalogue) -> frozenset[str]:
    """Fixed ones, and those of its series as far as they are known. LogQL does not parse as PromQL: none are known then."""
    return frozenset(rule["labels"]) | (promql.labels_of_result(rule["expr"], catalogue) or frozenset())


def _reserved(where: str, name: str) -> Problem:
    fix = "write `severity` beside `labels`" if name == "severity" else "use another name"
    return Problem(where, f"{name!r} is a label of ours: routes, inhibitions and dashboards select by it", fix=fix)


def _equal_alerts(custom: Customization) -> Iterator[Problem]:
    """Rules that the overrides make one alert with several texts or durations."""
    for backend in _BACKENDS:
        equal: dict[tuple[object, ...], int] = defaultdict(int)
        for group in alerts.rule_groups(backend, custom=custom):
            for rule in group.rules:
                if "alert" in rule:
                    equal[(rule["alert"], *sorted(rule["labels"].items()))] += 1
        for (alert, *_), count in equal.items():
            keys = [key for key in custom.overrides if key.partition(" ")[0] == alert]
            if count > 1 and keys:
                what = f"{count} rules of {alert} would have the same labels, but differ in more than their expression"
                yield Problem(
                    f"{KEY}.{keys[0]}", what, "one rule per severity", f"disable one: `{alert} critical: {{enabled: false}}`"
                )


def _values(rule: Rule) -> str:
    values = {"threshold": threshold(rule["expr"]), "for": rule.get("for", "0s"), "severity": rule["labels"]["severity"]}
    return ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)
