"""The real engine with our provider, which logs in to a machine over SSH: a project with one stack of one host."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import yaml

from gpu_fleet import toolchain
from gpu_fleet.operations.deploy import FLAGS, SAVED_ONCE
from lab.powercut.machine import Booted
from lab.powercut.waits import Stuck, finish, until
from lab.standins import programs

_REPO = Path(__file__).resolve().parents[2]
_STACK = "powercut"
_TRIES = 10
_STATE = f"state/.pulumi/stacks/{_STACK}/{_STACK}.json"
_VERBS = {0: ("destroy", "--yes", "--skip-preview"), 1: ("up", "--yes", "--skip-preview"), 2: ("up", "--yes", "--skip-preview")}
# The engine, too, is in the network of the machine, where only sshd listens. 0016 is its port, 01 an established connection.
_CONNECTION = ("0100007F:0016", "01")


@dataclass(frozen=True)
class Project:
    """`desired`: of each version, what program.py reads."""

    directory: Path
    desired: dict[int, Path]

    def create(self) -> Project:
        """With an empty stack."""
        (self.directory / "state").mkdir(parents=True)
        project = {
            "name": _STACK,
            "runtime": {"name": "python", "options": {"toolchain": "pip", "virtualenv": str(_REPO / ".venv")}},
            "plugins": {"providers": [{"name": "gpu-fleet", "path": str(_REPO / "gpu_fleet/provider")}]},
        }
        (self.directory / "Pulumi.yaml").write_text(yaml.safe_dump(project))
        (self.directory / "__main__.py").symlink_to(Path(__file__).with_name("program.py"))
        code, output = self._wait(self._start((), 1, "stack", "init", _STACK))
        if code != 0:
            raise RuntimeError(f"pulumi stack init exited {code}:\n{output}")
        return self

    def copy(self, directory: Path) -> Project:
        shutil.copytree(self.directory, directory, symlinks=True)
        return Project(directory, self.desired)

    def start(self, machine: Booted, version: int) -> subprocess.Popen[str]:
        """`pulumi up` of a version, with 0 `pulumi destroy`."""
        return self._start(machine.in_its_network(), version, *_VERBS[version], *FLAGS)

    def run(self, machine: Booted, version: int) -> tuple[int, str]:
        """A host that is too slow to answer on a busy machine is tried again, as people do."""
        for _ in range(_TRIES):
            code, output = self._wait(self.start(machine, version))
            if code == 0 or "unreachable: " not in output:
                break
        return code, output

    def release_lock(self) -> None:
        """As docs/when-up-fails.md has it, for a stack that a killed engine left locked; then what `make up` does first."""
        code, output = self._wait(self._start((), 1, "cancel", "--yes"))
        if code != 0:
            raise RuntimeError(f"pulumi cancel exited {code}:\n{output}")
        settle = f"from gpu_fleet.operations.interrupted import settle; settle({_STACK!r}, None)"
        command = [sys.executable, "-c", settle]
        subprocess.run(command, cwd=self.directory, env=self._environment(1), stdin=subprocess.DEVNULL, check=True)

    def hosts(self) -> list[str]:
        """Of the state: each host, and operations that are still open."""
        latest = json.loads((self.directory / _STATE).read_text())["checkpoint"].get("latest") or {}
        hosts = [each["urn"].rpartition("::")[2] for each in latest.get("resources", ()) if each["type"] == "gpu-fleet:host:Host"]
        return [*hosts, *(f"pending {each['type']}" for each in latest.get("pending_operations", ()))]

    def _start(self, prefix: tuple[str, ...], version: int, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*prefix, str(toolchain.find("pulumi")), "--non-interactive", "--color", "never", *arguments],
            cwd=self.directory,
            env=self._environment(version),
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def _environment(self, version: int) -> dict[str, str]:
        """A first apply is saved at every step, as `make up` does."""
        return {
            **os.environ,
            **programs.environment(_STACK),
            **(SAVED_ONCE if self._has_state() and self.hosts() else {}),
            "PULUMI_BACKEND_URL": f"file://{self.directory}/state",
            "PULUMI_CONFIG_PASSPHRASE": "of the lab",
            "PULUMI_STACK": _STACK,
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PYTHONPATH": str(_REPO),
            "POWERCUT_DESIRED": str(self.desired[version or 1]),
        }

    def _has_state(self) -> bool:
        return (self.directory / _STATE).exists()

    @staticmethod
    def _wait(process: subprocess.Popen[str]) -> tuple[int, str]:
        output, _ = finish(process, f"`{' '.join(map(str, process.args))}`")
        return process.returncode, output


def connections(machine: Booted) -> int:
    """Logins, or attempts, that are open now."""
    lines = Path(f"/proc/{machine.pid}/net/tcp").read_text().splitlines()[1:]
    return sum((local, state) == _CONNECTION for _, local, _, state, *_ in map(str.split, lines))


def until_connected(machine: Booted, process: subprocess.Popen[str]) -> None:
    until(lambda: process.poll() is not None or connections(machine) > 0, "for the engine to log in to the machine")


def until_disconnected(machine: Booted, process: subprocess.Popen[str]) -> None:
    until(lambda: process.poll() is not None or connections(machine) == 0, "for the engine to end its connections")


def plugin_of(engine: subprocess.Popen[str]) -> int:
    """The process of our provider, 0 when there is none."""
    return next((pid for pid, command in _children(engine.pid) if "gpu_fleet.provider.server" in command), 0)


def work_on(machine: Booted) -> str:
    """The verb that is at work on the machine, from the login to its very end; empty: none."""
    for _, command in machine.processes():
        words = command.split("\0")
        for before, verb in pairwise(words):
            if verb in ("apply", "remove") and (before == "gpu-fleet" or before.endswith(("/converge", "/converge.pyz"))):
                return verb
    return ""


def until_idle(machine: Booted) -> bool:
    """Whether the work on the machine ended."""
    try:
        until(lambda: not work_on(machine), "for the work on the machine to end")
    except Stuck:
        return False
    return True


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _children(parent: int) -> Iterator[tuple[int, str]]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((process / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                yield int(process.name), (process / "cmdline").read_text()
