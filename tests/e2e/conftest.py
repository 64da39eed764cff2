"""A dev datacenter of its own for the tests: a copy of the checkout on free ports, so that nobody's `make dev` is disturbed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.dev import query
from lab.ports import free_ports
from tests.checkout import copy_to
from tests.waiting import eventually


class Datacenter:
    """A copy of the checkout with the stack file's ports moved; runs the commands that a person runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        copy_to(directory)
        self.move_ports()

    def move_ports(self) -> None:
        file = self.directory / "Pulumi.dev.yaml"
        text = file.read_text()
        used = ["9009", "9095", "3100", "9096", "9094", "3000"]
        moved = dict(zip(used, free_ports(len(used)), strict=True))
        # In one pass: a new port may begin with the digits of an old one.
        stack = yaml.safe_load(re.sub(rf"(:|ort: )({'|'.join(used)})\b", lambda match: f"{match[1]}{moved[match[2]]}", text))
        ports = free_ports(3)
        host = stack["config"]["gpu-fleet:hosts"]["dev-gpu-host"]
        host["ports"] = dict(zip(("gpuExporter", "nodeExporter", "alloy"), ports, strict=True))
        file.write_text(yaml.safe_dump(stack, sort_keys=False))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.directory / ".venv/bin/python"), "-m", *arguments],
            cwd=self.directory,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, *arguments: str, ok: bool = True) -> str:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=1200)
        if ok:
            assert process.returncode == 0, f"{' '.join(arguments)} exited {process.returncode}:\n{output}"
        else:
            assert process.returncode != 0, f"{' '.join(arguments)} should have failed:\n{output}"
        return output

    def pulumi(self, *arguments: str, ok: bool = True) -> str:
        """`pulumi` as a person runs it after `. .dev/env`."""
        done = subprocess.run(
            ["sh", "-c", '. .dev/env && exec pulumi --non-interactive "$@"', "sh", *arguments],
            cwd=self.directory,
            text=True,
            capture_output=True,
            timeout=1200,
            check=False,
        )
        output = done.stdout + done.stderr
        assert (done.returncode == 0) == ok, f"pulumi {' '.join(arguments)} exited {done.returncode}:\n{output}"
        return output

    def make(self, target: str, *more: str) -> str:
        """What a make target does with the stack, as a person runs it after `. .dev/env`, with `more` arguments at its end."""
        dry = ["make", "--dry-run", "--no-print-directory", target, "STACK=dev"]
        *_, command = subprocess.run(dry, cwd=self.directory, capture_output=True, text=True, check=True).stdout.splitlines()
        done = subprocess.run(
            ["sh", "-c", f". .dev/env && {command} {' '.join(more)}"],
            cwd=self.directory,
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    @property
    def endpoints(self) -> dict[str, str]:
        text = (self.directory / ".dev/endpoints.env").read_text()
        return dict(line.split("=", 1) for line in text.splitlines())

    @property
    def host(self) -> Path:
        return self.directory / ".dev/host"

    @property
    def state(self) -> Path:
        """The file that pulumi keeps, of which `stack export` prints the last part."""
        return self.directory / ".dev/state/.pulumi/stacks/gpu-fleet/dev.json"

    def metrics(self, promql: str) -> list[dict[str, Any]]:
        return query.metrics(self.endpoints["MIMIR_URL"], promql)

    def processes(self) -> list[str]:
        """Command lines of the processes that belong to this copy."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                text = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
                if str(self.directory).encode() in text and int(process.name) != os.getpid():
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found

    def has_ended(self) -> None:
        """No process of this copy runs, but for those that are ending."""
        eventually("the end of all processes", lambda: not self.processes(), shown=self.processes)


@pytest.fixture(scope="module")
def preview(datacenter: Datacenter) -> str:
    """What `make preview STACK=dev` prints of the running datacenter, without its set-up."""
    return datacenter.make("preview")


def interrupt(process: subprocess.Popen[str]) -> str:
    """Ctrl-C in a terminal: SIGINT to the whole foreground group."""
    os.killpg(process.pid, signal.SIGINT)
    return process.communicate(timeout=600)[0]


@pytest.fixture(scope="module")
def datacenter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Datacenter]:
    """A running one, shared by the tests of a file; each leaves it as it found it."""
    made = Datacenter(tmp_path_factory.mktemp("datacenter"))
    try:
        made.run("lab.dev", "up")
        yield made
    finally:
        made.run("lab.dev", "down")
    made.has_ended()
