"""`make reliability`: how often each host of a stack failed in a month, and for how long, as CSV: one row for each host, and one
for each cause that it had.

    python -m gpu_fleet.operations.reliability --stack us-west-training --month 2026-10 [--to reliability.csv]

From what alerts/rules/reliability.yaml records each minute; months as in usage.py. Maintenance and drains make a host unavailable
and are no failures.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.mimir import Mimir
from gpu_fleet.operations.output import run
from gpu_fleet.operations.stack import deployed_configuration, enter_project
from gpu_fleet.operations.usage import PER_HOUR, days, write
from gpu_fleet.stackfile.config import ConfigErrors, StackConfig

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
    for at, sign in ((spans[0][0], -1), (spans[-1][1], 1)):
        # Remembered for a day, as by the rule itself.
        for labels, value in store.vector(f"last_over_time(host:failures:total{which}[1d])", at=at):
            host, cause = of(labels), labels.get("cause", "")
            host.failures[cause] = host.failures.get(cause, 0) + sign * value
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


def main(arguments: list[str]) -> int:
    """Exit status: 0, and 1 when there is nothing to write."""
    parser = argparse.ArgumentParser(prog="make reliability", description="The failures of a month's hosts as CSV.")
    parser.add_argument("--stack", required=True)
    parser.add_argument("--month", required=True, metavar="YYYY-MM")
    parser.add_argument("--to", default="-", metavar="FILE", help="-: standard output")
    given = parser.parse_args(arguments)
    try:
        enter_project()
        config = deployed_configuration(given.stack).load()
        spans = days(given.month, time.time())
        which = f'{{datacenter="{config.datacenter}",cluster="{config.cluster}"}}'
        found = list(rows(config, given.month, records(Mimir.of(config, given.stack), which, spans)))
        if not found:
            raise OperationError(f"Nothing was recorded in {given.month}: that needs gpu-fleet:jobs, and our rules in Mimir.")
    except (OperationError, ConfigErrors) as error:
        print(error, file=sys.stderr)
        return 1
    write(given.to, HEAD, found)
    return 0


if __name__ == "__main__":
    run(main)
