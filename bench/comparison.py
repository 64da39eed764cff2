"""Our push compared with an Ansible playbook of four roles: same hosts, programs, units and configuration files.

Ansible is installed from its locked requirements into a separate environment. Each side starts with bare hosts. Ours does more on
them (drift, removal, rollback, textfile collector, pull mode), which is included in its time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.measure import cost_of
from gpu_fleet.host.part import ON_HOST
from gpu_fleet.host.parts import PROGRAMS
from gpu_fleet.provider.envelope import compress
from gpu_fleet.toolchain.cache import Cache
from lab.hosts import VARIANTS, Site
from lab.standins.programs import gather
from tests.checkout import REPO
from tests.hosts.stack import UP, Backend, Stack, config_of

PLAYBOOK = Path(__file__).parent / "ansible"
_CHANGED_FILE = "etc/gpu-fleet/alloy/discover.alloy"
_ROOTFS = "gpu_fleet/host/rootfs"


def measure(count: int) -> list[dict[str, Any]]:
    """One row per tool: seconds of the first run, a run without a change, and a run with one changed file."""
    with (
        tempfile.TemporaryDirectory() as directory,
        sink() as port,
        Site.up({f"gpu-{number}": VARIANTS["metal"] for number in range(1, count + 1)}) as site,
    ):
        home = Path(directory)
        gather(home / "artifacts")
        for program in list((home / "artifacts").glob("[0-9a-f]*")):
            compress(program, program.with_name(f"{program.name}.gz"))  # as `make artifacts` does
        ours = _Ours(home, site, f"http://{site.relay(port)}")
        rows = [_times("gpu-fleet", count, ours.run, ours.change_a_file)]
        theirs = _Ansible(home, site, ours.files_on_hosts())
        ours.stack.destroy()
        rows.append(_times("ansible", count, theirs.run, theirs.change_a_file))
        return rows


def _times(tool: str, count: int, run: Callable[[], float], change_a_file: Callable[[], None]) -> dict[str, Any]:
    first, second = run(), run()
    change_a_file()
    return {"tool": tool, "hosts": count, "first run": first, "no change": second, "one file changed": run()}


def _finished(what: str, process: subprocess.Popen[str]) -> float:
    cost, output = cost_of(process)
    if process.returncode:
        raise RuntimeError(f"{what} failed:\n{output[-6000:]}")
    return cost.seconds


class _Ours:
    def __init__(self, home: Path, site: Site, backend_url: str):
        self._site = site
        backend = Backend(
            mimir=backend_url, loki=backend_url, metrics=f"{backend_url}/api/v1/push", logs=f"{backend_url}/loki/api/v1/push"
        )
        hosts = {name: {**entry, "exporter": "nvidia_gpu_exporter"} for name, entry in site.stack_hosts().items()}
        self.stack = Stack(home / "checkout", "bench", config_of(site, hosts, home / "artifacts", backend)).create()

    def run(self) -> float:
        return _finished("pulumi up", self.stack.start(*UP))

    def change_a_file(self) -> None:
        _append_comment(self.stack.directory / _ROOTFS / _CHANGED_FILE)

    def files_on_hosts(self) -> tuple[dict[str, str], list[str]]:
        """The environment file of each host, and the names of Alloy's configuration files."""
        settings = {name: host.ssh("cat /etc/gpu-fleet/gpu-fleet.env").stdout for name, host in self._site.hosts.items()}
        names = next(iter(self._site.hosts.values())).ssh("ls /etc/gpu-fleet/alloy").stdout.split()
        return settings, names


class _Ansible:
    def __init__(self, home: Path, site: Site, got: tuple[dict[str, str], list[str]]):
        settings, alloy_files = got
        self._rootfs = home / "rootfs"
        subprocess.run(["cp", "-a", REPO / _ROOTFS, self._rootfs], check=True)
        modules = self._rootfs / "opt/gpu-fleet/lib/python"
        shutil.copytree(ON_HOST, modules / ON_HOST.name, ignore=shutil.ignore_patterns("__pycache__", "converge", "pull"))
        (modules / ON_HOST.name / "__main__.py").rename(modules / "__main__.py")
        with tarfile.open(home / "scripts.tar", "w") as tar:
            for name in ("opt/gpu-fleet/libexec", "opt/gpu-fleet/lib/python"):
                tar.add(self._rootfs / name, name)
        (home / "settings").mkdir()
        for name, text in settings.items():
            (home / "settings" / f"{name}.env").write_text(text)
        sums = (line.split() for line in (home / "artifacts" / "SHA256SUMS").read_text().splitlines())
        programs = {name.rpartition("-")[0]: str(home / "artifacts" / digest) for digest, name in sums}
        common = {
            "ansible_user": "ops",
            "ansible_ssh_private_key_file": str(site.key_file),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={site.known_hosts_file} -o StrictHostKeyChecking=yes",
            "rootfs": str(self._rootfs),
            "scripts": str(home / "scripts.tar"),
            "settings": str(home / "settings"),
            "programs": {name: next(path for key, path in programs.items() if key.startswith(name)) for name in PROGRAMS},
            "alloy_files": alloy_files,
            "expected_gpus": 8,
        }
        hosts = {name: {"ansible_host": host.address} for name, host in site.hosts.items()}
        self._inventory = home / "inventory.json"
        self._inventory.write_text(json.dumps({"all": {"hosts": hosts, "vars": common}}))
        self._program = _ansible_playbook()
        self._home = home

    def run(self) -> float:
        process = subprocess.Popen(
            [self._program, "-i", self._inventory, "playbook.yml"],
            cwd=PLAYBOOK,
            env={**os.environ, "ANSIBLE_HOME": str(self._home / "ansible"), "ANSIBLE_CONFIG": str(PLAYBOOK / "ansible.cfg")},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return _finished("ansible-playbook", process)

    def change_a_file(self) -> None:
        _append_comment(self._rootfs / _CHANGED_FILE)


class _DiscardingHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


@contextmanager
def sink() -> Iterator[int]:
    """Accepts the agents' pushes on a loopback port: an agent that cannot send its data stops slowly."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _DiscardingHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def _append_comment(file: Path) -> None:
    file.write_text(file.read_text() + f"// {time.time()}\n")


def _ansible_playbook() -> Path:
    """ansible-core of requirements.txt, installed once into the cache."""
    locked = PLAYBOOK / "requirements.txt"
    directory = Cache().root / "bench" / f"ansible-{hashlib.sha256(locked.read_bytes()).hexdigest()[:12]}"
    if not (directory / "installed").exists():
        print("Installing ansible-core for the comparison ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        pip = [
            str(directory / "bin/python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--require-hashes",
        ]
        subprocess.run([*pip, "-r", str(locked)], check=True)
        (directory / "installed").touch()
    return directory / "bin" / "ansible-playbook"
