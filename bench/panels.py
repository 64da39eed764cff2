"""What the panels read: series and samples of a month of a large fleet, computed from the series in measured stores.

Mimir counts the samples of whole chunks, which hold half an hour: over the minutes of a measurement that says nothing. The series
that a selector matches can be counted exactly, and what 30 days of them hold follows from how often they are written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import promql_parser as promql

import alerts
from dashboards import all_dashboards
from dashboards.layout import all_panels
from gpu_fleet.signals.panels import filled_in
from gpu_fleet.signals.promql import parse
from gpu_fleet.stackfile.values import duration_s

SCRAPE_S: Final = 15
RANGE_S: Final = 30 * 86_400
GPUS: Final = 10_000
HOST: Final = "gpu-node-0000"  # the one that a dashboard of one host shows

# Series that a selector matches in a store.
Count = Callable[[str], int]


@dataclass(frozen=True)
class Reading:
    """One selector of a query. `seconds`: how much of the past the query reads of each series; 0: the last sample alone."""

    selector: str
    seconds: float


def table(counts: Mapping[int, Count], most: int) -> list[dict[str, Any]]:
    """The panels that read most. `counts`: of the store with that many GPUs, at least two sizes."""
    every = _intervals()
    counted: dict[str, float] = {}

    def series(selector: str) -> float:
        if selector not in counted:
            counted[selector] = at_size({gpus: count(selector) for gpus, count in counts.items()}, GPUS)
        return counted[selector]

    rows = []
    for board in all_dashboards().values():
        for panel in all_panels(board):
            read = [
                reading
                for target in targets(panel)
                for reading in readings(target["expr"], bool(target.get("instant")), chosen(board))
            ]
            million = sum(samples(series(one.selector), one, every) for one in read) / 1e6
            if million >= 0.1:
                total = round(sum(series(one.selector) for one in read))
                rows.append(
                    {"dashboard": board["title"], "panel": panel["title"], "series": total, "million samples": round(million, 1)}
                )
    return sorted(rows, key=lambda row: -row["million samples"])[:most]


def chosen(board: Mapping[str, Any]) -> dict[str, str]:
    """Values of the variables that a dashboard starts with one value of."""
    return {variable["name"]: HOST for variable in board["templating"]["list"] if variable.get("includeAll") is False}


def readings(query: str, instant: bool, values: Mapping[str, str]) -> list[Reading]:
    """Of one target: an instant query reads what its own windows hold, another one the dashboard's range too. `values`: of
    variables; others match everything."""
    whole = re.sub(r"\$(__range\b|\{__range\})", f"{RANGE_S}s", query)
    filled = re.sub(r'"\$\{?(\w+)(:\w+)?\}?"', lambda found: f'"{values.get(found[1], ".*")}"', filled_in(whole, {}))
    return list(_readings(parse(filled), 0 if instant else RANGE_S))


def _readings(node: promql.Expr, seconds: float) -> Iterator[Reading]:
    match node:
        case promql.VectorSelector():
            yield Reading(_plain(node), seconds)
        case promql.MatrixSelector():
            yield Reading(_plain(node.vector_selector), seconds + node.range.total_seconds())
        case promql.SubqueryExpr():
            yield from _readings(node.expr, seconds + (node.range or timedelta()).total_seconds())
        case promql.BinaryExpr():
            yield from _readings(node.lhs, seconds)
            yield from _readings(node.rhs, seconds)
        case promql.Call():
            for argument in node.args:
                yield from _readings(argument, seconds)
        case promql.AggregateExpr() | promql.ParenExpr() | promql.UnaryExpr():
            yield from _readings(node.expr, seconds)


def _plain(selector: promql.VectorSelector) -> str:
    """Without offset and @: the series are the same ones."""
    return re.sub(r"\s+(offset|@)\s.*$", "", str(selector), flags=re.DOTALL)


def samples(series: float, reading: Reading, intervals_s: Mapping[str, float]) -> float:
    """That many series hold in what is read."""
    name = re.match(r"[a-zA-Z_:][\w:]*|(?={)", reading.selector)
    return series * max(1.0, reading.seconds / intervals_s.get(name[0] if name else "", SCRAPE_S))


def at_size(counts: Mapping[int, float], gpus: int) -> float:
    """Series at another size, by the line through the two largest ones: it is 0 per GPU for what is recorded per cluster."""
    (few, before), (many, after) = sorted(counts.items())[-2:]
    return max(0.0, after + (after - before) / (many - few) * (gpus - many))


def _intervals() -> dict[str, float]:
    """Seconds between two samples of each recorded series."""
    return {
        rule["record"]: duration_s(group.interval) or SCRAPE_S
        for group in alerts.recording_groups()
        for rule in group.rules
        if "record" in rule
    }


def targets(panel: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [
        target
        for target in panel.get("targets", ())
        if (target.get("datasource") or panel.get("datasource") or {}).get("type") == "prometheus"
    ]
