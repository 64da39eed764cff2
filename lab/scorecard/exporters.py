"""What a simulated host's exporters serve at this moment: the GPU exporter's and node_exporter's /metrics."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Final

from lab.gpu import faults, fixtures, setup
from lab.gpu.amd import sysfs
from lab.gpu.machine import Machine
from lab.scorecard.tape import MODES
from lab.showcase import exporters
from lab.showcase import host as about_host
from lab.showcase.fleet import Host

# What nvidia-smi prints goes through the environment and standard output of this process.
_ONE_AT_A_TIME: Final = threading.Lock()
# dcgm-exporter collects and the textfile collectors run as often as Alloy scrapes.
COLLECT_S: Final = 15
_PATIENCE_S: Final = 10  # of the exporters; longer is a driver that hangs


class Hangs(Exception):
    """The exporter accepts the request and never answers."""


class GpuExporter:
    """The GPU exporter of one host. `values`: regular expression of a series -> its value, whatever the machine says; None: the
    series is gone; a text: the series has this name."""

    def __init__(self, mode: str, state: Path) -> None:
        self.values: dict[str, float | str | None] = {}
        self._state = state
        body = MODES[mode].body
        assert body is not None
        with _ONE_AT_A_TIME:
            self._read = _smi(state) if body == "smi-exec" else exporters.exporter(body, state, time.time())[0]
        self._every_s = 0 if body == "smi-exec" else COLLECT_S
        self._is_dcgm = body.startswith("dcgm")
        self._text, self._read_s = "", 0.0

    def body(self) -> str:
        now = faults.read(os.fspath(self._state))
        if self._is_dcgm and now["stall_s"] > _PATIENCE_S:
            raise Hangs
        if not self._text or time.monotonic() - self._read_s >= self._every_s:
            with _ONE_AT_A_TIME:
                # Without a driver DCGM has no GPU to report.
                self._text = "" if self._is_dcgm and now["driver"] else self._read()
            self._read_s = time.monotonic()
        return edited(self._text, self.values)


def edited(body: str, values: dict[str, float | str | None]) -> str:
    for pattern, value in values.items():
        if value is None:
            body = re.sub(rf"^{pattern} \S+\n", "", body, flags=re.MULTILINE)
        elif isinstance(value, str):
            body = re.sub(rf"^{pattern}", value, body, flags=re.MULTILINE)
        else:
            body = re.sub(rf"^({pattern}) \S+$", rf"\1 {value:g}", body, flags=re.MULTILINE)
    return body


def _smi(state: Path) -> Callable[[], str]:
    """The stand-in of nvidia_gpu_exporter, with nvidia-smi in this process."""

    def before_each(module: ModuleType) -> None:
        if faults.read(os.fspath(state))["stall_s"] > _PATIENCE_S:
            raise module.CollectError("signal: killed", -1)

    return fixtures.exporter_in_process(state, "--collect.backend", "exec", "--collect.compute-apps", before_each=before_each)


class Textfiles:
    """The textfile collectors of one host: the scripts that hosts run, over the simulated tools.

    Run again when the machine broke or was repaired, in the background as on a host; in between only their time moves on.
    """

    _workers: Final = ThreadPoolExecutor(2)
    # Link counters carry no identity of a GPU: all healthy machines of a scenario share them.
    _shared: Final[dict[tuple[str, str], str]] = {}

    def __init__(self, state: Path, directory: Path, collectors: tuple[str, ...]) -> None:
        self._state, self._prefix = state, directory / "host"
        self._collectors = collectors
        self._text, self._of = "", ""
        self._running: Future[None] | None = None
        fixtures.place_collectors(self._prefix, collectors)
        self._written = self._prefix / "var/lib/gpu-fleet/textfile"
        self._written.mkdir(parents=True)
        setup.place_tools(state=state, bin_directory=directory / "bin")
        self._environment = {
            "PATH": os.environ["PATH"],
            "GPU_FLEET_PREFIX": str(self._prefix),
            "GPU_FLEET_TOOL_PATH": str(directory / "bin"),
            "GPU_FLEET_PYTHON": sys.executable,
        }
        if collectors:
            self._run(self._broken())

    def body(self) -> str:
        if not self._collectors:
            return ""
        broken = self._broken()
        if broken != self._of and (self._running is None or self._running.done()):
            self._running = self._workers.submit(self._run, broken)
        ran = int(time.time() // COLLECT_S * COLLECT_S)
        return re.sub(r"^(node_gpu_collector_timestamp_seconds\{.*\}) .*$", rf"\1 {ran}", self._text, flags=re.MULTILINE)

    def _broken(self) -> str:
        return str({**faults.read(os.fspath(self._state)), "xids": None})  # no tool lists them

    def _run(self, broken: str) -> None:
        key = Machine.load(self._state).scenario, broken
        text = self._shared.get(key) if self._collectors == ("links",) else None
        if text is None:
            sysfs.write(self._prefix, Machine.load(self._state))
            subprocess.run(["sh", self._prefix / "opt/gpu-fleet/libexec/start-textfile"], env=self._environment, check=True)
            text = "".join(path.read_text() for path in sorted(self._written.glob("*.prom")))
        if self._collectors == ("links",):
            self._shared[key] = text
        self._text, self._of = text, broken


class NodeExporter:
    """node_exporter of one host. `fixed`: series -> value (None: the series is gone); `rates`: series -> increase per second."""

    def __init__(self, name: str, textfiles: Textfiles, booted_s: float) -> None:
        self.fixed: dict[str, float | None] = {}
        self.rates: dict[str, tuple[float, float]] = {}  # (since, per second)
        self.booted_s = booted_s
        self._textfiles = textfiles
        self._host = Host(name=name, datacenter="", cluster="", mode="dcgm-4.8", scenario="")
        self._since_s = time.time()

    def body(self) -> str:
        now = time.time()
        series = {
            f"{name}{{{_inner(labels)}}}": value
            for name, labels, value in about_host.node_exporter(self._host, now, self._since_s)
            if labels.get("fstype") != "nsfs"  # node_exporter leaves these out unless asked for
        }
        series |= {one.replace("_avail_bytes", "_readonly"): 0 for one in series if one.startswith("node_filesystem_avail_bytes")}
        series |= {"node_boot_time_seconds{}": self.booted_s, **_MORE}
        for one, (since_s, per_second) in self.rates.items():
            series[one] = series.get(one, 0) + (now - since_s) * per_second
        series |= {one: value for one, value in self.fixed.items() if value is not None}
        gone = {one for one, value in self.fixed.items() if value is None}
        lines = [f"{one} {value!r}" for one, value in series.items() if one not in gone]
        return "\n".join(lines) + "\n" + self._textfiles.body()


def _inner(labels: dict[str, str]) -> str:
    return ",".join(f'{key}="{text}"' for key, text in labels.items())


_PORT: Final = 'device="mlx5_{}",port="1"'
# A host with four InfiniBand ports and the services of an HGX machine. Names and labels as node_exporter 1.12.1 has them.
_MORE: Final[dict[str, float]] = {
    **{f"node_infiniband_state_id{{{_PORT.format(n)}}}": 4.0 for n in range(4)},
    **{f"node_infiniband_physical_state_id{{{_PORT.format(n)}}}": 5.0 for n in range(4)},
    **{f"node_infiniband_rate_bytes_per_second{{{_PORT.format(n)}}}": 5e10 for n in range(4)},
    **{
        f"node_infiniband_{counter}_total{{{_PORT.format(n)}}}": 0.0
        for n in range(4)
        for counter in (
            "link_downed",
            "link_error_recovery",
            "symbol_error",
            "local_link_integrity_errors",
            "excessive_buffer_overrun_errors",
            "port_errors_received",
            "rnr_nak_retry_packets_received",
            "local_ack_timeout_errors",
            "port_discards_transmitted",
            "roce_slow_restart_used",
        )
    },
    **{
        f'node_systemd_unit_state{{name="{name}.service",state="{state}",type=""}}': float(state == "active")
        for name in ("nvidia-fabricmanager", "nvidia-persistenced", "sshd")
        for state in ("active", "activating", "deactivating", "failed", "inactive")
    },
    **{f'node_edac_{kind}_errors_total{{controller="0"}}': 0.0 for kind in ("correctable", "uncorrectable")},
    'node_nvme_info{device="nvme0",firmware_revision="1",model="m",serial="s",state="live",cntlid="1"}': 1.0,
    "node_timex_maxerror_seconds{}": 0.01,
    "node_load1{}": 12.0,
}


def machine(state: Path) -> Machine:
    return Machine.load(state)
