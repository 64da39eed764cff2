"""A Mimir and a Loki of their own, with the configuration of the embedded backend, in a temporary directory."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Collection
from pathlib import Path

from components.backend.backend import LOKI_CONFIG, MIMIR_CONFIG
from gpu_fleet import toolchain
from lab.ports import free_ports

_CONFIGS = {"mimir": MIMIR_CONFIG, "loki": LOKI_CONFIG}
_READY_S = 300
# An hour arrives at once, which exceeds the default limits per second.
_MIMIR_LIMITS = ("-distributor.ingestion-rate-limit=1e9", "-distributor.ingestion-burst-size=1000000000")


class ServerFailed(Exception):
    """A server did not start; the text ends with its log."""


class Servers:
    """Started at once, ready after `wait`. `mimir` and `loki` are their base URLs. `names`: which of them are started."""

    def __init__(self, directory: Path, names: Collection[str] = ("mimir", "loki")) -> None:
        ports = free_ports(4)
        self._environment = os.environ | {
            "MIMIR_DIRECTORY": str(directory / "mimir" / "data"),
            "LOKI_DIRECTORY": str(directory / "loki" / "data"),
            "EXTERNAL_URL": f"http://127.0.0.1:{ports[0]}",
            "METRICS_LATE": "8h",
            "METRICS_RETENTION": "90d",
            "LOGS_RETENTION": "30d",
            "MIMIR_PORT": str(ports[0]),
            "MIMIR_GRPC_PORT": str(ports[1]),
            "LOKI_PORT": str(ports[2]),
            "LOKI_GRPC_PORT": str(ports[3]),
        }
        self.mimir, self.loki = (f"http://127.0.0.1:{port}" for port in (ports[0], ports[2]))
        self._directory = directory
        kinds = {"mimir": (self.mimir, _MIMIR_LIMITS), "loki": (self.loki, ("-target=all",))}
        self._processes = {url: self._start(name, *options) for name, (url, options) in kinds.items() if name in names}

    def _start(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        (self._directory / name / "data").mkdir(parents=True)  # where the configurations begin
        command = [toolchain.find(name), f"-config.file={_CONFIGS[name]}", "-config.expand-env=true", *options]
        with (self._directory / f"{name}.log").open("w") as log:
            return subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)

    def wait(self) -> None:
        """Raises ServerFailed."""
        deadline = time.monotonic() + _READY_S
        for url, process in self._processes.items():
            while not _is_ready(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    logs = "\n".join(log.read_text()[-2000:] for log in sorted(self._directory.glob("*.log")))
                    self.stop()
                    raise ServerFailed(f"{url} is not ready:\n{logs}")
                time.sleep(0.2)

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()  # no data has to be kept
        for process in self._processes.values():
            process.wait()


def _is_ready(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/ready", timeout=5).close()  # noqa: S310  always http to loopback
    except (urllib.error.URLError, OSError):
        return False
    return True
