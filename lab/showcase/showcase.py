"""The showcase: servers, past and rules put together."""

from __future__ import annotations

import json
import time
import urllib.request
from collections import defaultdict
from pathlib import Path
from types import TracebackType

import alerts
from alerts.inventory import inventory_groups
from lab.gpu.machine import Machine
from lab.showcase import rules
from lab.showcase.fleet import HOSTS
from lab.showcase.past import INCIDENTS_S, STEP_S, LogStream, Past
from lab.showcase.remote_write import push
from lab.showcase.servers import Servers


class Showcase:
    """`mimir`, `loki`: base URLs. `start_s`, `end_s`: of the past. `well_s`: a moment before the incidents."""

    def __init__(self, directory: Path) -> None:
        self._servers = Servers(directory)
        self.mimir, self.loki = self._servers.mimir, self._servers.loki
        try:
            self._fill(directory)
        except BaseException:
            self._servers.stop()
            raise

    def _fill(self, directory: Path) -> None:
        # A minute ago, so that no sample is in the future for a server that uses whole seconds.
        past = Past(end_s=(time.time() - 60) // STEP_S * STEP_S, directory=directory / "machines")
        past.make()  # while the servers start
        self.start_s, self.end_s, self.well_s = past.start_s, past.end_s, past.end_s - INCIDENTS_S - STEP_S
        self._servers.wait()
        push(f"{self.mimir}/api/v1/push", past.series)
        groups = [*alerts.rule_groups("mimir"), *_inventory(past.directory)]
        rules.record(self.mimir, [rule for group in groups for rule in group.rules], past.start_s, past.end_s, STEP_S)
        for stream in past.streams:
            self._push_lines(stream)

    def _push_lines(self, stream: LogStream) -> None:
        values = [[str(int(at_s * 1e9)), line, metadata] for at_s, line, metadata in stream.lines]
        body = json.dumps({"streams": [{"stream": stream.labels, "values": values}]}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.loki}/loki/api/v1/push", body, headers)  # noqa: S310  always http to loopback
        urllib.request.urlopen(request, timeout=120).close()  # noqa: S310

    def __enter__(self) -> Showcase:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        self._servers.stop()


def _inventory(machines: Path) -> list[alerts.RuleGroup]:
    """The GPU counts as in the stack files of these hosts: every GPU that existed at the start."""
    clusters: dict[tuple[str, str], dict[str, int | None]] = defaultdict(dict)
    for host in HOSTS:
        clusters[host.datacenter, host.cluster][host.name] = len(Machine.load(machines / host.name / host.cluster).gpus)
    return [group for (datacenter, cluster), gpus in clusters.items() for group in inventory_groups(datacenter, cluster, gpus)]
