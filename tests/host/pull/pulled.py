"""A host that provisions itself: a published directory behind a file server on loopback, and the host below a prefix."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_fleet.host.bundle import Bundle
from gpu_fleet.host.part import ROOTFS, Part
from gpu_fleet.host.parts.pull import ZIP, Pull
from gpu_fleet.host.pull.publish import Publication, SigningKey
from tests.host.hosts import SUPERVISORD, SimulatedHost

_OPTIONS = ("-I", "-S", "-B", "-X", "utf8")  # of Python, as bin/gpu-fleet-pull gives them
_RUN = """
import runpy, sys
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
STACK = "us-west-training"
SETTINGS = {
    "GPU_FLEET_DATACENTER": "us-west",
    "GPU_FLEET_CLUSTER": "training",
    "GPU_FLEET_METRICS_URL": "https://mimir.example.com/api/v1/push",
    "GPU_FLEET_METRICS_USERNAME": "writer",
    "GPU_FLEET_LOGS_URL": "https://loki.example.com/loki/api/v1/push",
    "GPU_FLEET_LOGS_USERNAME": "writer",
    "GPU_FLEET_SUPERVISORD": "",
    "GPU_FLEET_GPUS": "",
}


def make_key(path: Path) -> SigningKey:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)], check=True)
    return SigningKey(path)


@dataclass
class Run:
    code: int
    said: str


@dataclass
class Site:
    """What was published, and where: `url` serves `directory`."""

    directory: Path
    key: SigningKey
    rootfs: Path
    url: str = ""
    time_s: int = field(default_factory=lambda: int(time.time()) - 7200)
    artifacts: Path | None = None
    settings: dict[str, str] = field(default_factory=lambda: dict(SETTINGS))

    def publish(
        self,
        parts: Sequence[Part],
        *,
        key: SigningKey | None = None,
        stack: str = STACK,
        keys: Sequence[SigningKey] = (),
        settings: Mapping[str, str] | None = None,
        **options: Any,
    ) -> str:
        """Returns the bundle's digest. Each publication is a minute after the last."""
        self.time_s += 60
        for path in ROOTFS.rglob("gpu-fleet-pull*"):
            target = self.rootfs / path.relative_to(ROOTFS)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        bundle = Bundle.of([*parts, Pull().part()], rootfs=self.rootfs)
        publication = Publication(
            stack=stack,
            bundle=bundle,
            settings={**self.settings, **(settings or {})},
            artifacts=self.artifacts,
            url=self.url,
            **options,
        )
        publication.write(self.directory, keys or [key or self.key], now_s=self.time_s)
        return bundle.digest

    def serve(self) -> http.server.ThreadingHTTPServer:
        class Quiet(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

        handler = functools.partial(Quiet, directory=str(self.directory))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        return server


@dataclass
class PulledHost:
    simulated: SimulatedHost
    site: Site
    path: str = os.environ["PATH"]
    python: str = ""  # the one that the installer is given
    first: str = ""  # source that a pull begins with, in its process
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def prefix(self) -> Path:
        return self.simulated.prefix

    @property
    def program(self) -> Path:
        return self.at("/opt/gpu-fleet/bin/gpu-fleet-pull")

    def at(self, path: str) -> Path:
        return self.simulated.at(path)

    def installer(self, *arguments: str) -> list[str]:
        setting = f"GPU_FLEET_SUPERVISORD={SUPERVISORD}"
        program = str(self.site.directory / "install-gpu-fleet")
        python = ("--python", self.python) if self.python else ()
        return ["sh", program, "--prefix", str(self.prefix), "--setting", setting, *python, *arguments]

    def install(self, *arguments: str) -> Run:
        return self.run(self.installer("--instance", "gpu-node-007", *arguments))

    def pull(self, *arguments: str) -> Run:
        return self.run([*self.command, *arguments])

    @property
    def command(self) -> list[str]:
        return (
            [self.beginning_with(self.first), *_OPTIONS, str(self.at(ZIP)), "main", str(self.prefix)]
            if self.first
            else [str(self.program)]
        )

    def beginning_with(self, source: str) -> str:
        """The path of a Python that begins with this where it is to run gpu-fleet-pull."""
        start, python = (self.simulated.directory / name for name in ("first.py", "python"))
        start.write_text(source + _RUN)
        run = f'case "$6" in */pull.pyz) shift 5; exec {sys.executable} {" ".join(_OPTIONS)} "{start}" "$@" ;; esac'
        python.write_text(f'#!/bin/sh\n{run}\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        return str(python)

    def run(self, command: Sequence[str]) -> Run:
        """Without a terminal: in a session of its own."""
        done = subprocess.run(
            command,
            env={"PATH": self.path, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            start_new_session=True,
        )
        return Run(done.returncode, done.stdout + done.stderr)

    def digest(self) -> str:
        return self.at("/var/lib/gpu-fleet/digest").read_text().strip()

    def values(self) -> dict[str, str]:
        lines = self.at("/etc/gpu-fleet/gpu-fleet.env").read_text().splitlines()
        return {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines if not line.startswith("#"))}
