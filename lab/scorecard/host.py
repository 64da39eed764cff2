"""One replay's host: its GPU machine, exporters and Alloy process, and the steps of a tape that happen to it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from gpu_fleet import toolchain
from gpu_fleet.host.part import ROOTFS
from gpu_fleet.host.parts.alloy import Alloy
from lab.gpu import inject, kernel, setup
from lab.gpu.machine import KERNEL_LOG, MACHINE_FILE
from lab.scorecard.exporters import GpuExporter, Hangs, NodeExporter, Textfiles, machine
from lab.scorecard.relay import Relays
from lab.scorecard.tape import MODES, Tape

_CONFIG: Final = ROOTFS / "etc/gpu-fleet/alloy"
# As Alloy's part and the exporters' parts place them on a host that logs to a file and whose stores need no login.
_FILES: Final = (
    "discover",
    "collect_metrics",
    "collect_agent",
    "collect_kernel_file",
    "process_kernel",
    "export_metrics",
    "export_logs",
)
_ALLOY: Final = Alloy(
    sources={}, metrics_login=False, logs=True, logs_login=False, docker_logs=False, metrics_outage_s=6 * 3600
).part()
# What every host listens on at its own address: the ports of its programs plus 20,000, so that no service of this machine that
# listens on every address is in the way. Alloy connects to the relays as if they were the stores.
_PORTS: Final = {"alloy": 32345, "gpu-exporter": 29400, "node-exporter": 29100, "mimir": 29009, "loki": 23100}
_HANG_S: Final = 12  # longer than any scrape timeout

_INJECT: Final[Mapping[str, Callable[..., list[str]]]] = {
    "xid": inject.inject_xid,
    "sxid": inject.inject_sxid,
    "ecc": inject.inject_ecc,
    "hot": inject.make_hot,
    "throttle": inject.throttle,
    "lose": inject.lose,
    "remap": inject.remap_row,
    "nvlink": inject.take_link_down,
    "nvlink-errors": inject.add_link_errors,
    "pcie": inject.add_pcie_replays,
    "hang": inject.hang,
    "driver": inject.break_driver,
    "stall": inject.stall,
    "clear": inject.clear,
}
_XID: Final = re.compile(r"NVRM: Xid \((?:PCI:(?:0000)?)?\{(?:pci|PCI)(\d+)\}[^)]*\): (\d{1,3})\b")
_MONTHS_FR: Final = ("janv.", "févr.", "mars", "avril", "mai", "juin", "juil.", "août", "sept.", "oct.", "nov.", "déc.")
# What a kernel says while it boots, as far as Alloy keeps it.
_BOOT: Final = (
    "Linux version 6.8.0-60-generic (buildd@lcy02-amd64-054) (x86_64-linux-gnu-gcc-13)",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 236",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {driver}",
    "nvme nvme0: 64/0/0 default/read/poll queues",
    "mlx5_core 0000:18:00.0: firmware version: 28.41.1000",
)


class SimulatedHost:
    """`address`: its own, of the loopback interface. `stores`: URLs of Mimir and Loki."""

    def __init__(
        self, tape: Tape, mode: str, *, name: str, directory: Path, address: str, stores: tuple[str, str], relays: Relays
    ) -> None:
        self.name, self.tape, self.mode = name, tape, mode
        self._directory, self._relays = directory, relays
        self._address = address
        self._stores = dict(zip(("mimir", "loki"), stores, strict=True))
        self._state = directory / "machine"
        setup.init(state=self._state, scenario=tape.scenario, hostname=name)
        if tape.driver:
            self._change_machine(driver=tape.driver)
        self.gpus = len(machine(self._state).gpus)
        textfiles = Textfiles(self._state, directory, MODES[mode].collectors)
        self._node = NodeExporter(name, textfiles, machine(self._state).booted_s)
        self._gpu = GpuExporter(mode, self._state) if MODES[mode].body else None
        self._servers: dict[str, ThreadingHTTPServer] = {}
        self._alloy: subprocess.Popen[bytes] | None = None
        # Only a host whose connection a tape cuts goes through relays.
        self._is_relayed = any(set(step) & {"down", "up"} for step in tape.steps)
        self._place_configuration()
        # As on a real host, the file is not empty: a restarted Alloy takes position 0 of a file for none, and begins at its end
        # (Alloy, internal/component/loki/source/file/tailer.go, initRun; read 2026-11-22).
        self._log_boot()

    # --- life of the host

    def start(self) -> None:
        for store in self._stores:
            self._start(store)
        for name in ("node-exporter", "gpu-exporter", "alloy"):
            self._start(name)

    def stop(self) -> None:
        self._stop_alloy(signal.SIGKILL)
        for name in list(self._servers):
            self._stop(name)

    def failure(self) -> str | None:
        """What Alloy logged last if it ended by itself."""
        if self._alloy is not None and self._alloy.poll() is not None:
            return (self._directory / "alloy.log").read_text()[-2000:]
        return None

    def is_ready(self) -> bool:
        try:
            urllib.request.urlopen(f"http://{self._at('alloy')}/-/ready", timeout=5).close()
        except (urllib.error.URLError, OSError):
            return False
        return True

    def names_of(self, gpu: int | str | None) -> frozenset[str]:
        """How a notification can name a GPU, in lower case."""
        if gpu is None or isinstance(gpu, str):
            return frozenset([gpu.lower()] if gpu else [])
        known = machine(self._state).gpus[gpu]
        return frozenset({str(gpu), known.uuid.lower(), known.pci_kernel})

    def _change_machine(self, **values: Any) -> None:
        path = self._state / MACHINE_FILE
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    def _at(self, name: str) -> str:
        return f"{self._address}:{_PORTS[name]}"

    def _place_configuration(self) -> None:
        files = [*_FILES, *(["collect_gpu_exporter"] if self._gpu else [])]
        directory = self._directory / "alloy"
        directory.mkdir()
        for name in files:
            shutil.copy(_CONFIG / f"{name}.alloy", directory)  # a run is long, and the checkout may change meanwhile
        # Here the textfiles come with what node_exporter serves, from one server.
        metrics = directory / "collect_metrics.alloy"
        metrics.write_text(metrics.read_text().replace('"(gpu_fleet|node_gpu|node_textfile)_.*"', '"nothing"'))

    def _environment(self) -> dict[str, str]:
        def url(store: str, path: str) -> str:
            base = f"http://{self._at(store)}" if self._is_relayed else self._stores[store]
            return base + path

        return {
            **_ALLOY.settings,
            "PATH": os.environ["PATH"],
            "HOME": str(self._directory),
            "GOMAXPROCS": "1",  # hundreds of processes share this machine
            "GPU_FLEET_INSTANCE": self.name,
            "GPU_FLEET_DATACENTER": "scorecard",
            "GPU_FLEET_CLUSTER": self.name,
            "GPU_FLEET_EXPORTER_MODE": MODES[self.mode].label,
            "GPU_FLEET_PREFIX": str(self._directory / "host"),
            "GPU_FLEET_ALLOY_LISTEN": self._at("alloy"),
            "GPU_FLEET_GPU_EXPORTER_LISTEN": self._at("gpu-exporter"),
            "GPU_FLEET_NODE_EXPORTER_LISTEN": self._at("node-exporter"),
            "GPU_FLEET_METRICS_URL": url("mimir", "/api/v1/push"),
            "GPU_FLEET_LOGS_URL": url("loki", "/loki/api/v1/push"),
            "GPU_FLEET_KERNEL_LOG_FILE": str(self._state / KERNEL_LOG),
        }

    # --- steps of a tape

    def do(self, step: Mapping[str, Any]) -> None:
        match step:
            case {"nothing": _}:
                pass
            case {"inject": name, **rest}:
                _INJECT[name](self._state, **{key: value for key, value in rest.items() if key != "at"})
            case {"kernel": lines}:
                self._log(([lines] if isinstance(lines, str) else lines) * step.get("times", 1), step.get("form", "dmesg"))
            case {"rotate_log": _}:  # as logrotate does by default: the file gets another name, and syslog opens a new one
                log = self._state / KERNEL_LOG
                log.rename(log.with_suffix(".log.1"))
                log.touch()
            case {"node": values}:
                self._node.fixed |= values
            case {"rate": rates}:
                self._node.rates |= {series: (time.time(), per_second) for series, per_second in rates.items()}
            case {"value": by_mode}:
                if self._gpu:
                    self._gpu.values |= {self._filled(each): value for each, value in by_mode.get(self.mode, {}).items()}
            case {"stop": name} | {"down": name}:
                self._each(name, self._stop)
            case {"start": name} | {"up": name}:
                self._each(name, self._start)
            case {"restart": name}:
                self._each(name, self._stop)
                self._each(name, self._start)
            case {"reboot": seconds}:
                self._reboot(seconds, signal.SIGTERM, repairs=step.get("repairs", True))
            case {"crash": seconds}:
                self._reboot(seconds, signal.SIGKILL, repairs=step.get("repairs", True))
            case {"power_off": _}:
                self._power_off(signal.SIGKILL)

    @staticmethod
    def _each(name: str, act: Callable[[str], None]) -> None:
        for one in ("mimir", "loki") if name == "network" else (name,):
            act(one)

    def _filled(self, text: str) -> str:
        """{pciN} is the address of GPU N, {PCIN} the same in upper case, {uuidN} its UUID, {switch0} that of an NVSwitch."""
        now = machine(self._state)
        names = {f"switch{number}": address for number, address in enumerate(now.nvswitches)}
        for gpu in now.gpus:
            at = gpu.pci_kernel
            names |= {f"pci{gpu.index}": at, f"PCI{gpu.index}": at.upper(), f"uuid{gpu.index}": gpu.uuid}
        return re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], found[0]), text)

    def _log(self, lines: list[str], form: str = "dmesg") -> None:
        """NVML reports the XIDs that the driver logs."""
        now = machine(self._state)
        begun = _begun(form, now.at_s, now.at_s - now.booted_s, self.name)
        with (self._state / KERNEL_LOG).open("a") as log:
            log.write("".join(f"{begun}{self._filled(line)}\n" for line in lines))
        if seen := [found for line in lines if (found := _XID.match(line))]:
            inject.see_xids(self._state, [(int(found[1]), int(found[2])) for found in seen])

    def _log_boot(self) -> None:
        self._log([line.format(driver=machine(self._state).driver) for line in _BOOT])

    def _power_off(self, how: signal.Signals) -> None:
        self._stop_alloy(how)
        for name in ("gpu-exporter", "node-exporter"):
            self._stop(name)

    def _reboot(self, seconds: float, how: signal.Signals, *, repairs: bool) -> None:
        self._power_off(how)
        time.sleep(seconds)
        self._node.booted_s = time.time()
        self._change_machine(booted_s=self._node.booted_s)
        if repairs:
            inject.clear(self._state)
        self._log_boot()
        for name in ("node-exporter", "gpu-exporter", "alloy"):
            self._start(name)

    # --- services

    def _start(self, name: str) -> None:
        if name == "alloy":
            self._start_alloy()
        elif name in self._stores:
            if self._is_relayed:
                self._relays.open((self._address, _PORTS[name]), int(self._stores[name].rpartition(":")[2]))
        elif name not in self._servers and (name == "node-exporter" or self._gpu):
            body = self._node.body if name == "node-exporter" else self._gpu.body  # type: ignore[union-attr]
            self._servers[name] = _serve((self._address, _PORTS[name]), body)

    def _stop(self, name: str) -> None:
        if name == "alloy":
            self._stop_alloy(signal.SIGTERM)
        elif name in self._stores:
            self._relays.close((self._address, _PORTS[name]))
        elif server := self._servers.pop(name, None):
            server.shutdown()
            server.server_close()

    def _start_alloy(self) -> None:
        command = [toolchain.find("alloy"), "run", "--disable-reporting", f"--storage.path={self._directory / 'alloy-data'}"]
        command += [f"--server.http.listen-addr={self._at('alloy')}", self._directory / "alloy"]
        with (self._directory / "alloy.log").open("a") as log:
            self._alloy = subprocess.Popen(command, env=self._environment(), stdout=log, stderr=log)

    def _stop_alloy(self, how: signal.Signals) -> None:
        if self._alloy is not None:
            self._alloy.send_signal(how)
            try:
                self._alloy.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._alloy.kill()
                self._alloy.wait()
            self._alloy = None


def _begun(form: str, at_s: float, since_boot_s: float, host: str) -> str:
    """What is before the driver's text in a line of a kernel log."""
    at = datetime.fromtimestamp(at_s, UTC)
    match form:
        case "syslog":
            return f"{at:%b} {at.day:2} {at:%H:%M:%S} {host} kernel: [{since_boot_s:12.6f}] "
        case "rfc3339":
            return f"{at.isoformat()} {host} kernel: "
        case "talos":
            return f"10.5.0.7: kern: warning: [{at:%Y-%m-%dT%H:%M:%S.%f}000Z]: "
        case "journal-fr":
            return f"{_MONTHS_FR[at.month - 1]} {at.day:2} {at:%H:%M:%S} {host} kernel: "
        case "dmesg-ja":
            return f"[{'月火水木金土日'[at.weekday()]} {at.month:2}月 {at.day:2} {at:%H:%M:%S} {at.year}] "
        case "dmesg-raw":
            return f"<4>[{since_boot_s:12.6f}] "
        case "netconsole":
            return f"5.14.0-503.el9.x86_64,4,4711,{since_boot_s * 1e6:.0f},-;"
        case "bare":
            return ""
    return kernel.stamp(since_boot_s, "")


def _serve(address: tuple[str, int], body: Callable[[], str]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                text = body().encode()
            except Hangs:
                time.sleep(_HANG_S)
                self.close_connection = True
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            with contextlib.suppress(OSError):  # Alloy gave up waiting
                self.wfile.write(text)

        def log_message(self, *_arguments: object) -> None:
            """The real ones do not log requests."""

    server = ThreadingHTTPServer(address, Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 1}, daemon=True).start()
    return server
