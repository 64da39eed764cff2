"""`make reliability`: how often each host of a stack failed in a month, and for how long, as CSV: one row for each host, and one
for each cause that it had.

    python -m gpu_fleet.operations.reliability --stack us-west-training --month 2026-10 [--to reliability.csv]

From what alerts/rules/reliability.yaml records each minute; months as in usage.py. Maintenance and drains make a host unavailable
and are no failures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpu_fleet.operations.mimir import Mimir
from gpu_fleet.operations.output import run
from gpu_fleet.operations.usage import PER_HOUR, Month, Table, month_as_csv
from gpu_fleet.stackfile.config import StackConfig

HEAD: Final = (
    *("month", "datacenter", "cluster", "host", "model", "cause", "failures", "hours_down", "hours_observed"),
    *("availability_percent", "hours_between_failures", "hours_to_repair"),
)
NO_FAILURES: Final = ("maintenance", "drained")


@dataclass
class Record:
    """Of one host. `down`: hours by cause; `failures`: those that began in the month, by cause."""

    model: str = ""
    observed: float = 0
    down: dict[str, float] = field(default_factory=dict)
    failures: dict[str, float] = field(default_factory=dict)


def records(store: Mimir, which: str, spans: Sequence[tuple[float, float]]) -> Mapping[str, Record]:
    """By host. Raises OperationError."""
    found: dict[str, Record] = {}

    def of(labels: Mapping[str, str]) -> Record:
        return found.setdefault(labels.get("instance", ""), Record())

    for begin, end in spans:
        span = f"[{int(end - begin)}s]"
        for labels, value in store.vector(f"count_over_time(host:available:bool{which}{span})", at=end):
            of(labels).observed += value / PER_HOUR
        for labels, value in store.vector(f"sum_over_time(host:down:bool{which}{span})", at=end):
            host, cause = of(labels), labels.get("cause", "")
            host.model = labels.get("model", "")
            host.down[cause] = host.down.get(cause, 0) + value / PER_HOUR
    # Remembered for a day, as by the rule itself. After a longer outage of the ruler it begins again: each day's growth counts.
    last: dict[tuple[str, str], float] = {}
    for number, at in enumerate((spans[0][0], *(end for _, end in spans))):
        for labels, value in store.vector(f"last_over_time(host:failures:total{which}[1d])", at=at):
            key = labels.get("instance", ""), labels.get("cause", "")
            before = last.get(key, 0)
            if number:
                of(labels).failures[key[1]] = of(labels).failures.get(key[1], 0) + value - (before if value >= before else 0)
            last[key] = value
    return found


def rows(config: StackConfig, month: str, found: Mapping[str, Record]) -> Iterator[tuple[str, ...]]:
    for name, host in sorted(found.items()):
        if not host.observed:
            continue
        about = (month, config.datacenter, config.cluster, name, host.model)
        down, failures = sum(host.down.values()), round(sum(host.failures.values()))
        failed = sum(hours for cause, hours in host.down.items() if cause not in NO_FAILURES)
        between, repair = (f"{(host.observed - down) / failures:.2f}", f"{failed / failures:.2f}") if failures else ("", "")
        available = f"{100 * (1 - down / host.observed):.3f}"
        yield (*about, "", str(failures), f"{down:.2f}", f"{host.observed:.2f}", available, between, repair)
        for cause in sorted({*host.down, *(cause for cause, count in host.failures.items() if count)}):
            count = round(host.failures.get(cause, 0))
            yield (*about, cause, str(count), f"{host.down.get(cause, 0):.2f}", "", "", "", "")


def table_of(month: Month) -> Table:
    return list(rows(month.config, month.name, records(month.store, month.which, month.spans))), ()


def main(arguments: list[str]) -> int:
    return month_as_csv(arguments, "reliability", "The failures of a month's hosts as CSV.", HEAD, table_of)


if __name__ == "__main__":
    run(main)
