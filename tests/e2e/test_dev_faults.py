"""What can go wrong around `make dev`: a clear message, and the next run converges."""

from __future__ import annotations

import os
import re
import signal
import socket
import time

import yaml

from tests.e2e.conftest import Datacenter, eventually, interrupt


def test_a_taken_port_is_named_and_the_next_run_converges(fresh: Datacenter) -> None:
    stack = yaml.safe_load((fresh.directory / "Pulumi.dev.yaml").read_text())
    port = stack["config"]["gpu-fleet:backend"]["loki"]["port"]
    with socket.create_server(("127.0.0.1", port)):
        output = fresh.run("lab.dev", "up", ok=False)
    assert f"127.0.0.1:{port}" in output, output
    assert "another program already listens" in output, output
    assert "gpu-fleet:backend" in output, "the message says where the port is set"
    assert "Traceback" not in output, output

    fresh.run("lab.dev", "up")


def test_a_second_run_beside_a_running_one_is_told_who_runs(fresh: Datacenter) -> None:
    first = fresh.start("lab.dev", "up")
    lock = fresh.directory / ".dev/lock"
    eventually("the first holds the lock", lambda: lock.exists() and lock.read_text() != "")
    output = fresh.run("lab.dev", "up", ok=False)
    assert f"pid {first.pid}" in output, output
    interrupt(first)


def test_ctrl_c_in_the_middle_leaves_nothing_that_the_next_run_cannot_finish(fresh: Datacenter) -> None:
    process = fresh.start("lab.dev", "up")
    eventually("the backend starts", lambda: (fresh.directory / ".dev/backend/mimir/pid").exists())
    time.sleep(2)  # the engine is in the middle of its resources
    output = interrupt(process)
    assert process.returncode == 130, output
    assert "Traceback" not in output, output

    output = fresh.run("lab.dev", "up")
    assert re.search(r"The dev datacenter is up", output), output
    fresh.pulumi("up", "--yes", "--skip-preview", "--expect-no-changes")


def test_down_removes_what_an_interrupted_run_left(fresh: Datacenter) -> None:
    process = fresh.start("lab.dev", "up")
    eventually("the host's agent is placed", lambda: (fresh.host / "etc/gpu-fleet/alloy").exists(), within_s=90)
    interrupt(process)
    fresh.run("lab.dev", "down")
    assert not (fresh.directory / ".dev").exists()
    assert fresh.processes() == []


def test_backend_processes_that_died_are_started_again_by_the_next_run(datacenter: Datacenter) -> None:
    pid = int((datacenter.directory / ".dev/backend/mimir/pid").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    output = datacenter.run("lab.dev", "up")
    assert "mimir is not running: starting it again" in output, output
