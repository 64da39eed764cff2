"""How long from a line of the kernel to the receiver, and from a GPU's value to a query? In a running `make dev`.

Real Alloy, Loki, Mimir and Alertmanager, and a receiver that does nothing else. Critical XIDs of many codes, each on a GPU of its
own, at random moments: the address in the line need not be that of a simulated GPU, and a line of a driver that was loaded ends
what is firing, so that no two merge. `--hosts`: so many others, of eight GPUs each, send metrics meanwhile.

    python -m bench.latency [--injections 200] [--minutes 30] [--hosts 0]

A line after each ten injections says what was measured until then. The table comes at the end, after --minutes, or at Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from alerts.xid import CATALOGUE, Severity
from bench.rules import GPUS_PER_HOST, Fleet, hosts_of
from gpu_fleet.operations.table import table
from gpu_fleet.stackfile.config import StackConfig
from lab import gpu
from lab.dev import query
from lab.dev.up import endpoints_of_stack
from lab.dev.workspace import DEV, REPO, STACK
from lab.gpu import inject, kernel
from lab.gpu.machine import KERNEL_LOG

STATE: Final = DEV / "gpus" / "state"
_BATCH: Final = 10  # as many fire at a time
_SENT_S: Final = 9
_LOADED_S: Final = 2
_WITHIN_S: Final = 120
_GAP_S: Final = (0.5, 4.0)  # random, so that they fall anywhere between two evaluations
_VALUE_GAP_S: Final = (16.0, 31.0)  # longer than from one scrape to the next
_DRIVER: Final = 580
_SERIES: Final = "nvidia_smi_ecc_errors_corrected_volatile_total"
_SHOWN: Final = ("line to receiver", "GPU value to query")  # after each batch


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.latency", description="Measures how long a signal takes.")
    parser.add_argument("--injections", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=30, help="at most so many, default %(default)s")
    parser.add_argument("--hosts", type=int, default=0, help="others that send metrics meanwhile")
    given = parser.parse_args(arguments)
    one_s = sum(_GAP_S) / 2 + (_SENT_S + _LOADED_S) / _BATCH
    print(f"{given.injections} injections take about {given.injections * one_s / 60:.0f} minutes", flush=True)
    stop = threading.Event()
    ending = threading.Timer(given.minutes * 60, stop.set)
    ending.daemon = True
    ending.start()
    lines, values = Lines(), Values(stop)
    with _others(given.hosts):
        values.start()
        try:
            for done in lines.inject(given.injections, stop):
                print(
                    f"{done} of {given.injections} lines, load {os.getloadavg()[0]:.1f}: {_short(lines.rows() + values.rows())}",
                    flush=True,
                )
            lines.wait()
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
        stop.set()
        values.join()
    rows = lines.rows() + values.rows()
    if rows:
        print(table(list(rows[0]), [[str(value) for value in row.values()] for row in rows]))
    print(f"{len(lines.missing())} of {len(lines.injected)} lines reached nobody", file=sys.stderr)
    return 0


@dataclass(frozen=True)
class Injection:
    """Unix time of the write. `pci`: as in the labels of the alert."""

    at: float
    pci: str


class Lines:
    def __init__(self) -> None:
        self._receiver = endpoints_of_stack()["RECEIVER_URL"]
        self._seen = len(query.received_alerts(self._receiver))
        self.injected: list[Injection] = []

    def inject(self, count: int, stop: threading.Event) -> Iterator[int]:
        """Yields after each batch, once its pages were sent, how many there were."""
        chosen = random.Random(1)  # noqa: S311
        codes = [code for code, xid in CATALOGUE.items() if xid.severity is Severity.CRITICAL and code != 154]
        run = f"{1 + int(time.time()) % 0xFFFF:04x}"  # incidents of an earlier run last
        while len(self.injected) < count and not stop.is_set():
            _log("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05")
            time.sleep(_LOADED_S)  # an event in the second of that line counts as ended by it
            for number in range(len(self.injected), min(len(self.injected) + _BATCH, count)):
                pci, code = f"{run}:{1 + number // 32:02x}:{number % 32:02x}", chosen.choice(codes)
                at = time.time()
                _log(*kernel.xid_lines(code, pci=pci, gpu=0, pid=20_000, process="python3", link=6, driver_major=_DRIVER))
                self.injected.append(Injection(at, pci))
                time.sleep(chosen.uniform(*_GAP_S))
            time.sleep(_SENT_S)  # or the page of the last one is cancelled
            yield len(self.injected)
        _log("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05")

    def wait(self) -> None:
        deadline = time.monotonic() + _WITHIN_S
        while self.missing() and time.monotonic() < deadline:
            time.sleep(1)

    def missing(self) -> Sequence[Injection]:
        pages = self._pages()
        return [one for one in self.injected if one.pci not in pages]

    def rows(self) -> list[dict[str, Any]]:
        pages = self._pages()
        found = [(one.at, *pages[one.pci]) for one in self.injected if one.pci in pages]
        return [
            *_row("line to evaluation", [evaluated - at for at, evaluated, _ in found]),
            *_row("evaluation to receiver", [received - evaluated for _, evaluated, received in found]),
            *_row("line to receiver", [received - at for at, _, received in found]),
        ]

    def _pages(self) -> dict[str, tuple[float, float]]:
        """When the first alert of each address started, and arrived."""
        firing = [alert for alert in query.received_alerts(self._receiver)[self._seen :] if alert["status"] == "firing"]
        return {
            alert["labels"].get("pci", ""): (_time(alert["startsAt"]), _time(alert["received_at"])) for alert in reversed(firing)
        }


class Values(threading.Thread):
    """Changes corrected memory errors of one GPU, which nothing but this changes, until it is to stop."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._stop_now, self._mimir = stop, endpoints_of_stack()["MIMIR_URL"]
        (host,) = StackConfig.from_file(REPO / f"Pulumi.{STACK}.yaml").hosts.values()
        self._page = f"http://127.0.0.1:{host.ports.gpu_exporter}/metrics"
        self._parts: list[tuple[float, float, float]] = []  # seconds to the exporter's page, the scrape, and a query

    def run(self) -> None:
        chosen = random.Random(2)  # noqa: S311
        while not self._stop_now.wait(chosen.uniform(*_VALUE_GAP_S)):
            before = self._queried()
            at = time.time()
            inject.inject_ecc(STATE, gpu=gpu.count(STATE) - 1, corrected=1)
            on_page = self._when_above(before, self._on_page)
            queried = self._when_above(before, self._queried)
            scraped = float(query.metrics(self._mimir, f"timestamp({_SERIES}) and {_SERIES} > {before}")[0]["value"][1])
            self._parts.append((on_page - at, scraped - on_page, queried - scraped))

    def rows(self) -> list[dict[str, Any]]:
        parts = list(self._parts)
        names = ("GPU value to page", "page to scrape", "scrape to query")
        columns = zip(*parts, strict=True)
        return [
            *(row for name, seconds in zip(names, columns, strict=False) for row in _row(name, seconds)),
            *_row("GPU value to query", [sum(one) for one in parts]),
        ]

    def _when_above(self, before: float, value: Callable[[], float]) -> float:
        deadline = time.monotonic() + _WITHIN_S
        while value() <= before:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{_SERIES} does not change on {self._page} or at {self._mimir}")
            time.sleep(0.2)
        return time.time()

    def _on_page(self) -> float:
        with urllib.request.urlopen(self._page, timeout=30) as answer:  # noqa: S310  loopback
            lines = answer.read().decode().splitlines()
        return max(float(line.rpartition(" ")[2]) for line in lines if line.startswith(_SERIES))

    def _queried(self) -> float:
        found = query.metrics(self._mimir, f"max({_SERIES})")
        return float(found[0]["value"][1]) if found else 0.0


def _log(*lines: str) -> None:
    with (STATE / KERNEL_LOG).open("a") as file:
        file.write("".join(f"{kernel.stamp(time.monotonic(), line)}\n" for line in lines))


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


def _row(what: str, seconds: Sequence[float]) -> list[dict[str, Any]]:
    """None before the first measurement."""
    ordered = sorted(seconds)
    shares = {"p50, s": 0.5, "p99, s": 0.99}
    found = {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 1) for name, share in shares.items() if ordered
    }
    return [{"from, to": what, "count": len(ordered), **found, "most, s": round(ordered[-1], 1)}] if ordered else []


def _short(rows: Sequence[dict[str, Any]]) -> str:
    return "; ".join(
        f"{row['from, to']} {row['p50, s']}, at most {row['most, s']} s" for row in rows if row["from, to"] in _SHOWN
    )


def _time(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
