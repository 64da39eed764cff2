"""Measures what the rules cost: `python -m bench.rules --gpus 100,500,2000`.

A real Mimir gets the series of hosts with eight GPUs each (dcgm-exporter with the standard counters, node_exporter, Alloy) every
15 s. Its CPU time is measured in three phases: without rules, with the recording rules, with all rules. The differences are what
rules cost; other work on the machine changes the wall time and not the CPU time. Then each panel is queried, and what it reads is
computed for 30 days and 10,000 GPUs. The figures go to .dev/rules.json, and --write puts the tables into docs/bench.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import alerts
from alerts.inventory import inventory_groups
from alerts.model import RuleGroup
from dashboards import all_dashboards
from lab.gpu import setup
from lab.showcase import exporters
from lab.showcase import host as about_host
from lab.showcase.fleet import Host
from lab.showcase.remote_write import Labels, Samples, push
from lab.showcase.servers import Servers
from operations.table import table
from signals.panels import filled_in

REPORT: Final = Path(__file__).parents[1] / ".dev" / "rules.json"
PAGE: Final = Path(__file__).parents[1] / "docs" / "bench.md"
SCRAPE_S: Final = 15
GPUS_PER_HOST: Final = 8
# Windows of a day read more than this history holds: the samples they read here are a lower bound, which the page says.
HISTORY_S: Final = 1800
# A phase must be a multiple of the longest interval of a group, or one evaluation more or less is counted as a cost.
_SETTLE_S: Final = 60  # new groups are loaded within 10 s, and each has been evaluated once
_PANELS_OF_S: Final = 30 * 86_400
_PANELS_OF_GPUS: Final = 10_000
_PANELS: Final = 12  # of the table: those that read most
_BEGIN, _END = "<!-- rules: begin -->", "<!-- rules: end -->"

Sample = tuple[Labels, float]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.rules", description="Measures what the rules cost in Mimir.")
    parser.add_argument("--gpus", default="100,500,2000", metavar="COUNTS")
    parser.add_argument("--phase", type=int, default=300, metavar="SECONDS", help="measured per phase, default %(default)s")
    parser.add_argument("--write", action="store_true", help="put the table into docs/bench.md")
    given = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    panels: list[dict[str, Any]] = []
    for count in map(int, given.gpus.split(",")):
        row, panels = measure(count, given.phase)
        rows.append(row)
        print(table(list(rows[0]), [[str(value) for value in row.values()] for row in rows]), flush=True)
    print(table(list(panels[0]), [[str(value) for value in row.values()] for row in panels]), flush=True)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps({"rules": rows, "panels": panels}, indent=2) + "\n")
    if given.write:
        PAGE.write_text(_with_tables(PAGE.read_text(), rows, panels[:_PANELS]))
    return 0


def measure(gpus: int, phase_s: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """CPU seconds per minute of each phase and samples that the rules read per minute; and what each panel reads, most first."""
    hosts = _hosts(gpus)
    with tempfile.TemporaryDirectory(prefix="gpu-fleet-rules-") as directory:
        fleet = _Fleet(hosts, Path(directory) / "machine")
        servers = Servers(Path(directory))
        try:
            servers.wait()
            mimir = _Mimir(servers.mimir)
            fleet.push_history(mimir.url)
            with fleet.scraped(mimir.url):
                inventory = inventory_groups("bench", "rules", {host.name: GPUS_PER_HOST for host in hosts})
                without = mimir.cost(phase_s)
                mimir.load([*alerts.recording_groups(), *inventory])
                recording = mimir.cost(phase_s)
                mimir.load(alerts.rule_groups("mimir"))
                everything = mimir.cost(phase_s)
            mimir.unload()
            panels = _panels(mimir, gpus, phase_s)
        finally:
            servers.stop()
    return {
        "GPUs": gpus,
        "series": fleet.size,
        "ingesting, CPU s/min": round(without.cpu_s, 2),
        "recording, CPU s/min": round(recording.cpu_s - without.cpu_s, 2),
        "alerts, CPU s/min": round(everything.cpu_s - recording.cpu_s, 2),
        "alerts, cores per 1,000 GPUs": round((everything.cpu_s - recording.cpu_s) / 60 / gpus * 1000, 3),
        "recording, samples/min": round(recording.samples),
        "alerts, samples/min": round(everything.samples - recording.samples),
        "slowest group, s": round(everything.slowest_s, 2),
        "missed evaluations": everything.missed,
    }, panels


def _panels(mimir: _Mimir, gpus: int, phase_s: int) -> list[dict[str, Any]]:
    """Panels over the whole fleet; those of one host or GPU find nothing, because their variables have no value here."""
    rows = []
    for board in all_dashboards().values():
        for panel in board["panels"]:
            queries = [
                re.sub(r'"\$\{?\w+(:\w+)?\}?"', '".*"', filled_in(target["expr"], {}))
                for target in panel.get("targets", ())
                if (target.get("datasource") or panel.get("datasource") or {}).get("type") == "prometheus"
            ]
            # What a query reads grows with its range; what its windows read before the range's begin is the same for each.
            longer, shorter = (sum(mimir.samples_of(query, range_s) for query in queries) for range_s in (phase_s, phase_s / 3))
            per_second = max(0.0, longer - shorter) / (phase_s * 2 / 3) / gpus
            million = round(per_second * _PANELS_OF_GPUS * _PANELS_OF_S / 1e6, 1)
            if million:
                rows.append({"dashboard": board["title"], "panel": panel["title"], "million samples": million})
    return sorted(rows, key=lambda row: -row["million samples"])


def _hosts(gpus: int) -> list[Host]:
    return [
        Host(name=f"gpu-node-{number:04}", datacenter="bench", cluster="rules", mode="dcgm-4.8", scenario="h100x8")
        for number in range(max(1, gpus // GPUS_PER_HOST))
    ]


class _Fleet:
    """The series of all hosts: one machine's bodies under every host's labels."""

    def __init__(self, hosts: Sequence[Host], state: Path) -> None:
        self._hosts = hosts
        setup.init(state=state, scenario="h100x8")
        self._body, _ = exporters.exporter("dcgm-4.8", state, time.time())
        self._known: dict[str, tuple[str, list[tuple[str, str]]]] = {}
        self.size = 0

    def push_history(self, mimir: str) -> None:
        now_s = time.time() // SCRAPE_S * SCRAPE_S
        moments = [now_s - HISTORY_S + SCRAPE_S * step for step in range(HISTORY_S // SCRAPE_S)]
        for host in self._hosts:
            series: dict[Labels, Samples] = {
                labels: [(at_s, value) for at_s in moments] for labels, value in self._samples(host, moments[0], moments[0])
            }
            self.size += len(series)
            push(f"{mimir}/api/v1/push", series)

    def scraped(self, mimir: str) -> _Scraping:
        return _Scraping(self, mimir)

    def frame(self, at_s: float) -> Iterator[dict[Labels, Samples]]:
        """A host at a time."""
        for host in self._hosts:
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
        for job in (*jobs, "gpu-exporter"):
            yield _labels("up", (), host, job), 1.0

    def _parsed(self, series: str) -> tuple[str, list[tuple[str, str]]]:
        if series not in self._known:
            name, _, inner = series.partition("{")
            self._known[series] = name, re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', inner)
        return self._known[series]


class _Scraping:
    """Pushes a frame every SCRAPE_S in a thread."""

    def __init__(self, fleet: _Fleet, mimir: str) -> None:
        self._fleet, self._mimir = fleet, mimir
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failed: Exception | None = None

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
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


class _Cost:
    def __init__(self, *, cpu_s: float, samples: float, slowest_s: float, missed: int) -> None:
        self.cpu_s, self.samples, self.slowest_s, self.missed = cpu_s, samples, slowest_s, missed


class _Mimir:
    def __init__(self, url: str) -> None:
        self.url = url
        self._end_s = 0.0

    def load(self, groups: Iterable[RuleGroup]) -> None:
        for group in groups:
            url = f"{self.url}/prometheus/config/v1/rules/{group.namespace}"
            request = urllib.request.Request(url, group.yaml.encode(), {"Content-Type": "application/yaml"})  # noqa: S310  loopback
            urllib.request.urlopen(request, timeout=60).close()  # noqa: S310

    def cost(self, phase_s: int) -> _Cost:
        """Per minute, once what was loaded before is evaluated."""
        time.sleep(_SETTLE_S)
        before = self._metrics()
        time.sleep(phase_s)
        after = self._metrics()
        self._end_s = time.time()
        minutes = phase_s / 60

        def per_minute(name: str) -> float:
            return (_sum(after, name) - _sum(before, name)) / minutes

        return _Cost(
            cpu_s=per_minute("process_cpu_seconds_total"),
            samples=per_minute("cortex_ingester_queried_samples_sum"),  # nobody else queries
            slowest_s=max(_values(after, "cortex_prometheus_rule_group_last_duration_seconds"), default=0.0),
            missed=round(
                _sum(after, "cortex_prometheus_rule_group_iterations_missed_total")
                - _sum(before, "cortex_prometheus_rule_group_iterations_missed_total")
            ),
        )

    def unload(self) -> None:
        """All rules, so that nobody else queries."""
        for namespace in {group.namespace for group in alerts.rule_groups("mimir")}:
            url = f"{self.url}/prometheus/config/v1/rules/{namespace}"
            urllib.request.urlopen(urllib.request.Request(url, method="DELETE"), timeout=60).close()  # noqa: S310
        time.sleep(30)  # the ruler looks every 10 s

    def samples_of(self, query: str, range_s: float) -> float:
        """Samples that one query over the last seconds before the rules were unloaded reads."""
        before = _sum(self._metrics(), "cortex_ingester_queried_samples_sum")
        asked = {"query": query, "start": self._end_s - range_s, "end": self._end_s, "step": 15}
        url = f"{self.url}/prometheus/api/v1/query_range"
        urllib.request.urlopen(url, urllib.parse.urlencode(asked).encode(), timeout=120).close()  # noqa: S310
        return _sum(self._metrics(), "cortex_ingester_queried_samples_sum") - before

    def _metrics(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:  # noqa: S310
            return str(answer.read().decode())


def _values(metrics: str, name: str) -> list[float]:
    return [float(value) for value in re.findall(rf"(?m)^{name}(?:\{{.*\}})? (\S+)$", metrics)]


def _sum(metrics: str, name: str) -> float:
    return sum(_values(metrics, name))


def _labels(name: str, own: Iterable[tuple[str, str]], host: Host, job: str) -> Labels:
    return tuple(sorted({**dict(own), **host.labels, "__name__": name, "job": job}.items()))


def _with_tables(page: str, rows: Sequence[dict[str, Any]], panels: Sequence[dict[str, Any]]) -> str:
    machine = f"{time.strftime('%d %B %Y')}, {os.cpu_count()} cores, {platform.machine()}"
    text = f"""\
{machine}:

{_markdown(rows)}

What the panels over the whole fleet would read at 30 days and 10,000 GPUs, computed from what they read of this history:

{_markdown(panels)}"""
    return re.sub(rf"{_BEGIN}.*{_END}", lambda _: f"{_BEGIN}\n{text}\n{_END}", page, flags=re.DOTALL)


def _markdown(rows: Sequence[dict[str, Any]]) -> str:
    def shown(value: Any) -> str:
        return value if isinstance(value, str) else f"{value:,}"

    lines = [f"| {' | '.join(rows[0])} |", "|" + "---|" * len(rows[0])]
    return "\n".join([*lines, *(f"| {' | '.join(map(shown, row.values()))} |" for row in rows)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
