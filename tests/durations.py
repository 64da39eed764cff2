"""What each test costs: its seconds, and the CPU seconds of the worker and of the programs it waited for.

`make test` ends with the twenty slowest tests and files, and leaves all in .pytest_cache/d/durations/durations.json:
whoever adds a test sees there what it costs. Of a program that a test leaves running (a host, a server) the CPU is not counted.
"""

from __future__ import annotations

import json
import re
import resource
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import pytest

SHOWN = 20
GROUP = re.compile(r"@[^@\]]*$")  # pytest-xdist appends it to the name of a test


@dataclass
class Cost:
    setup_s: float = 0
    call_s: float = 0
    teardown_s: float = 0
    cpu_s: float = 0

    @property
    def wall_s(self) -> float:
        return self.setup_s + self.call_s + self.teardown_s

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(a + b for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True)))


def cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


class Durations:
    """In a worker of pytest-xdist it measures; in the process that prints the results it collects."""

    def __init__(self) -> None:
        self.costs: dict[str, Cost] = defaultdict(Cost)
        self.counted_s = cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        now = cpu_s()
        report.cpu_s, self.counted_s = now - self.counted_s, now  # pytest-xdist sends a report's own attributes along
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cost = self.costs[GROUP.sub("", report.nodeid)]
        setattr(cost, f"{report.when}_s", report.duration)
        cost.cpu_s += getattr(report, "cpu_s", 0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        if len(self.costs) <= SHOWN:
            return
        if cache := getattr(config, "cache", None):
            file = cache.mkdir("durations") / "durations.json"
            file.write_text(json.dumps({test: asdict(cost) for test, cost in sorted(self.costs.items())}, indent=1))
        files: dict[str, Cost] = defaultdict(Cost)
        for test, cost in self.costs.items():
            file = test.partition("::")[0]
            files[file] += cost
        for what, costs in (("tests", self.costs), ("files", files)):
            terminalreporter.section(f"the {SHOWN} slowest {what}")
            terminalreporter.write_line("   total  set-up    test   after     CPU  (seconds)")
            for name, cost in sorted(costs.items(), key=lambda item: -item[1].wall_s)[:SHOWN]:
                columns = (cost.wall_s, cost.setup_s, cost.call_s, cost.teardown_s, cost.cpu_s)
                terminalreporter.write_line("".join(f"{value:8.1f}" for value in columns) + f"  {name}")
