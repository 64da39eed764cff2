"""How long from a line of the kernel to the receiver, and from a GPU's value to a query? In a running `make dev`.

Real Alloy, Loki, Mimir and Alertmanager, and a receiver that does nothing else. Critical XIDs of many codes, each on a GPU of its
own, at random moments: the address in the line need not be that of a simulated GPU, and a line of a driver that was loaded ends
what is firing, so that no two merge. `--hosts`: so many others, of eight GPUs each, send metrics meanwhile.

    python -m bench.latency [--injections 200] [--hosts 0]
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from alerts.xid import CATALOGUE, Severity
from bench.rules import GPUS_PER_HOST, Fleet, hosts_of
from gpu_fleet.operations.table import table
from lab import gpu
from lab.dev import query
from lab.dev.up import endpoints_of_stack
from lab.dev.workspace import DEV
from lab.gpu import inject, kernel
from lab.gpu.machine import KERNEL_LOG

STATE: Final = DEV / "gpus" / "state"
_MOST_FIRING: Final = 10
_SENT_S: Final = 9
_WITHIN_S: Final = 120
_GAP_S: Final = (0.5, 4.0)  # random, so that they fall anywhere between two evaluations
_VALUE_GAP_S: Final = (16.0, 31.0)  # longer than from one scrape to the next
_DRIVER: Final = 580
_SERIES: Final = "nvidia_smi_ecc_errors_corrected_volatile_total"


@dataclass(frozen=True)
class Injection:
    """Unix time of the write. `pci`: as in the labels of the alert."""

    at: float
    pci: str


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.latency", description="Measures how long a signal takes.")
    parser.add_argument("--injections", type=int, default=200)
    parser.add_argument("--hosts", type=int, default=0, help="others that send metrics meanwhile")
    given = parser.parse_args(arguments)
    with _others(given.hosts):
        values: list[float] = []
        asking = threading.Thread(target=lambda: values.extend(_until_queryable(given.injections // 8)))
        asking.start()
        rows = list(_of_lines(given.injections))
        asking.join()
    rows.append(_row("GPU value to query", values))
    print(table(list(rows[0]), [[str(value) for value in row.values()] for row in rows]))
    return 0


def _of_lines(injections: int) -> Iterator[dict[str, Any]]:
    receiver = endpoints_of_stack()["RECEIVER_URL"]
    seen = len(query.received_alerts(receiver))
    injected = list(_injected(injections))
    deadline = time.monotonic() + _WITHIN_S
    while True:
        firing = [alert for alert in query.received_alerts(receiver)[seen:] if alert["status"] == "firing"]
        first = {alert["labels"].get("pci", ""): alert for alert in reversed(firing)}
        if all(one.pci in first for one in injected) or time.monotonic() > deadline:
            break
        time.sleep(1)
    found = [
        (one.at, _time(first[one.pci]["startsAt"]), _time(first[one.pci]["received_at"])) for one in injected if one.pci in first
    ]
    if len(found) < len(injected):
        print(f"{len(injected) - len(found)} of {len(injected)} reached nobody within {_WITHIN_S} s", file=sys.stderr)
    yield _row("line to evaluation", [evaluated - at for at, evaluated, _ in found])
    yield _row("evaluation to receiver", [received - evaluated for _, evaluated, received in found])
    yield _row("line to receiver", [received - at for at, _, received in found])


def _injected(count: int) -> Iterator[Injection]:
    chosen = random.Random(1)  # noqa: S311
    codes = [code for code, xid in CATALOGUE.items() if xid.severity is Severity.CRITICAL and code != 154]
    run = f"{1 + int(time.time()) % 0xFFFF:04x}"  # incidents of an earlier run last
    for number in range(count):
        if number % _MOST_FIRING == 0:
            time.sleep(_SENT_S)  # or the page of the one before is cancelled
            _log("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05")
            time.sleep(2)  # an event in the second of that line counts as ended by it
        pci = f"{run}:{1 + number // 32:02x}:{number % 32:02x}"
        code = chosen.choice(codes)
        at = time.time()
        _log(*kernel.xid_lines(code, pci=pci, gpu=0, pid=20_000, process="python3", link=6, driver_major=_DRIVER))
        yield Injection(at, pci)
        time.sleep(chosen.uniform(*_GAP_S))
    _log("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05")


def _log(*lines: str) -> None:
    with (STATE / KERNEL_LOG).open("a") as file:
        file.write("".join(f"{kernel.stamp(time.monotonic(), line)}\n" for line in lines))


def _until_queryable(count: int) -> Iterator[float]:
    """Corrected memory errors of one GPU, which nothing but this changes."""
    chosen = random.Random(2)  # noqa: S311
    mimir = endpoints_of_stack()["MIMIR_URL"]
    asked = f'max({_SERIES}{{uuid=~".*"}})'
    for _ in range(count):
        time.sleep(chosen.uniform(*_VALUE_GAP_S))
        before = _value(mimir, asked)
        at = time.monotonic()
        inject.inject_ecc(STATE, gpu=gpu.count(STATE) - 1, corrected=1)
        while _value(mimir, asked) == before:
            if time.monotonic() - at > _WITHIN_S:
                raise RuntimeError(f"{asked} does not change at {mimir}")
            time.sleep(0.2)
        yield time.monotonic() - at


def _value(mimir: str, asked: str) -> float:
    found = query.metrics(mimir, asked)
    return float(found[0]["value"][1]) if found else 0.0


@contextlib.contextmanager
def _others(hosts: int) -> Iterator[None]:
    if not hosts:
        yield
        return
    with tempfile.TemporaryDirectory() as directory:
        fleet = Fleet(hosts_of(hosts * GPUS_PER_HOST), Path(directory) / "machine", jobs=False)
        with fleet.scraped(endpoints_of_stack()["MIMIR_URL"]) as scraping:
            yield
            scraping.check()


def _row(what: str, seconds: Sequence[float]) -> dict[str, Any]:
    ordered = sorted(seconds)
    shares = {"p50, s": 0.5, "p99, s": 0.99}
    found = {name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 1) for name, share in shares.items()}
    return {"from, to": what, "count": len(ordered), **found, "most, s": round(ordered[-1], 1)}


def _time(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
