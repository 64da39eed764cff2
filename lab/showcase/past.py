"""An hour of samples and log lines of the whole fleet."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lab.gpu import setup
from lab.gpu.machine import KERNEL_LOG
from lab.showcase import exporters, models
from lab.showcase import host as about_host
from lab.showcase.fleet import HOSTS, Host
from lab.showcase.remote_write import Labels, Samples, ended

STEP_S: Final = 30  # between samples: Grafana's $__rate_interval of a minute contains two of them
LENGTH_S: Final = 3600
INCIDENTS_S: Final = 540  # before the end: longer than Mimir's lookback and than the `for` of the alerts
HOST_JOBS: Final = ("alloy", "node-exporter")

Frame = Mapping[Labels, float]


@dataclass
class LogStream:
    """Lines of one stream: seconds, text, structured metadata."""

    labels: dict[str, str]
    lines: list[tuple[float, str, dict[str, str]]] = field(default_factory=list)


@dataclass
class Past:
    """`end_s` is a multiple of STEP_S."""

    end_s: float
    directory: Path
    series: dict[Labels, Samples] = field(default_factory=dict)
    streams: list[LogStream] = field(default_factory=list)

    @property
    def start_s(self) -> float:
        return self.end_s - LENGTH_S

    @property
    def incidents_s(self) -> float:
        return self.end_s - INCIDENTS_S

    @property
    def steps(self) -> list[float]:
        return [self.start_s + STEP_S * step for step in range(LENGTH_S // STEP_S + 1)]

    def make(self) -> None:
        for host in HOSTS:
            self._gpus(host)
            self._around(host)

    def _gpus(self, host: Host) -> None:
        state = self.directory / host.name / host.cluster
        with exporters.at(self.start_s):
            setup.init(state=state, scenario=host.scenario, hostname=f"{host.name}.{host.cluster}")
            body, every_s = exporters.exporter(host.mode, state, self.start_s)
        # Once more on either side of the incidents, so that nothing is drawn between before and after.
        moments = {self.start_s + every_s * n for n in range(int(LENGTH_S // every_s) + 1)}
        moments |= {self.incidents_s - 1, self.incidents_s, self.end_s}
        frames, target = [], _Target(host)
        for moment in sorted(moments):
            with exporters.at(moment):
                if moment == self.incidents_s and host.fault:
                    host.fault(state)
                frames.append((moment, target.read(body())))
        for labels, samples in _between(frames, self._moments(host)).items():
            # A host that is cut off cannot mark its series as stale.
            self.series[labels] = samples if host.is_cut_off else list(ended(samples, STEP_S, self.end_s))
        self._kernel_lines(host, state)

    def _moments(self, host: Host) -> list[float]:
        return [step for step in self.steps if not (host.is_cut_off and step >= self.incidents_s)]

    def _around(self, host: Host) -> None:
        """node_exporter, Alloy, `up` of each job, and container logs."""
        jobs = [*HOST_JOBS, *([] if host.mode.startswith("textfile") else ["gpu-exporter"])]
        nodes = [one for one in HOSTS if (one.datacenter, one.cluster) == (host.datacenter, host.cluster)]
        series: dict[Labels, list[tuple[float, float]]] = {}
        for at_s in self._moments(host):
            is_sick = at_s >= self.incidents_s
            samples = [("node-exporter", sample) for sample in about_host.node_exporter(host, at_s, self.start_s)]
            samples += [("textfile", sample) for sample in about_host.readiness(host, at_s, is_sick=is_sick)]
            samples += [("alloy", sample) for sample in about_host.alloy(host, at_s, self.start_s)]
            samples += [(job, ("up", {}, 1.0)) for job in jobs]
            if host.containers == "pods":
                samples += [("kube-state-metrics", sample) for sample in about_host.cluster_state(host)]
            else:
                samples += [("textfile", sample) for sample in about_host.jobs(host)]
                if host == nodes[0]:
                    samples += [("textfile", sample) for sample in about_host.slurm_queue(host, at_s, nodes, is_sick=is_sick)]
            for job, (name, labels, value) in samples:
                whose = {**host.labels, "instance": job} if job == "kube-state-metrics" else host.labels
                key = _key(name, {**labels, **whose, "job": job})
                series.setdefault(key, []).append((at_s, value))
            for target, (name, labels, value) in models.samples(host, at_s, self.start_s):
                series.setdefault(_key(name, {**labels, **target}), []).append((at_s, value))
        for labels, samples in series.items():
            self.series[labels] = samples if host.is_cut_off else list(ended(samples, STEP_S, self.end_s))
        if host.containers:
            self.streams.append(_printed(host, self._moments(host)))

    def _kernel_lines(self, host: Host, state: Path) -> None:
        """As Alloy's pipeline (process_kernel.alloy) labels and counts them."""
        streams: dict[str, LogStream] = {}
        for number, line in enumerate((state / KERNEL_LOG).read_text().splitlines()):
            text = re.sub(r"^\[.*?\] ", "", line)
            at_s = self.incidents_s + 0.01 * number
            found = re.search(r"NVRM: Xid \(PCI:([0-9a-f:.]+)\): (\d+)", text)
            amd = re.match(r"amdgpu ([0-9a-f:]+)\.0: .*?(uncorrectable|correctable|lost)", text)
            own = {"xid": found[2]} if found else {"event": amd[2]} if amd else {}
            about = found or amd
            metadata = {"level": "err", **({"pci": about[1]} if about else {})}
            if switch := re.search(r"SXid \(PCI:([0-9a-f:.]+)\): (\d+), (?:(Fatal|Non-fatal), )?", text):
                own, metadata = {"sxid": switch[2]}, {"level": "err", "pci": switch[1], "sxid_severity": switch[3] or ""}
            if adapter := re.search(r"^mlx5_core (\S+) eth2: TX timeout detected", text):
                own, metadata = {"nic_event": "tx_timeout"}, {"level": "err", "nic": adapter[1]}
            labels = {"job": "kernel", **host.labels, **own}
            streams.setdefault("".join(own.values()), LogStream(labels)).lines.append((at_s, text, metadata))
            since = [step for step in self._moments(host) if step >= self.incidents_s]
            if found:
                recovery = re.search(r" changed from .*\) to (0x.*)", text)
                kind, own = "xid", {"pci": found[1], "xid": found[2], "detail": recovery[1] if recovery else ""}
            # On the other AMD host Alloy was restarted since: only the counters of its exporter are left.
            elif amd and host.mode == "textfile-amd":
                kind, own = "amd", {"pci": amd[1], "event": amd[2]}
            else:
                continue
            last = {"xid": "gpu_fleet_xid_last_timestamp_seconds", "amd": "gpu_fleet_amd_event_last_timestamp_seconds"}[kind]
            for name, value in ((f"gpu_fleet_{kind}_events_total", 1.0), (last, at_s)):
                self.series[_key(name, {**host.labels, "job": "alloy", **own})] = [(step, value) for step in since]
        self.streams += streams.values()


class _Target:
    """A host's exporter as Alloy scrapes it: the target's labels win, one of the same name in the body becomes exported_..."""

    def __init__(self, host: Host) -> None:
        self._labels = {**host.labels, "job": "node-exporter" if host.mode.startswith("textfile") else "gpu-exporter"}
        self._known: dict[str, Labels] = {}  # most of the time goes into reading labels, which are the same every time

    def read(self, body: str) -> dict[Labels, float]:
        frame = {}
        for line in body.splitlines():
            if line and not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                if series not in self._known:
                    self._known[series] = self._named(series)
                frame[self._known[series]] = float(value)
        return frame

    def _named(self, series: str) -> Labels:
        name, _, inner = series.partition("{")
        pairs = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', inner)
        kept = {f"exported_{label}" if label in self._labels else label: value for label, value in pairs}
        return _key(name, {**kept, **self._labels})


def _key(name: str, labels: Mapping[str, str]) -> Labels:
    return tuple(sorted({"__name__": name, **{label: value for label, value in labels.items() if value}}.items()))


def _between(frames: list[tuple[float, Frame]], moments: Iterable[float]) -> dict[Labels, list[tuple[float, float]]]:
    """The frames' values at `moments`, on straight lines between two frames; nothing between two that lack the series."""
    found: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
    place = 0
    for moment in moments:
        while place + 1 < len(frames) and frames[place + 1][0] <= moment:
            place += 1
        (before_s, before), (after_s, after) = frames[place], frames[min(place + 1, len(frames) - 1)]
        part = 0.0 if after_s == before_s else (moment - before_s) / (after_s - before_s)
        for labels, value in before.items():
            if part == 0.0:
                found[labels].append((moment, value))
            elif labels in after:
                found[labels].append((moment, value + (after[labels] - value) * part))
    return found


def _printed(host: Host, moments: list[float]) -> LogStream:
    """A server of language models logs its throughput, a training job its step."""
    if host.containers == "pods":
        labels = {"job": "pods", **host.labels, "namespace": "serving", "container_shard": "6"}
        metadata = {"pod": "chat-6c9f7d-x2x8k", "container": "vllm"}
    elif host.containers == "podman":
        labels, metadata = {"job": "podman", **host.labels}, {"container": "vllm", "uid": "0"}
    else:
        labels, metadata = {"job": "docker", **host.labels, "container_shard": "6"}, {"container": "vllm"}
    lines = []
    for at_s in moments[::2]:
        speed = 800 + 60 * (at_s // 60 % 7)
        lines.append(
            (at_s, f"INFO: Avg generation throughput: {speed:.1f} tokens/s, Running: {at_s // 60 % 5:.0f} reqs", metadata)
        )
    if host.fault and moments[-1] > moments[0]:
        lines.append((moments[-1] - INCIDENTS_S + 1, "ERROR: CUDA error: an illegal memory access was encountered", metadata))
    return LogStream(labels, sorted(lines))
