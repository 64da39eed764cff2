"""Changes of recording rules and alerts, in words: "GpuTemperatureHigh: 85 → 88 °C". Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from gpu_fleet.operations.pr_report.values import arrow
from gpu_fleet.safetext.markdown import code, plain, strong

# A number of PromQL that is no part of a name or a duration of a range; durations are words of their own.
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[A-Za-z_:][\w:]*|\d+(?:\.\d+)?(?:[smhdwy](?!\w))?|\S')
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
_DURATION: Final = re.compile(r"\d+(?:\.\d+)?[smhdwy]")
_MANY: Final = 10  # rules that change alike
# By the last word of a metric's name.
_UNITS: Final = {
    "celsius": " °C",
    "watts": " W",
    "bytes": " bytes",
    "seconds": " s",
    "volts": " V",
    "hertz": " Hz",
    "mhz": " MHz",
}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """An alert or a recording rule of any ruler."""

    name: str
    is_alert: bool
    expressions: tuple[str, ...]  # PromQL or LogQL; a Grafana-managed alert may have several queries
    for_: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)


def rules_of_group(text: str) -> Iterator[Rule]:
    """`text`: one group of a rule file, as YAML."""
    for rule in yaml.load(text, yaml.CSafeLoader)["rules"]:
        yield rule_of_file(rule)


def rule_of_file(rule: Mapping[str, Any]) -> Rule:
    known = ("alert", "record", "expr", "for", "labels", "annotations")
    return Rule(
        name=rule.get("alert") or rule["record"],
        is_alert="alert" in rule,
        expressions=(str(rule["expr"]).strip(),),
        for_=rule.get("for", ""),
        labels=rule.get("labels", {}),
        annotations=rule.get("annotations", {}),
        others={key: value for key, value in rule.items() if key not in known},
    )


def rule_of_grafana(rule: Mapping[str, Any]) -> Rule:
    """A rule as Grafana's provider takes it: a query is the `expr` of a node's model, a threshold one of its conditions."""
    models = [json.loads(node["model"]) for node in rule["datas"]]
    return Rule(
        name=rule["name"],
        is_alert=True,
        expressions=tuple(str(model["expr"]).strip() for model in models if "expr" in model),
        for_=rule.get("for", ""),
        labels=rule.get("labels", {}),
        annotations=rule.get("annotations", {}),
        others={
            "conditions": [model for model in models if "expr" not in model],
            **{key: rule[key] for key in ("noDataState", "execErrState", "keepFiringFor", "isPaused") if rule.get(key)},
        },
    )


def changes(old: Iterable[Rule], new: Iterable[Rule]) -> Iterator[str]:
    """Lines of Markdown. Rules of one name are matched by what did not change: their expression, then their place.

    What many rules have in common, such as a label that all alerts get, is one line.
    """
    before, after = _by_name(old), _by_name(new)
    changed: list[tuple[str, list[str]]] = []
    others: list[str] = []
    for name in sorted({*before, *after}):
        removed, added = _without_same(before.get(name, []), after.get(name, []))
        for was, now in zip(removed, added, strict=False):
            changed.append((f"{strong(name)}{_told_apart(now, after[name])}", list(_differences(was, now))))
        matched = min(len(removed), len(added))
        for rule in removed[matched:]:
            others.append(f"- {strong(name)}{_told_apart(rule, before[name])} removed ({_kind(rule)})")
        for rule in added[matched:]:
            others.append(f"- {strong(name)}{_told_apart(rule, after[name])} added ({_kind(rule)}): {_code(rule.expressions)}")
    counts = Counter(difference for _, differences in changed for difference in differences)
    common = {difference for difference, count in counts.items() if count >= _MANY}
    for difference in sorted(common):
        labels = [label for label, differences in changed if difference in differences]
        yield f"- {labels[0]}, {labels[1]} and {len(labels) - 2} other rules: {difference}"
    for label, differences in changed:
        if own := [difference for difference in differences if difference not in common]:
            yield f"- {label}: " + "; ".join(own)
    yield from others


def _by_name(rules: Iterable[Rule]) -> dict[str, list[Rule]]:
    found: dict[str, list[Rule]] = {}
    for rule in rules:
        found.setdefault(rule.name, []).append(rule)
    return found


def _without_same(old: list[Rule], new: list[Rule]) -> tuple[list[Rule], list[Rule]]:
    keys = [Counter(map(repr, rules)) for rules in (old, new)]
    common = keys[0] & keys[1]

    def rest(rules: list[Rule]) -> list[Rule]:
        left = Counter(common)
        kept = []
        for rule in rules:
            if left[repr(rule)]:
                left[repr(rule)] -= 1
            else:
                kept.append(rule)
        return kept

    removed, added = rest(old), rest(new)
    order = {rule.expressions: place for place, rule in enumerate(removed)}
    added.sort(key=lambda rule: order.get(rule.expressions, len(removed)))
    pairs = {rule.expressions for rule in added}
    removed.sort(key=lambda rule: rule.expressions not in pairs)
    return removed, added


def _told_apart(rule: Rule, namesakes: list[Rule]) -> str:
    """The labels that distinguish it from others of its name."""
    if len(namesakes) < 2:
        return ""
    labels = {k: v for k, v in rule.labels.items() if any(other.labels.get(k) != v for other in namesakes)}
    return f" ({', '.join(plain(f'{key}={value}') for key, value in sorted(labels.items()))})" if labels else ""


def _kind(rule: Rule) -> str:
    if not rule.is_alert:
        return "recording rule"
    severity = rule.labels.get("severity", "")
    return " ".join(
        word for word in (f"{severity} alert" if severity else "alert", f"for {rule.for_}" if rule.for_ else "") if word
    )


def _differences(old: Rule, new: Rule) -> Iterator[str]:
    threshold = _numbers(old, new)
    if threshold:
        yield threshold + (f" for {_for(new)}" if new.for_ and new.for_ == old.for_ else "")
    elif old.expressions != new.expressions:
        yield f"expression {arrow(', '.join(old.expressions), ', '.join(new.expressions))}"
    if old.for_ != new.for_:
        yield f"for {_for(old)} → {_for(new)}"
    for label in sorted({*old.labels, *new.labels}):
        if old.labels.get(label) != new.labels.get(label):
            yield f"{plain(label)} {_text(old.labels.get(label))} → {_text(new.labels.get(label))}"
    for name in sorted({*old.annotations, *new.annotations}):
        if old.annotations.get(name) != new.annotations.get(name):
            yield f"{plain(name)} {arrow(old.annotations.get(name), new.annotations.get(name))}"
    for key in sorted({*old.others, *new.others}):
        if old.others.get(key) != new.others.get(key):
            yield f"{key} {arrow(old.others.get(key), new.others.get(key))}"


def _for(rule: Rule) -> str:
    """10 min, as a reader says it; as it is written where it is composed."""
    words = {"s": "s", "m": "min", "h": "h", "d": "d"}
    found = re.fullmatch(r"(\d+)([smhd])", rule.for_)
    return f"{found[1]} {words[found[2]]}" if found else rule.for_ or "0 s"


def _numbers(old: Rule, new: Rule) -> str:
    """The numbers that changed, if nothing else in the expressions did."""
    found: list[str] = []
    if len(old.expressions) != len(new.expressions):
        return ""
    for was, now in zip(old.expressions, new.expressions, strict=True):
        tokens = _TOKEN.findall(was), _TOKEN.findall(now)
        if len(tokens[0]) != len(tokens[1]):
            return ""
        for before, after in zip(*tokens, strict=True):
            if before == after:
                continue
            if _NUMBER.fullmatch(before) and _NUMBER.fullmatch(after):
                found.append(f"{before} → {after}{_unit(now)}")
            elif _DURATION.fullmatch(before) and _DURATION.fullmatch(after):
                found.append(f"over {before} → {after}")
            else:
                return ""
    return ", ".join(dict.fromkeys(found))


def _unit(expression: str) -> str:
    """Of the expression's metrics, if they have one unit. A ratio has none."""
    if "/" in expression:
        return ""
    names = [token for token in _TOKEN.findall(expression) if ":" in token or "_" in token]
    units = {unit for name in names if (unit := _UNITS.get(re.split(r"[:_]", name)[-1]))}
    return units.pop() if len(units) == 1 else ""


def _code(expressions: Iterable[str]) -> str:
    return ", ".join(code(_short(expression)) for expression in expressions)


def _text(value: str | None) -> str:
    return "unset" if value is None else plain(value)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 150 else line[:150] + "…"
