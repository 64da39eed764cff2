"""`make usage`: the GPU-hours of a stack's cluster in a month as CSV, by model, state, account, user and namespace, with
prices as money.

    python -m gpu_fleet.operations.usage --stack us-west-training --month 2026-10 [--to usage.csv] [--prices observability]

From what alerts/rules/usage.yaml records each minute. A month is UTC's; of the current one, what has passed. Hours in which
nothing was recorded, such as those before gpu-fleet:jobs or the first pod with a GPU, are in no row: a note has their number.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import sys
import time
from calendar import timegm
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.mimir import Mimir
from gpu_fleet.operations.output import run
from gpu_fleet.operations.stack import configuration, deployed_configuration, enter_project
from gpu_fleet.stackfile.config import ConfigErrors, StackConfig
from gpu_fleet.stackfile.prices import Prices

PER_HOUR: Final = 60  # samples: the interval of the rules
_DAY_S: Final = 86400
_BY: Final = ("model", "state", "account", "user", "namespace")
_MODEL, _STATE = _BY.index("model"), _BY.index("state")
_UNBILLED: Final = "powered_down"  # no cloud bills an instance that is stopped
HEAD: Final = ("month", "datacenter", "cluster", *_BY, "gpu_hours", "cost", "currency")
# Larger differences have an alert, GpuHoursDoNotAddUp.
_MOST_APART: Final = 0.005

# By the labels of _BY, and by day as 2026-10-01: each has its price.
Hours = Mapping[tuple[str, ...], Mapping[str, float]]


def days(month: str, now: float) -> list[tuple[float, float]]:
    """Begin and end of each day, s since 1970, the last one until now. `month`: YYYY-MM. Raises OperationError."""
    found = re.fullmatch(r"(\d{4})-(0[1-9]|1[0-2])", month)
    if not found:
        raise OperationError(f"MONTH is {month!r}, expected a year and a month such as 2026-10")
    year, number = int(found[1]), int(found[2])
    begin = timegm((year, number, 1, 0, 0, 0))
    end = timegm((year + number // 12, number % 12 + 1, 1, 0, 0, 0))
    if begin >= now:
        raise OperationError(f"MONTH is {month}, which has not begun")
    # A query of a whole month is more than a store answers at once.
    return [(day, min(day + _DAY_S, end, now)) for day in range(begin, int(min(end, now)), _DAY_S)]


def hours(store: Mimir, which: str, spans: Sequence[tuple[float, float]]) -> tuple[Hours, float, float]:
    """GPU-hours, those of the inventory, and the hours in which it was recorded. Raises OperationError."""
    used: dict[tuple[str, ...], dict[str, float]] = {}
    inventory = recorded = 0.0
    for begin, end in spans:
        span, day = f"[{int(end - begin)}s]", time.strftime("%Y-%m-%d", time.gmtime(begin))
        for labels, value in store.vector(f"sum_over_time(cluster:gpus_by_use:count{which}{span})", at=end):
            of_day = used.setdefault(tuple(labels.get(name, "") for name in _BY), {})
            of_day[day] = of_day.get(day, 0) + value / PER_HOUR
        of_hosts = store.vector(f"sum(sum_over_time(host:gpus_inventory:count{which}{span}))", at=end)
        inventory += sum(value for _, value in of_hosts) / PER_HOUR
        counted = store.vector(f"max(count_over_time(host:gpus_inventory:count{which}{span}))", at=end)
        recorded += sum(value for _, value in counted) / PER_HOUR
    return used, inventory, recorded


@dataclass(frozen=True)
class Tariff:
    """What a GPU-hour costs. `currency`: ISO 4217."""

    prices: Prices
    currency: str


def tariff(config: StackConfig) -> Tariff | None:
    section = config.grafana
    if section is None or section.cost_per_gpu_hour is None:
        return None
    return Tariff(Prices.of(section.cost_per_gpu_hour), section.currency)


def rows(config: StackConfig, month: str, used: Hours, costs_as: Tariff | None) -> Iterator[tuple[str, ...]]:
    for key, of_days in sorted(used.items()):
        prices = costs_as.prices if costs_as and key[_STATE] != _UNBILLED else None
        costs = [count * price for day, count in of_days.items() if prices and (price := prices.at(key[_MODEL], day)) is not None]
        money = (f"{sum(costs):.2f}", costs_as.currency) if costs_as and costs else ("", "")
        yield (month, config.datacenter, config.cluster, *key, f"{sum(of_days.values()):.2f}", *money)


def notes(
    used: Hours, inventory: float, recorded: float, spans: Sequence[tuple[float, float]], costs_as: Tariff | None
) -> Iterator[str]:
    """What the reader of the CSV must know."""
    total = sum(sum(of_days.values()) for of_days in used.values())
    passed = sum(end - begin for begin, end in spans) / 3600
    yield f"{total:,.1f} GPU-hours of {inventory:,.1f} in the inventory"
    if inventory and abs(total / inventory - 1) > _MOST_APART:
        yield "They differ by more than 0.5 %: see the alert GpuHoursDoNotAddUp."
    if passed - recorded > passed * _MOST_APART:
        yield f"Recorded for {recorded:,.1f} of {passed:,.1f} hours; the others are in no row."
    if costs_as:
        free: dict[str, float] = {}
        for key, of_days in used.items():
            for day, count in of_days.items():
                if key[_STATE] != _UNBILLED and costs_as.prices.at(key[_MODEL], day) is None:
                    free[key[_MODEL]] = free.get(key[_MODEL], 0) + count
        for model, count in sorted(free.items()):
            yield f"{count:,.1f} GPU-hours of {model or 'GPUs of unknown model'} have no price in grafana.costPerGpuHour."


def csv_text(head: Sequence[str], found: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *found])
    return text.getvalue()


def write(to: str, head: Sequence[str], found: Sequence[Sequence[str]]) -> None:
    """`to`: a file, or - for standard output."""
    if to == "-":
        print(csv_text(head, found), end="")
    else:
        Path(to).parent.mkdir(parents=True, exist_ok=True)
        Path(to).write_text(csv_text(head, found))


@dataclass(frozen=True)
class Month:
    """What a command for a month of a stack was asked for. `which`: the stack's series; `spans`: as of days()."""

    name: str
    config: StackConfig
    store: Mimir
    which: str
    spans: Sequence[tuple[float, float]]


Table = tuple[Sequence[tuple[str, ...]], Sequence[str]]


def month_as_csv(arguments: list[str], what: str, description: str, head: Sequence[str], table: Callable[[Month], Table]) -> int:
    """`make WHAT`. `table`: the rows, and notes for stderr. Exit status: 0, and 1 when there is nothing to write."""
    parser = argparse.ArgumentParser(prog=f"make {what}", description=description)
    parser.add_argument("--stack", required=True)
    parser.add_argument("--month", required=True, metavar="YYYY-MM")
    parser.add_argument("--to", default="-", metavar="FILE", help="-: standard output")
    given = parser.parse_args(arguments)
    try:
        enter_project()
        config = deployed_configuration(given.stack).load()
        spans = days(given.month, time.time())
        which = f'{{datacenter="{config.datacenter}",cluster="{config.cluster}"}}'
        found, said = table(Month(given.month, config, Mimir.of(config, given.stack), which, spans))
        if not found:
            raise OperationError(
                f"Nothing was recorded in {given.month}: it needs gpu-fleet:jobs, or pods with GPUs, and our recording rules."
            )
    except (OperationError, ConfigErrors) as error:
        print(error, file=sys.stderr)
        return 1
    write(given.to, head, found)
    for note in said:
        print(note, file=sys.stderr)
    return 0


def table_of(prices_of: str, month: Month) -> Table:
    """`prices_of`: the stack that has the prices. Empty: the same."""
    costs_as = tariff(configuration(prices_of).load() if prices_of else month.config)
    if prices_of and costs_as is None:
        raise OperationError(f"PRICES is {prices_of}, whose stack file has no gpu-fleet:grafana.costPerGpuHour")
    used, inventory, recorded = hours(month.store, month.which, month.spans)
    found = list(rows(month.config, month.name, used, costs_as))
    return found, list(notes(used, inventory, recorded, month.spans, costs_as))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--prices", default="", metavar="STACK")
    given, others = parser.parse_known_args(arguments)
    return month_as_csv(others, "usage", "The GPU-hours of a month as CSV.", HEAD, partial(table_of, given.prices))


if __name__ == "__main__":
    run(main)
