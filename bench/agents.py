"""What many agents do to the stores when all are restarted at once, as by a release, and after an outage.

Real Alloys with the configuration of a host, each with pages and a kernel log of its own, and one store that counts what arrives
and accepts all of it, or nothing during the outage.

    python -m bench.agents [--agents 20] [--outage 120]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from gpu_fleet import toolchain
from gpu_fleet.host.part import ROOTFS
from gpu_fleet.host.parts.alloy import Alloy
from gpu_fleet.operations.table import table
from lab.gpu import setup
from lab.ports import free_ports
from lab.showcase import exporters

_SETTLE_S: Final = 60
_PHASE_S: Final = 60  # four scrapes
_CONFIG: Final = (
    *("discover", "collect_gpu_exporter", "collect_metrics", "collect_textfiles", "collect_agent", "export_metrics"),
    *("collect_kernel_file", "process_kernel", "export_logs"),
)

_SETTINGS: Final = (
    Alloy(sources={}, metrics_login=False, logs=True, logs_login=False, docker_logs=False, metrics_outage_s=6 * 3600)
    .part()
    .settings
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.agents", description="Measures what a restart of all agents sends.")
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--outage", type=int, default=120, metavar="SECONDS")
    given = parser.parse_args(arguments)
    print(f"about {(_SETTLE_S + 3 * _PHASE_S + given.outage) / 60:.0f} minutes", flush=True)
    with tempfile.TemporaryDirectory() as directory, _served(_Store) as store, _exporters(Path(directory)) as pages:
        agents = [_Agent(f"gpu-{number:03}", Path(directory), store.server_port, *pages) for number in range(given.agents)]
        try:
            rows = list(_phases(agents, _Store.counted, given.outage))
        finally:
            for agent in agents:
                agent.process.kill()
                agent.process.wait()
    print(table(list(rows[0]), [[str(value) for value in row.values()] for row in rows]))
    return 0


def _phases(agents: Sequence[_Agent], counted: _Counted, outage_s: int) -> Iterator[dict[str, Any]]:
    for agent in agents:
        agent.start()
    time.sleep(_SETTLE_S)
    yield _measured("running", agents, counted, _PHASE_S)
    for agent in agents:
        agent.process.terminate()
    for agent in agents:
        agent.kill()
        agent.start()
    yield _measured("restarted", agents, counted, _PHASE_S)
    counted.refuses = True
    yield _measured("store refuses", agents, counted, outage_s)
    counted.refuses = False
    yield _measured("store is back", agents, counted, _PHASE_S)


def _measured(phase: str, agents: Sequence[_Agent], counted: _Counted, seconds: float) -> dict[str, Any]:
    counted.clear()
    cpu_s = -sum(agent.cpu_s() for agent in agents)
    time.sleep(seconds)
    cpu_s += sum(agent.cpu_s() for agent in agents)
    requests = list(counted.requests)
    each = len(agents) * seconds / 15
    seconds_of = Counter(int(at) for at, _, _ in requests)
    return {
        "phase": phase,
        "load": round(os.getloadavg()[0], 1),
        "requests per agent and 15 s": round(len(requests) / each, 1),
        "most requests in a second, of all": max(seconds_of.values(), default=0),
        "of logs": sum(path.startswith("/loki") for _, path, _ in requests),
        "kB per agent and 15 s": round(sum(size for _, _, size in requests) / 1000 / each, 1),
        "connections": counted.connections,
        "CPU per agent, % of a core": round(100 * cpu_s / len(agents) / seconds, 2),
    }


class _Agent:
    def __init__(self, name: str, directory: Path, store: int, gpu: str, node: str) -> None:
        self._home = directory / name
        config = self._home / "config"
        config.mkdir(parents=True)
        for part in _CONFIG:
            shutil.copy(ROOTFS / f"etc/gpu-fleet/alloy/{part}.alloy", config)
        (self._home / "var/lib/gpu-fleet/textfile").mkdir(parents=True)
        log = self._home / "kernel.log"
        log.touch()
        (self._port,) = free_ports(1)
        self._environment = {
            **_SETTINGS,
            "PATH": os.environ["PATH"],
            "HOME": str(self._home),
            "GOMAXPROCS": "1",
            "GOGC": "30",  # both as start-alloy sets them
            "GPU_FLEET_INSTANCE": name,
            "GPU_FLEET_DATACENTER": "bench",
            "GPU_FLEET_CLUSTER": "agents",
            "GPU_FLEET_EXPORTER_MODE": "dcgm-exporter",
            "GPU_FLEET_PREFIX": str(self._home),
            "GPU_FLEET_ALLOY_LISTEN": f"127.0.0.1:{self._port}",
            "GPU_FLEET_GPU_EXPORTER_LISTEN": gpu,
            "GPU_FLEET_NODE_EXPORTER_LISTEN": node,
            "GPU_FLEET_METRICS_URL": f"http://127.0.0.1:{store}/api/v1/push",
            "GPU_FLEET_LOGS_URL": f"http://127.0.0.1:{store}/loki/api/v1/push",
            "GPU_FLEET_KERNEL_LOG_FILE": str(log),
        }

    def start(self) -> None:
        listen = f"--server.http.listen-addr=127.0.0.1:{self._port}"
        options = ["--disable-reporting", listen, f"--storage.path={self._home}/state"]
        with (self._home / "alloy.log").open("a") as log:
            command = [str(toolchain.find("alloy")), "run", *options, str(self._home / "config")]
            self.process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)

    def kill(self) -> None:
        """What a service manager does 5 s after it asked (gpu-fleet-alloy.service)."""
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class _Counted:
    """`requests`: Unix time, path and bytes of each."""

    requests: list[tuple[float, str, int]] = field(default_factory=list)
    connections: int = 0
    refuses: bool = False

    def clear(self) -> None:
        self.requests.clear()
        self.connections = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Store(_Handler):
    counted = _Counted()

    def setup(self) -> None:
        super().setup()
        self.counted.connections += 1

    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        self.rfile.read(size)
        self.counted.requests.append((time.time(), self.path, size))
        self.answer(503 if self.counted.refuses else 200)


@contextmanager
def _served(handler: type[_Store] | type[_Page]) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class _Page(_Handler):
    body: bytes

    def do_GET(self) -> None:
        self.answer(200, self.body)


@contextmanager
def _exporters(directory: Path) -> Iterator[tuple[str, str]]:
    """Addresses of a simulated dcgm-exporter with eight GPUs, and of node_exporter."""
    setup.init(state=directory / "machine", scenario="h100x8")
    _Page.body = exporters.exporter("dcgm-4.8", directory / "machine", time.time())[0]().encode()
    (port,) = free_ports(1)
    node = [str(toolchain.find("node_exporter")), f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    with _served(_Page) as gpu, subprocess.Popen(node) as process:
        yield f"127.0.0.1:{gpu.server_port}", f"127.0.0.1:{port}"
        process.terminate()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
