"""A program that stays instead of being started every few seconds."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_fleet.on_host import loop
from tests.waiting import eventually

PROGRAM = """
import sys
from pathlib import Path
from . import loop

def main(arguments):
    def once():
        if (Path(arguments[0]) / "hang").exists():
            import time
            time.sleep(1000)
        with (Path(arguments[0]) / "passes").open("a") as file:
            file.write("VERSION\\n")
    loop.LONGEST_S = 2
    loop.every(0.1, once, ["counter", arguments[0]], lambda: False)
"""


class Running:
    def __init__(self, directory: Path) -> None:
        self.code = directory / "lib/on_host"
        self.code.mkdir(parents=True)
        source = Path(loop.__file__).parent
        (directory / "lib/__main__.py").write_text((source / "__main__.py").read_text())
        for name in ("__init__.py", "loop.py"):
            (self.code / name).write_text((source / name).read_text())
        self.write("one")
        self.state = directory / "state"
        self.state.mkdir()
        command = [sys.executable, "-I", "-S", "-B", str(directory / "lib"), "counter", str(self.state)]
        self.process = subprocess.Popen(command, stderr=(directory / "said").open("w"))
        self._said = directory / "said"

    def write(self, version: str) -> None:
        new = self.code / "counter.new"
        new.write_text(PROGRAM.replace("VERSION", version))
        new.replace(self.code / "counter.py")

    def passes(self, version: str) -> int:
        file = self.state / "passes"
        return file.read_text().split().count(version) if file.exists() else 0

    def said(self) -> str:
        return self._said.read_text()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    try:
        eventually("the first passes", lambda: running.passes("one") > 0)
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def test_code_that_was_replaced_is_what_runs_next_in_the_same_process(running: Running) -> None:
    running.write("two")
    eventually("passes of the second", lambda: running.passes("two") > 1)
    assert running.process.poll() is None, "the service manager need not start it again"


def test_a_directory_that_is_missing_is_said_once_and_ends_nothing(running: Running) -> None:
    away = running.state.rename(running.state.with_name("away"))
    eventually("the error", lambda: "counter: [Errno 2]" in running.said())
    time.sleep(2.5)  # two more passes
    assert running.said().count("\n") == 1
    before = (away / "passes").read_text()
    away.rename(running.state)
    eventually("the next pass", lambda: (running.state / "passes").read_text() != before)


def test_a_pass_that_hangs_is_ended_for_the_service_manager_to_start_it_again(running: Running) -> None:
    (running.state / "hang").touch()
    assert running.process.wait(30) == -signal.SIGALRM
