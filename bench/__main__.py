"""Measures how long runs take: `make bench` prints the tables and writes .dev/bench.json.

    python -m bench [--loopback 1,10,100,1000] [--side-by-side 4]

Loopback: our own cost, against hosts that respond immediately. Side by side: real hosts (systemd in namespaces), first with
Pulumi, then with Ansible; needs root. 0 leaves out a table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import comparison, loopback
from gpu_fleet.operations.table import table

REPORT = Path(__file__).parents[1] / ".dev" / "bench.json"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures how long runs take.")
    parser.add_argument("--loopback", default="1,10,100,1000", metavar="COUNTS")
    parser.add_argument("--side-by-side", type=int, default=4, metavar="COUNT")
    given = parser.parse_args(arguments)

    report: dict[str, Any] = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "machine": _machine()}
    print(f"{report['at']}, {report['machine']}; load {os.getloadavg()[0]:.1f} at the start\n", flush=True)
    counts = [int(text) for text in given.loopback.split(",") if int(text)]
    if counts:
        report["loopback"] = [_shown(loopback.measure(count)) for count in counts]
        print("\nHosts that respond immediately, seconds:\n" + _table(report["loopback"]) + "\n", flush=True)
    if given.side_by_side:
        report["side by side"] = comparison.measure(given.side_by_side)
        print("Real hosts, seconds:\n" + _table(report["side by side"]), flush=True)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n")
    print(f"\nWritten to {REPORT.relative_to(Path.cwd()) if REPORT.is_relative_to(Path.cwd()) else REPORT}.")
    return 0


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Prints a row as soon as it is measured: a run is long."""
    print(", ".join(f"{name} {value}" for name, value in row.items()), file=sys.stderr, flush=True)
    return row


def _table(rows: Sequence[dict[str, Any]]) -> str:
    return table(list(rows[0]), [[str(value) for value in row.values()] for row in rows])


def _machine() -> str:
    model = next((line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} cores of {model}"


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
