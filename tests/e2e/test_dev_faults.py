"""What can go wrong around `make dev`: a clear message, and the next run converges. One datacenter suffers it all."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.conftest import Datacenter, interrupt
from tests.waiting import eventually


@pytest.fixture(scope="module")
def suffering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Datacenter]:
    """A copy in which nothing runs yet. Each test starts from what the one before it left, and at the end nothing may be left."""
    made = Datacenter(tmp_path_factory.mktemp("suffering"))
    yield made
    made.run("lab.dev", "down")
    made.has_ended()


def test_down_removes_what_an_interrupted_run_left(suffering: Datacenter) -> None:
    process = suffering.start("lab.dev", "up")
    eventually("the host's agent is placed", lambda: (suffering.host / "etc/gpu-fleet/alloy").exists(), within_s=600)
    interrupt(process)
    suffering.run("lab.dev", "down")
    assert not (suffering.directory / ".dev").exists()
    suffering.has_ended()


def test_a_taken_port_is_named(suffering: Datacenter) -> None:
    stack = yaml.safe_load((suffering.directory / "Pulumi.dev.yaml").read_text())
    port = stack["config"]["gpu-fleet:backend"]["loki"]["port"]
    with socket.create_server(("127.0.0.1", port)):
        output = suffering.run("lab.dev", "up", ok=False)
    assert f"127.0.0.1:{port}" in output, output
    assert "another program already listens" in output, output
    assert "gpu-fleet:backend" in output, "the message says where the port is set"
    assert "Traceback" not in output, output


def test_a_second_run_names_the_one_already_running_and_ctrl_c_ends_the_first(suffering: Datacenter) -> None:
    lock = suffering.directory / ".dev/lock"
    first = suffering.start("lab.dev", "up")
    eventually("the first holds the lock", lambda: lock.exists() and str(first.pid) in lock.read_text(), within_s=600)
    output = suffering.run("lab.dev", "up", ok=False)
    assert f"pid {first.pid}" in output, output

    services = [suffering.directory / f".dev/backend/{name}/pid" for name in ("mimir", "loki")]
    eventually("Mimir and Loki start", lambda: all(pid.exists() for pid in services), within_s=600)
    assert first.poll() is None, "the engine is in the middle of its resources: the host and the dashboards follow later"
    output = interrupt(first)
    assert first.returncode == 130, output
    assert "Traceback" not in output, output


def test_after_all_that_the_next_run_converges_and_a_killed_process_is_started_again(suffering: Datacenter) -> None:
    os.kill(int((suffering.directory / ".dev/backend/mimir/pid").read_text().split()[0]), signal.SIGKILL)
    output = suffering.run("lab.dev", "up")
    assert "mimir is not running: restarting it" in output, output
    assert re.search(r"The dev datacenter is up", output), output
