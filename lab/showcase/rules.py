"""The project's rules over a past: Mimir evaluates every expression, and the results are pushed as its ruler would.

A ruler works forward in time only. What it adds to a query is done here: the name and labels of a recorded series, and of an
alert how long it waits.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from alerts.model import Rule
from lab.showcase.remote_write import Labels, Samples, ended, push

_AT_ONCE: Final = 4
_WITHIN_S: Final = 60
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_ALERTS: Final = "ALERTS"


def record(mimir: str, rules: Iterable[Rule], start_s: float, end_s: float, step_s: int) -> None:
    """`mimir`: base URL. Raises OSError with the rule that Mimir rejected."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for level in _levels(list(rules)):
            series: dict[Labels, Samples] = {}
            for made in pool.map(lambda rule: dict(_made(mimir, rule, start_s, end_s, step_s)), level):
                series |= {labels: list(ended(samples, step_s, end_s)) for labels, samples in made.items()}
            push(f"{mimir}/api/v1/push", series)


def _levels(rules: list[Rule]) -> Iterator[list[Rule]]:
    """Rules in batches: those of a batch are independent, and later batches may use earlier ones."""
    names = {rule["record"] for rule in rules if "record" in rule}
    asked = [(rule, set(re.findall(r"[a-zA-Z_:][\w:]*", rule["expr"])) & (names | {_ALERTS})) for rule in rules]
    done: set[str] = set()
    waiting = asked
    while waiting:
        # Alerts about alerts come last of all.
        ready = [rule for rule, needs in waiting if needs - {rule.get("record")} <= done] or [rule for rule, _ in waiting]
        yield ready
        waiting = [(rule, needs) for rule, needs in waiting if rule not in ready]
        done |= names - {rule.get("record") for rule, _ in waiting}


def _made(
    mimir: str, rule: Rule, start_s: float, end_s: float, step_s: int
) -> Iterator[tuple[Labels, list[tuple[float, float]]]]:
    own = rule.get("labels", {})
    for result in _asked(mimir, rule["expr"], start_s, end_s, step_s):
        values = [(float(at_s), float(value)) for at_s, value in result["values"]]
        if "record" in rule:
            yield _labels(result["metric"], own, {"__name__": rule["record"]}), values
        else:
            fixed = {"__name__": _ALERTS, "alertname": rule["alert"], "alertstate": "firing"}
            firing = list(_firing(values, step_s, _seconds(rule.get("for", "0s"))))
            if firing:
                yield _labels(result["metric"], own, fixed), firing


def _firing(values: list[tuple[float, float]], step_s: int, wait_s: float) -> Iterator[tuple[float, float]]:
    since, last = 0.0, 0.0
    for at_s, _ in values:
        if at_s - last > step_s:
            since = at_s
        last = at_s
        if at_s - since >= wait_s:
            yield at_s, 1.0


def _labels(*parts: Mapping[str, str]) -> Labels:
    merged: dict[str, str] = {}
    for part in parts:
        merged |= part
    return tuple(sorted((name, value) for name, value in merged.items() if value))


def _asked(mimir: str, expression: str, start_s: float, end_s: float, step_s: int) -> list[dict[str, Any]]:
    asked = urllib.parse.urlencode({"query": expression, "start": start_s, "end": end_s, "step": step_s}).encode()
    try:
        with urllib.request.urlopen(f"{mimir}/prometheus/api/v1/query_range", asked, timeout=_WITHIN_S) as answer:  # noqa: S310
            return json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as error:
        raise OSError(f"{expression}\n{error.read().decode(errors='replace')[:500]}") from None


def _seconds(duration: str) -> float:
    return sum(int(number) * _SECONDS[unit] for number, unit in re.findall(r"(\d+)([smhd])", duration))
