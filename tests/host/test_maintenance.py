"""gpu-fleet-maintenance: what it writes for the alerts."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from gpu_fleet.host.parts.textfile import DIRECTORY, MAINTENANCE
from tests.host.parts.places import parts_of, place


@pytest.fixture
def placed(tmp_path: Path) -> Path:
    """A host's files below a prefix with a space."""
    prefix = tmp_path / "a host"
    place(parts_of({}), prefix)
    return prefix / MAINTENANCE.lstrip("/")


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", program, *arguments], capture_output=True, text=True, check=False)


def written(program: Path) -> str:
    lines = (program.parents[3] / DIRECTORY.lstrip("/") / "maintenance.prom").read_text().splitlines()
    (line,) = [line for line in lines if not line.startswith("#")]
    return line


def test_a_host_is_taken_out_of_service_and_returned(placed: Path) -> None:
    assert run(placed, "status").stdout == "in service\n"
    assert run(placed, "start", "driver 590").returncode == 0
    assert written(placed) == 'gpu_fleet_maintenance{reason="driver 590"} 1'
    assert run(placed, "status").stdout == "in maintenance: driver 590\n"
    begun = int(time.time())
    assert run(placed, "stop").returncode == 0
    name, value = written(placed).split()
    assert name == "gpu_fleet_maintenance_end_timestamp_seconds"
    assert begun <= int(value) <= time.time(), "earlier incidents are over since then"
    assert run(placed, "status").stdout == "in service\n"


def test_to_free_the_gpus_is_no_reason_and_ends_nothing_of_the_host_below_a_prefix(placed: Path) -> None:
    assert run(placed, "start", "--free-gpus", "reset").returncode == 0
    assert written(placed) == 'gpu_fleet_maintenance{reason="reset"} 1'
    assert run(placed, "start", "--free-gpus").returncode == 0
    assert run(placed, "stop").returncode == 0


def test_a_reason_that_would_break_the_metrics_of_the_host_is_refused(placed: Path) -> None:
    refused = run(placed, "start", 'a "quoted" one')
    assert (refused.returncode, "expected: letters" in refused.stderr) == (2, True)
    assert run(placed, "status").stdout == "in service\n"


def test_a_login_that_cannot_write_there_has_to_use_sudo(placed: Path) -> None:
    shutil.rmtree(placed.parents[3] / DIRECTORY.lstrip("/"))
    refused = run(placed, "stop")
    assert refused.returncode == 1
    assert "run it as root (sudo)" in refused.stderr
