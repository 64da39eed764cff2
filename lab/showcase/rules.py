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
from lab.showcase.remote_write import STALE, Labels, Samples, ended, push

_AT_ONCE: Final = 4
_WITHIN_S: Final = 60
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_ALERTS: Final = "ALERTS"


def record(mimir: str, rules: Iterable[Rule], start_s: float, end_s: float, step_s: int) -> None:
    """`mimir`: base URL. Raises OSError with the rule that Mimir rejected."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for level, is_cycle in _levels(list(rules)):
            if is_cycle:
                _step_by_step(mimir, level, start_s, end_s, step_s)
                continue
            series: dict[Labels, Samples] = {}
            for made in pool.map(lambda rule: dict(_made(mimir, rule, start_s, end_s, step_s)), level):
                series |= {labels: list(ended(samples, step_s, end_s)) for labels, samples in made.items()}
            push(f"{mimir}/api/v1/push", series)


def _levels(rules: list[Rule]) -> Iterator[tuple[list[Rule], bool]]:
    """Rules in batches: those of a batch are independent, and later batches may use earlier ones. Rules that read what they or
    each other recorded before are a batch of their own (True)."""
    names = {rule["record"] for rule in rules if "record" in rule}
    done: set[str] = set()
    waiting = [(rule, _names(rule) & (names | {_ALERTS})) for rule in rules]
    while waiting:
        level, is_cycle = [rule for rule, needs in waiting if needs <= done], False
        if not level:
            level, is_cycle = _cycle(waiting, done), True
        if not level:  # alerts about alerts come last of all
            level, is_cycle = [rule for rule, _ in waiting], False
        yield level, is_cycle
        waiting = [(rule, needs) for rule, needs in waiting if rule not in level]
        done |= names - {rule.get("record") for rule, _ in waiting}


def _cycle(waiting: list[tuple[Rule, set[str]]], done: set[str]) -> list[Rule]:
    """Rules that need each other and nothing else that is not done; empty: there are none."""
    needed: dict[str, set[str]] = {}
    for rule, needs in waiting:
        needed.setdefault(rule.get("record", ""), set()).update(needs)

    def reached(name: str) -> set[str]:
        found: set[str] = set()
        todo = [name]
        while todo:
            new = needed.get(todo.pop(), set()) - found - done
            found |= new
            todo += new
        return found

    for name in filter(None, needed):
        cycle = {other for other in reached(name) if name in reached(other)}
        if name in cycle and set().union(*(needed.get(other, set()) for other in cycle)) <= cycle | done:
            return [rule for rule, _ in waiting if rule.get("record") in cycle]
    return []


def _names(rule: Rule) -> set[str]:
    return set(re.findall(r"[a-zA-Z_:][\w:]*", rule["expr"]))


def _step_by_step(mimir: str, rules: list[Rule], start_s: float, end_s: float, step_s: int) -> None:
    """As a ruler evaluates a group: every rule at one time, then all of them at the next."""
    results = [result for rule in rules for result in _asked(mimir, rule["expr"], start_s, end_s, step_s)]
    at_s = min((float(result["values"][0][0]) for result in results), default=end_s)  # nothing is remembered before
    before: dict[int, set[Labels]] = {}
    while at_s <= end_s:
        for number, rule in enumerate(rules):
            now: dict[Labels, Samples] = {}
            for result in _asked(mimir, rule["expr"], at_s, at_s, step_s):
                labels = _labels(result["metric"], rule.get("labels", {}), {"__name__": rule["record"]})
                now[labels] = [(at_s, float(result["values"][0][1]))]
            gone: dict[Labels, Samples] = {labels: [(at_s, STALE)] for labels in before.get(number, set()) - now.keys()}
            push(f"{mimir}/api/v1/push", gone | now)
            before[number] = set(now)
        at_s += step_s


def _made(
    mimir: str, rule: Rule, start_s: float, end_s: float, step_s: int
) -> Iterator[tuple[Labels, list[tuple[float, float]]]]:
    own = rule.get("labels", {})
    for result in _asked(mimir, rule["expr"], start_s, end_s, step_s):
        values = [(float(at_s), float(value)) for at_s, value in result["values"]]
        if "record" in rule:
            yield _labels(result["metric"], own, {"__name__": rule["record"]}), values
        else:
            labels = {"alertname": rule["alert"]}
            firing = list(_firing(values, step_s, _seconds(rule.get("for", "0s"))))
            if firing:
                state = {"__name__": _ALERTS, "alertstate": "firing"}
                yield _labels(result["metric"], own, labels, state), [(at_s, 1.0) for at_s, _ in firing]
                yield _labels(result["metric"], own, labels, {"__name__": "ALERTS_FOR_STATE"}), firing


def _firing(values: list[tuple[float, float]], step_s: int, wait_s: float) -> Iterator[tuple[float, float]]:
    """When an alert fires, with the time at which its condition began."""
    since, last = 0.0, 0.0
    for at_s, _ in values:
        if at_s - last > step_s:
            since = at_s
        last = at_s
        if at_s - since >= wait_s:
            yield at_s, since


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
