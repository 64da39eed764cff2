"""Measures what the rules cost: `python -m bench.rules --gpus 100,500,2000`.

A real Mimir for each size gets the series of hosts with eight GPUs each (dcgm-exporter with the standard counters, node_exporter,
Alloy) every 15 s, all at the same time. The CPU time of each is measured in three phases: without rules, with recording rules,
with all rules. The differences are what rules cost; other work on the machine changes the wall time and hardly the CPU time. What
panels read is computed from the series that each store then has (panels.py). The figures go to .dev/rules.json, and --write puts
the tables into bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import alerts
from alerts.inventory import inventory_groups
from alerts.model import RuleGroup
from bench import panels
from bench.panels import SCRAPE_S
from gpu_fleet.operations.table import table
from lab.gpu import setup
from lab.showcase import exporters
from lab.showcase import host as about_host
from lab.showcase.fleet import Host
from lab.showcase.remote_write import Labels, Samples, push
from lab.showcase.servers import Servers

REPORT: Final = Path(__file__).parents[1] / ".dev" / "rules.json"
PAGE: Final = Path(__file__).parents[1] / "bench" / "README.md"
GPUS_PER_HOST: Final = 8
# Windows of a day read more than this history holds: the samples they read here are a lower bound, which the page says.
HISTORY_S: Final = 1800
# A phase must be a multiple of the longest interval of a group, or one evaluation more or less is counted as a cost.
_SETTLE_S: Final = 60  # new groups are loaded within 10 s, and each has been evaluated once
_PANELS: Final = 12  # of the table: those that read most
_BEGIN, _END = "<!-- rules: begin -->", "<!-- rules: end -->"

Sample = tuple[Labels, float]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.rules", description="Measures what the rules cost in Mimir.")
    parser.add_argument("--gpus", default="100,500,2000", metavar="COUNTS", help="at least two sizes")
    parser.add_argument("--phase", type=int, default=300, metavar="SECONDS", help="measured per phase, default %(default)s")
    parser.add_argument("--jobs", action="store_true", help="every GPU has a job, one per host (gpu-fleet:jobs)")
    parser.add_argument("--write", action="store_true", help="put the tables into bench/README.md")
    given = parser.parse_args(arguments)
    sizes = [int(count) for count in given.gpus.split(",")]
    if len(set(sizes)) < 2:
        parser.error("--gpus needs two sizes: what a panel reads of more GPUs follows from their difference")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # exits as on Ctrl-C, so that no server keeps running
    try:
        rows, read = measure(sizes, given.phase, jobs=given.jobs)
    except KeyboardInterrupt:
        return 130
    for part in (rows, read):
        print(table(list(part[0]), [[str(value) for value in row.values()] for row in part]), flush=True)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps({"rules": rows, "panels": read}, indent=2) + "\n")
    if given.write:
        PAGE.write_text(_with_tables(PAGE.read_text(), rows, read))
    return 0


def measure(sizes: Sequence[int], phase_s: int, *, jobs: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row for each number of GPUs, and the panels that read most."""
    with ExitStack() as stack:
        sites = [stack.enter_context(_site(gpus, jobs=jobs)) for gpus in sizes]
        fleets = [stack.enter_context(site.fleet.scraped(site.mimir.url)) for site in sites]
        without = _costs(sites, phase_s)
        for site in sites:
            inventory = inventory_groups("bench", "rules", {host.name: GPUS_PER_HOST for host in site.fleet.hosts})
            site.mimir.load([*alerts.recording_groups(), *inventory])
        recording = _costs(sites, phase_s)
        for site in sites:
            site.mimir.load(alerts.rule_groups("mimir"))
        everything = _costs(sites, phase_s)
        for fleet in fleets:
            fleet.check()
        read = panels.table({site.gpus: site.mimir.count for site in sites}, _PANELS)
    phases = zip(sites, without, recording, everything, strict=True)
    return [_row(site, *costs) for site, *costs in phases], read


def _row(site: _Site, without: _Cost, recording: _Cost, everything: _Cost) -> dict[str, Any]:
    return {
        "GPUs": site.gpus,
        "series": site.fleet.size,
        "ingesting, CPU s/min": round(without.cpu_s, 2),
        "recording, CPU s/min": round(recording.cpu_s - without.cpu_s, 2),
        "alerts, CPU s/min": round(everything.cpu_s - recording.cpu_s, 2),
        "all rules, cores per 1,000 GPUs": round((everything.cpu_s - without.cpu_s) / 60 / site.gpus * 1000, 3),
        "series recorded per GPU": round((everything.stored - without.stored) / site.gpus, 1),
        "recording, series read/min": round(recording.series - without.series),
        "alerts, series read/min": round(everything.series - recording.series),
        "slowest group, s": round(everything.slowest_s, 2),
        "missed evaluations": everything.missed,
    }


@dataclass(frozen=True)
class _Site:
    gpus: int
    fleet: Fleet
    mimir: _Mimir


@contextmanager
def _site(gpus: int, *, jobs: bool) -> Iterator[_Site]:
    """A Mimir of its own with the history of that many GPUs."""
    with tempfile.TemporaryDirectory(prefix="gpu-fleet-rules-") as directory:
        fleet = Fleet(hosts_of(gpus), Path(directory) / "machine", jobs=jobs)
        servers = Servers(Path(directory), names=("mimir",))
        try:
            servers.wait()
            fleet.push_history(servers.mimir)
            yield _Site(gpus, fleet, _Mimir(servers.mimir))
        finally:
            servers.stop()


def _costs(sites: Sequence[_Site], phase_s: int) -> list[_Cost]:
    """Of the same phase in every store, once what was loaded before is evaluated."""
    time.sleep(_SETTLE_S)
    before = [site.mimir.metrics() for site in sites]
    time.sleep(phase_s)
    return [_cost(old, site.mimir.metrics(), phase_s / 60) for site, old in zip(sites, before, strict=True)]


def _cost(before: str, after: str, minutes: float) -> _Cost:
    def grown(name: str) -> float:
        return _sum(after, name) - _sum(before, name)

    return _Cost(
        cpu_s=grown("process_cpu_seconds_total") / minutes,
        series=grown("cortex_ingester_queried_series_sum") / minutes,  # nobody else queries
        stored=_sum(after, "cortex_ingester_memory_series"),
        slowest_s=max(_values(after, "cortex_prometheus_rule_group_last_duration_seconds"), default=0.0),
        missed=round(grown("cortex_prometheus_rule_group_iterations_missed_total")),
    )


def hosts_of(gpus: int) -> list[Host]:
    return [
        Host(name=f"gpu-node-{number:04}", datacenter="bench", cluster="rules", mode="dcgm-4.8", scenario="h100x8")
        for number in range(max(1, gpus // GPUS_PER_HOST))
    ]


class Fleet:
    """The series of all hosts: one machine's bodies under every host's labels."""

    def __init__(self, hosts: Sequence[Host], state: Path, *, jobs: bool) -> None:
        self.hosts, self._has_jobs = hosts, jobs
        setup.init(state=state, scenario="h100x8")
        self._body, _ = exporters.exporter("dcgm-4.8", state, time.time())
        self._known: dict[str, tuple[str, list[tuple[str, str]]]] = {}
        self.size = 0

    def push_history(self, mimir: str) -> None:
        now_s = time.time() // SCRAPE_S * SCRAPE_S
        moments = [now_s - HISTORY_S + SCRAPE_S * step for step in range(HISTORY_S // SCRAPE_S)]
        for host in self.hosts:
            series: dict[Labels, Samples] = {
                labels: [(at_s, value) for at_s in moments] for labels, value in self._samples(host, moments[0], moments[0])
            }
            self.size += len(series)
            push(f"{mimir}/api/v1/push", series)

    def scraped(self, mimir: str) -> _Scraping:
        return _Scraping(self, mimir)

    def frame(self, at_s: float) -> Iterator[dict[Labels, Samples]]:
        """A host at a time."""
        for host in self.hosts:
            yield {labels: [(at_s, value)] for labels, value in self._samples(host, at_s, at_s - 86_400)}

    def _samples(self, host: Host, at_s: float, since_s: float) -> Iterator[Sample]:
        for line in self._body().splitlines():
            if not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                name, own = self._parsed(series)
                # Every host has GPUs of its own.
                pairs = [(key, f"{text}-{host.name}" if key == "UUID" else text) for key, text in own]
                yield _labels(name, pairs, host, "gpu-exporter"), float(value)
        jobs = {"node-exporter": about_host.node_exporter, "alloy": about_host.alloy}
        for job, samples in jobs.items():
            for metric, labels, number in samples(host, at_s, since_s):
                yield _labels(metric, labels.items(), host, job), number
        for metric, labels, number in about_host.readiness(host, at_s, is_sick=False):
            yield _labels(metric, labels.items(), host, "textfile"), number
        for job in (*jobs, "gpu-exporter"):
            yield _labels("up", (), host, job), 1.0
        if self._has_jobs:
            yield from self._jobs(host)

    def _jobs(self, host: Host) -> Iterator[Sample]:
        yield _labels("gpu_fleet_jobs_success", (), host, "textfile"), 1.0
        number = self.hosts.index(host)
        job = {"job_id": str(number), "user": f"user-{number % 50}", "account": f"account-{number % 20}", "partition": "train"}
        for gpu in self._gpus:
            own = {"gpu": gpu["gpu"], "uuid": f"{gpu['UUID']}-{host.name}", **job}
            yield _labels("gpu_fleet_job_info", own.items(), host, "textfile"), 1.0

    @cached_property
    def _gpus(self) -> list[dict[str, str]]:
        lines = (line for line in self._body().splitlines() if line.startswith("DCGM_FI_DEV_GPU_TEMP{"))
        return [dict(self._parsed(line.rpartition(" ")[0])[1]) for line in lines]

    def _parsed(self, series: str) -> tuple[str, list[tuple[str, str]]]:
        if series not in self._known:
            name, _, inner = series.partition("{")
            self._known[series] = name, re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', inner)
        return self._known[series]


class _Scraping:
    """Pushes a frame every SCRAPE_S in a thread."""

    def __init__(self, fleet: Fleet, mimir: str) -> None:
        self._fleet, self._mimir = fleet, mimir
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failed: Exception | None = None

    def __enter__(self) -> _Scraping:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        """Raises why it ended: without its series, what was measured is worth nothing."""
        if self._failed:
            raise self._failed

    def _run(self) -> None:
        due = time.time()
        try:
            while not self._stop.wait(max(0.0, due - time.time())):
                for batch in self._fleet.frame(time.time()):
                    push(f"{self._mimir}/api/v1/push", batch)
                due += SCRAPE_S
        except OSError as error:
            self._failed = error


@dataclass(frozen=True)
class _Cost:
    """Per minute; `stored`: series at the end. `slowest_s`: of one evaluation of a group. `missed`: evaluations of the phase."""

    cpu_s: float
    series: float
    stored: float
    slowest_s: float
    missed: int


class _Mimir:
    def __init__(self, url: str) -> None:
        self.url = url

    def load(self, groups: Iterable[RuleGroup]) -> None:
        for group in groups:
            url = f"{self.url}/prometheus/config/v1/rules/{group.namespace}"
            request = urllib.request.Request(url, group.yaml.encode(), {"Content-Type": "application/yaml"})  # noqa: S310  loopback
            urllib.request.urlopen(request, timeout=60).close()  # noqa: S310

    def count(self, selector: str) -> int:
        """Series of a selector in the last two minutes, within which every group is evaluated."""
        asked = urllib.parse.urlencode({"query": f"count(last_over_time({selector}[2m]))"}).encode()
        with urllib.request.urlopen(f"{self.url}/prometheus/api/v1/query", asked, timeout=120) as answer:  # noqa: S310
            result = json.load(answer)["data"]["result"]
        return int(result[0]["value"][1]) if result else 0

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:  # noqa: S310
            return str(answer.read().decode())


def _values(metrics: str, name: str) -> list[float]:
    return [float(value) for value in re.findall(rf"(?m)^{name}(?:\{{.*\}})? (\S+)$", metrics)]


def _sum(metrics: str, name: str) -> float:
    return sum(_values(metrics, name))


def _labels(name: str, own: Iterable[tuple[str, str]], host: Host, job: str) -> Labels:
    return tuple(sorted({**dict(own), **host.labels, "__name__": name, "job": job}.items()))


def _with_tables(page: str, rows: Sequence[dict[str, Any]], read: Sequence[dict[str, Any]]) -> str:
    machine = f"{time.strftime('%d %B %Y')}, {os.cpu_count()} cores, {platform.machine()}"
    text = f"""\
{machine}:

{_markdown(rows)}

What panels read of 30 days and 10,000 GPUs, those of one host of its own, computed from the series that their queries match here:

{_markdown(read)}"""
    return re.sub(rf"{_BEGIN}.*{_END}", lambda _: f"{_BEGIN}\n{text}\n{_END}", page, flags=re.DOTALL)


def _markdown(rows: Sequence[dict[str, Any]]) -> str:
    def shown(value: Any) -> str:
        return value if isinstance(value, str) else f"{value:,}"

    lines = [f"| {' | '.join(rows[0])} |", "|" + "---|" * len(rows[0])]
    return "\n".join([*lines, *(f"| {' | '.join(map(shown, row.values()))} |" for row in rows)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
