"""Reads a PromQL expression: the metrics and labels in it that do not exist, and the labels that its result can have.

Parsing is promql-parser's, whose grammar is that of Prometheus 3. It leaves some types unchecked; promtool in the tests does not.
Labels are followed through aggregations, matching and label_replace: a label that no series can have there is a finding, because
the expression then joins on, or groups by, something that is always empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

import promql_parser as promql

from gpu_fleet.signals.catalogue import Catalogue, Labels, nearest, plain_names
from gpu_fleet.stackfile.problems import listed

_SET_OPERATORS: Final = ("and", "or", "unless")
# Aggregations whose result keeps the labels of the series they choose.
_CHOOSING: Final = ("topk", "bottomk", "limitk", "limit_ratio")
_COMPARISONS: Final = ("==", "!=", ">", "<", ">=", "<=")
_HOW_TO_ADD: Final = "if an exporter of yours gives it, add it to metrics.txt of gpu-fleet:custom (docs/overrides.md)"


@dataclass(frozen=True)
class Finding:
    """`what`: found in the expression. `fix`: the next step."""

    what: str
    fix: str = ""


@dataclass(frozen=True)
class Answer:
    """What reading an expression gave. `labels`: those its result can have; None: any."""

    labels: Labels | None
    findings: tuple[Finding, ...]


@cache
def parse(expression: str) -> promql.Expr:
    """Raises ValueError with the parser's words."""
    return promql.parse(expression)


def read(expression: str, catalogue: Catalogue) -> Answer:
    """The whole expression against what is known."""
    try:
        tree = parse(expression)
    except ValueError as error:
        return Answer(None, (Finding(f"the query does not parse: {error}"),))
    reader = Reader(catalogue)
    labels = reader.labels_of(tree)
    return Answer(labels, reader.findings())


def labels_of_result(expression: str, catalogue: Catalogue) -> Labels | None:
    """The labels alone, without what a finding costs: each looks for a similar name among thousands, for 10 to 20 ms."""
    try:
        return Reader(catalogue).labels_of(parse(expression))
    except ValueError:
        return None


def together(sets: Iterable[Labels | None]) -> Labels | None:
    """Labels that one of the sets has; None where one may have any."""
    joined: Labels = frozenset()
    for labels in sets:
        if labels is None:
            return None
        joined |= labels
    return joined


class Reader:
    """Walks one expression. What is wrong in it is noted on the way, and put into words by `findings`."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.noted: list[Callable[[], Finding]] = []

    def findings(self) -> tuple[Finding, ...]:
        return tuple(dict.fromkeys(in_words() for in_words in self.noted))

    def labels_of(self, node: promql.Expr) -> Labels | None:
        match node:
            case promql.VectorSelector():
                return self.labels_of_selector(node)
            case promql.MatrixSelector():
                return self.labels_of_selector(node.vector_selector)
            case promql.AggregateExpr():
                return self._aggregated(node)
            case promql.BinaryExpr():
                return self._combined(node)
            case promql.Call():
                return self._called(node)
            case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
                return self.labels_of(node.expr)
        return frozenset()  # numbers and strings

    def labels_of_selector(self, selector: promql.VectorSelector) -> Labels | None:
        """Of the metrics that a selector takes; a name or a label that nothing gives is a finding."""
        alternatives = [matchers for matchers in (selector.matchers.matchers, *selector.matchers.or_matchers) if matchers]
        names: list[str] | None = [] if selector.name is None else [selector.name]
        for matcher in (matcher for matchers in alternatives for matcher in matchers if matcher.name == "__name__"):
            chosen = self._names(matcher)
            names = None if chosen is None or names is None else [*names, *chosen]
        if names is not None and not names:
            names = None  # chosen by labels alone
        labels = None if names is None else together(self._labels_of_metric(name) for name in names)
        if labels is not None:
            what = selector.name or "|".join(names or ())
            for name in dict.fromkeys(matcher.name for matchers in alternatives for matcher in matchers):
                if name != "__name__" and name not in labels:
                    self._unknown_label(name, labels, f"{_cut(what)} has no label {name!r}")
        return labels

    def _names(self, matcher: promql.Matcher) -> tuple[str, ...] | None:
        """The metrics that a matcher of __name__ takes; None: not said by it alone."""
        if matcher.op == promql.MatchOp.Equal:
            return (matcher.value,)
        if matcher.op != promql.MatchOp.Re:
            return None
        listed_names = plain_names(matcher.value)
        if listed_names is not None:
            return listed_names
        try:
            found = self.catalogue.matching(matcher.value)
        except re.error:
            return None
        if not found:
            self.noted.append(partial(Finding, f"no known metric matches {matcher.value!r}", _HOW_TO_ADD))
            return None
        return found

    def _labels_of_metric(self, name: str) -> Labels | None:
        if name in self.catalogue.metrics:
            return self.catalogue.metrics[name]
        self.noted.append(partial(_unknown_metric, name, self.catalogue))
        return None

    def _aggregated(self, node: promql.AggregateExpr) -> Labels | None:
        labels = self.labels_of(node.expr)
        operator = str(node.op)
        counted = (
            frozenset({node.param.val})
            if operator == "count_values" and isinstance(node.param, promql.StringLiteral)
            else frozenset()
        )
        by = frozenset(node.modifier.labels) if node.modifier else frozenset()
        is_without = node.modifier is not None and node.modifier.type == promql.AggModifierType.Without
        if labels is not None and not is_without:  # what is dropped may as well be absent
            for name in sorted(by - labels - counted):
                self._unknown_label(name, labels, f"`{operator} by` names the label {name!r}, which no series has there")
        if operator in _CHOOSING:
            return labels
        if is_without:
            return None if labels is None else (labels - by) | counted
        return by | counted

    def _combined(self, node: promql.BinaryExpr) -> Labels | None:
        left, right = self.labels_of(node.lhs), self.labels_of(node.rhs)
        operator, modifier = str(node.op), node.modifier
        matching = modifier.matching if modifier else None
        on = frozenset(matching.labels) if matching and matching.type == promql.LabelModifierType.Include else None
        for side, labels in (("left", left), ("right", right)):
            for name in sorted((on or frozenset()) - labels) if labels is not None else ():
                self._unknown_label(
                    name, labels or frozenset(), f"`{operator} on` names the label {name!r}, which the {side} side never has"
                )
        if operator == "or":
            return together((left, right))
        if operator in _SET_OPERATORS or _is_scalar(node.rhs):
            return left
        if _is_scalar(node.lhs):
            return right
        added = frozenset(modifier.group_labels or ()) if modifier else frozenset()
        many, one = (right, left) if modifier and modifier.card == promql.VectorMatchCardinality.OneToMany else (left, right)
        for name in sorted(added - one) if one is not None else ():
            self._unknown_label(
                name,
                one or frozenset(),
                f"`group_left` or `group_right` takes the label {name!r} from the other side, which never has it",
            )
        if modifier and modifier.card in (promql.VectorMatchCardinality.ManyToOne, promql.VectorMatchCardinality.OneToMany):
            return None if many is None else many | added
        return on if on is not None and operator not in _COMPARISONS else left

    def _called(self, node: promql.Call) -> Labels | None:
        labels = together(self.labels_of(argument) for argument in node.args if not isinstance(argument, promql.StringLiteral))
        texts = [argument.val for argument in node.args if isinstance(argument, promql.StringLiteral)]
        name = node.func.name
        if name == "vector":
            return frozenset()
        if name in ("absent", "absent_over_time"):
            return None  # the labels of its matchers, which are checked already
        if name == "label_replace" and len(texts) == 4:
            self._sources((texts[2],), labels, name)
            return None if labels is None else labels | {texts[0]}
        if name == "label_join" and len(texts) >= 2:
            self._sources(texts[2:], labels, name)
            return None if labels is None else labels | {texts[0]}
        return labels

    def _sources(self, names: Iterable[str], labels: Labels | None, function: str) -> None:
        for name in names:
            if labels is not None and name not in labels | {"", "__name__"}:
                self._unknown_label(name, labels, f"{function} reads the label {name!r}, which no series has there")

    def _unknown_label(self, name: str, labels: Labels, what: str) -> None:
        self.noted.append(partial(_unknown_label, name, labels, what))


def _unknown_metric(name: str, catalogue: Catalogue) -> Finding:
    meant = nearest(name, catalogue.metrics)
    what = f"no exporter and no rule gives the metric {name}"
    return Finding(what, f"did you mean {meant}? {_HOW_TO_ADD}" if meant else _HOW_TO_ADD)


def _unknown_label(name: str, labels: Labels, what: str) -> Finding:
    meant = nearest(name, labels)
    known = f"known there: {listed(sorted(labels), 'and')}" if labels else "no label is left there"
    return Finding(what, f"did you mean {meant!r}? ({known})" if meant else known)


def _is_scalar(node: promql.Expr) -> bool:
    """One number without labels."""
    match node:
        case promql.NumberLiteral():
            return True
        case promql.Call():
            return bool(node.func.return_type == promql.ValueType.Scalar)
        case promql.ParenExpr() | promql.UnaryExpr():
            return _is_scalar(node.expr)
        case promql.BinaryExpr():
            return _is_scalar(node.lhs) and _is_scalar(node.rhs)
    return False


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def selectors(node: promql.Expr) -> Iterator[promql.VectorSelector]:
    """Every selector of an expression."""
    match node:
        case promql.VectorSelector():
            yield node
        case promql.MatrixSelector():
            yield node.vector_selector
        case promql.BinaryExpr():
            yield from selectors(node.lhs)
            yield from selectors(node.rhs)
        case promql.Call():
            for argument in node.args:
                yield from selectors(argument)
        case promql.AggregateExpr() | promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            yield from selectors(node.expr)
