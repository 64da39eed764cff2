"""Rules read only series that have our labels.

A Prometheus that stores what Alloy sends may also scrape the same exporters itself, as it did before: those series have no label
`datacenter`, and each GPU would be counted, and each disk alerted on, a second time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import promql_parser as promql

_REQUIRED: Final = 'datacenter!=""'
_TOKEN: Final = re.compile(r'#[^\n]*|"(?:\\.|[^"\\])*"|[a-zA-Z_:][\w:]*|\{')
_ALERTS: Final = ("ALERTS", "ALERTS_FOR_STATE")


def of_our_hosts(expression: str) -> str:
    """The expression with the matcher in each selector of what exporters and agents give; recorded series have the label."""
    names = set(_names(promql.parse(expression)))
    parts, end = [], 0
    for token in _TOKEN.finditer(expression):
        follows = expression[token.end() :]
        if token[0] in names:
            parts.append(expression[end : token.end()])
            end = token.end()
            if not follows.startswith("{"):
                parts.append(f"{{{_REQUIRED}}}")
            elif not follows.startswith(f"{{{_REQUIRED}"):
                parts.append(f"{{{_REQUIRED}, ")
                end += 1
        elif token[0] == "{" and re.match(r'\s*__name__=~"[^":]*"', follows):
            parts.append(f"{expression[end : token.end()]}{_REQUIRED}, ")
            end = token.end()
    return "".join((*parts, expression[end:]))


def _names(node: Any) -> Iterator[str]:
    match node:
        case promql.VectorSelector():
            if node.name and ":" not in node.name and node.name not in _ALERTS:
                yield node.name
        case promql.MatrixSelector():
            yield from _names(node.vector_selector)
        case promql.Call():
            for each in node.args:
                yield from _names(each)
        case promql.BinaryExpr():
            yield from _names(node.lhs)
            yield from _names(node.rhs)
        case promql.AggregateExpr() | promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            yield from _names(node.expr)
