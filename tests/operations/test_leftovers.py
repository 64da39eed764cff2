"""Plugins of an engine that was killed: ended where they are of this stack and have no engine, and never what they started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_fleet.operations import leftovers
from gpu_fleet.operations.leftovers import end_leftovers


class Run:
    """An engine with a plugin, which heeds no SIGTERM and has started a server."""

    def __init__(self, directory: Path, stack: str) -> None:
        self._written = directory / "plugin.pid", directory / "server.pid"
        scripts = {
            "pulumi": f'"{directory}/pulumi-resource-test" 127.0.0.1:1 & wait',
            "pulumi-resource-test": f'trap "" TERM\n"{directory}/server" & echo $$ >{self._written[0]}\nwait\nwait',
            "server": f"echo $$ >{self._written[1]}\nwhile :; do sleep 0.2; done",
        }
        for name, text in scripts.items():
            (directory / name).write_text(f"#!/bin/sh\n{text}\n")
            (directory / name).chmod(0o755)
        environment = {**os.environ, **leftovers.variables(stack)}
        self.engine = subprocess.Popen([directory / "pulumi"], env=environment, start_new_session=True)
        deadline = time.monotonic() + 60
        while not all(file.exists() and file.read_text().strip() for file in self._written):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self.plugin, self.server = (int(file.read_text()) for file in self._written)

    def close(self) -> None:
        os.killpg(self.engine.pid, signal.SIGKILL)
        self.engine.wait()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(leftovers, "_ENDS_S", 0.5)
    run = Run(tmp_path, "ours")
    yield run
    run.close()


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_plugin_ends_only_after_its_engine(run: Run) -> None:
    assert end_leftovers("ours") == 0 and runs(run.plugin), "its run goes on"
    run.engine.kill()
    run.engine.wait()
    assert end_leftovers("another") == 0 and runs(run.plugin)
    assert end_leftovers("organization/gpu-fleet/ours") == 1
    deadline = time.monotonic() + 60
    while runs(run.plugin):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert runs(run.server), "the servers of an embedded backend are to run on"


def test_a_run_in_another_directory_is_not_of_this_stack(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run.engine.kill()
    run.engine.wait()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert end_leftovers("ours") == 0 and runs(run.plugin)
