"""Checks rule files: their form, their queries, and that each alert has a severity, a summary, an action and a runbook.

A file is a Prometheus rule file. An error is what Mimir or Loki refuses, and an alert that an on-call engineer cannot act on.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from alerts.model import MOST_RULES_PER_GROUP, Rule, document
from alerts.texts import TextError
from gpu_fleet.signals import logql, promql
from gpu_fleet.signals.catalogue import Catalogue, Labels
from gpu_fleet.signals.promql import Answer
from gpu_fleet.stackfile.problems import Problem, listed, unknown_key

SEVERITIES: Final = ("critical", "warning", "info")
# Annotation -> what it is for.
NEEDED: Final = {
    "summary": "the problem and its host: the title of the page",
    "action": "the first step of the on-call engineer",
    "runbook": "alerts/runbooks/<AlertName>.md, or an https address",
}
_GROUP_KEYS: Final = ("name", "interval", "rules", "limit", "query_offset", "labels")
_RULE_KEYS: Final = {
    "alert": ("alert", "expr", "for", "keep_firing_for", "labels", "annotations"),
    "record": ("record", "expr", "labels"),
}
_DURATION: Final = re.compile(r"(?=\d)(\d+y)?(\d+w)?(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?|0")
_METRIC_NAME: Final = re.compile(r"[a-zA-Z_:][\w:]*")
_LABEL_IN_TEXT: Final = re.compile(r"\$labels\.(\w+)")


@dataclass(frozen=True)
class RuleFile:
    """`backend`: the rules of one backend are checked together. `language`: of its queries, promql or logql."""

    path: Path
    root: Path  # of the checkout: messages name paths from there
    backend: str
    language: str = "promql"

    @property
    def name(self) -> str:
        return name_of(self.path, self.root)


def name_of(path: Path, root: Path) -> str:
    """As messages name a file: a stack's own may be outside of its directory."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


@dataclass(frozen=True)
class PlacedRule:
    """`where`: the rule as a person finds it."""

    file: RuleFile
    where: str
    rule: Rule

    @property
    def labels(self) -> Mapping[str, str]:
        return self.rule.get("labels") or {}


def read_rules(files: Iterable[RuleFile]) -> tuple[list[PlacedRule], list[Problem]]:
    """The well-formed rules, and the errors of the others."""
    rules: list[PlacedRule] = []
    problems: list[Problem] = []
    seen: dict[tuple[str, str], str] = {}
    for file in files:
        for group in _groups(file, problems):
            where = f"{file.name}, group {group['name']}"
            key = (file.backend, group["name"])
            if key in seen:
                problems.append(Problem(where, f"a group of this name is in {seen[key]} too", fix="rename one of them"))
            seen[key] = file.name
            problems += _problems_of_group(where, group)
            rules += _rules(file, where, group, problems)
    return rules, problems


def _groups(file: RuleFile, problems: list[Problem]) -> Iterator[Mapping[str, Any]]:
    """The groups that have a name and a list of rules."""
    try:
        content = document(file.path)
    except TextError as error:
        problems.append(Problem(error.place, error.what))
        return
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{file.name}, line {mark.line + 1}" if mark else file.name
        problems.append(Problem(place, f"is not YAML: {getattr(error, 'problem', None) or error}"))
        return
    groups = content.get("groups") if isinstance(content, Mapping) else None
    if not isinstance(groups, list):
        problems.append(Problem(file.name, "has no list `groups`", fix="write it as a Prometheus rule file"))
        return
    for number, group in enumerate(groups, start=1):
        well_formed = isinstance(group, Mapping) and isinstance(group.get("name"), str) and isinstance(group.get("rules"), list)
        if well_formed and all(isinstance(rule, Mapping) for rule in group["rules"]):
            yield group
        else:
            problems.append(Problem(f"{file.name}, group {number}", "needs a `name` and a list `rules`"))


def _problems_of_group(where: str, group: Mapping[str, Any]) -> Iterator[Problem]:
    for key in group.keys() - set(_GROUP_KEYS):
        yield unknown_key(where, str(key), _GROUP_KEYS)
    if not _is_duration(group.get("interval")):
        yield Problem(
            where,
            f"`interval` is {group.get('interval')!r}",
            "a duration like 30s or 1m",
            "set how often its rules are evaluated",
        )
    if not group["rules"]:
        yield Problem(where, "has no rules", fix="remove the group")
    if len(group["rules"]) > MOST_RULES_PER_GROUP:
        what = f"has {len(group['rules'])} rules"
        yield Problem(where, what, f"at most {MOST_RULES_PER_GROUP}, Mimir's default", "split it")


def _is_duration(value: object) -> bool:
    return isinstance(value, str) and _DURATION.fullmatch(value) is not None


def _rules(file: RuleFile, where: str, group: Mapping[str, Any], problems: list[Problem]) -> Iterator[PlacedRule]:
    """The rules that have a name of one kind and a query."""
    for number, rule in enumerate(group["rules"], start=1):
        kinds = [kind for kind in _RULE_KEYS if kind in rule]
        if len(kinds) != 1 or not isinstance(rule[kinds[0]], str):
            problems.append(
                Problem(
                    f"{where}, rule {number}", "is neither an alert nor a record", fix="give it a name as `alert` or `record`"
                )
            )
            continue
        kind = kinds[0]
        placed = PlacedRule(file, f"{file.name}, {kind} {rule[kind]}{_which(rule)}", rule)
        wrong = list(_problems_of_form(placed, kind))
        problems += wrong
        if (
            isinstance(rule.get("expr"), str)
            and isinstance(placed.labels, Mapping)
            and isinstance(rule.get("annotations", {}), Mapping)
        ):
            yield placed


def _which(rule: Rule) -> str:
    """What distinguishes a rule from others of the same name: a label, if it has one."""
    labels = rule.get("labels")
    fixed = {name: labels[name] for name in ("xid", "severity") if name in labels} if isinstance(labels, Mapping) else {}
    return "".join(f" ({name} {value})" for name, value in list(fixed.items())[:1])


def _problems_of_form(placed: PlacedRule, kind: str) -> Iterator[Problem]:
    where, rule = placed.where, placed.rule
    for key in rule.keys() - set(_RULE_KEYS[kind]):
        yield unknown_key(where, str(key), _RULE_KEYS[kind])
    if not isinstance(rule.get("expr"), str):
        yield Problem(where, "has no query", fix="write it as `expr`")
    for key in ("for", "keep_firing_for"):
        if key in rule and not _is_duration(rule[key]):
            yield Problem(where, f"`{key}` is {rule[key]!r}", "a duration like 5m")
    for key in ("labels", "annotations"):
        values = rule.get(key, {})
        if not isinstance(values, Mapping) or not all(isinstance(value, str) for value in values.values()):
            yield Problem(where, f"`{key}` holds a value that is not text", "names with texts", 'put numbers in quotes: "79"')
    if kind == "record" and not _METRIC_NAME.fullmatch(rule["record"]):
        yield Problem(where, "is not a metric name", "letters, digits, _ and :")


def with_records(catalogue: Catalogue, rules: Sequence[PlacedRule], others: Mapping[str, Labels]) -> Catalogue:
    """The catalogue with what the rules record. `others`: recorded elsewhere, the inventory for example.

    A record's labels are those its query can have; records that use each other are read in the order they need.
    """
    expressions: dict[str, list[PlacedRule]] = defaultdict(list)
    for placed in rules:
        if "record" in placed.rule:
            expressions[placed.rule["record"]].append(placed)
    uses = {
        name: {word for placed in rules for word in _METRIC_NAME.findall(placed.rule["expr"])} & expressions.keys() - {name}
        for name, rules in expressions.items()
    }
    known = catalogue.with_metrics(others)
    unread = set(expressions)
    while unread:
        ready = {name for name in unread if unread.isdisjoint(uses[name])} or unread  # records that use each other in a cycle
        known = known.with_metrics({name: _labels_of_record(expressions[name], known) for name in sorted(ready)})
        unread = unread - ready
    return known


def _labels_of_record(rules: Sequence[PlacedRule], catalogue: Catalogue) -> Labels | None:
    joined: Labels = frozenset()
    for placed in rules:
        labels = promql.labels_of_result(placed.rule["expr"], catalogue)
        if labels is None:
            return None
        joined |= labels | placed.labels.keys()
    return joined


def check_rules(rules: Sequence[PlacedRule], catalogue: Catalogue) -> Iterator[Problem]:
    """`catalogue`: with what the rules record."""
    seen: dict[tuple[object, ...], PlacedRule] = {}
    for placed in rules:
        key = (placed.file.backend, placed.rule.get("alert"), placed.rule.get("record"), tuple(sorted(placed.labels.items())))
        if key in seen:
            fix = "remove one of them, or give it another name or other labels"
            yield Problem(placed.where, f"the same rule with the same labels is in {seen[key].file.name} already", fix=fix)
        seen[key] = placed
        answer = _answer(placed, catalogue)
        for finding in answer.findings:
            yield Problem(placed.where, finding.what, fix=finding.fix)
        if "alert" in placed.rule:
            yield from _check_alert(placed, answer.labels)


def _answer(placed: PlacedRule, catalogue: Catalogue) -> Answer:
    read = logql.read if placed.file.language == "logql" else promql.read
    return read(placed.rule["expr"], catalogue)


def _check_alert(placed: PlacedRule, labels: Labels | None) -> Iterator[Problem]:
    where, annotations = placed.where, placed.rule.get("annotations") or {}
    severity = placed.labels.get("severity")
    if severity not in SEVERITIES:
        what = "has no severity" if severity is None else f"has the severity {severity!r}"
        yield Problem(where, what, listed(SEVERITIES), "set the label `severity`: it decides who is notified, and how")
    for name, use in NEEDED.items():
        if not annotations.get(name):
            yield Problem(where, f"has no {name}", fix=f"add the annotation `{name}`: {use}")
    if (runbook := annotations.get("runbook")) and not _is_there(str(runbook), placed.file.root):
        yield Problem(
            where,
            f"its runbook {runbook} does not exist",
            fix="write it, with Meaning, Impact, Diagnosis and Mitigation",
        )
    if any("$value" in str(value) for value in placed.labels.values()):
        yield Problem(
            where,
            "a label contains $value",
            fix="move it to an annotation: a label that changes makes each value a new alert",
        )
    if labels is not None:
        yield from _check_texts(placed, labels | placed.labels.keys() | {"alertname"})


def _check_texts(placed: PlacedRule, labels: Labels) -> Iterator[Problem]:
    """Texts that name a label which the alert never has: the page would have a gap there."""
    texts = {**placed.labels, **(placed.rule.get("annotations") or {})}
    for name, text in texts.items():
        for label in sorted(set(_LABEL_IN_TEXT.findall(str(text))) - labels):
            known = f"it has {listed(sorted(labels), 'and')}"
            yield Problem(placed.where, f"`{name}` names the label {label!r}, which the alert never has", fix=known)


def _is_there(runbook: str, root: Path) -> bool:
    path, _, section = runbook.partition("#")
    if path.startswith(("https://", "http://")):
        return True
    file = root / path
    return file.is_file() and (not section or f"## {section}\n" in file.read_text())
