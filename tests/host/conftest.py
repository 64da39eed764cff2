"""Hosts for the tests of the converge program, and the end of whatever they started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_fleet.host.program import host_modules
from lab.ports import free_ports
from tests.host.hosts import SCRIPTED, SimulatedHost


@pytest.fixture(autouse=True)
def _scripted_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_fleet.host.bundle.host_modules", lambda: {**host_modules(), **SCRIPTED})


@pytest.fixture
def host(tmp_path: Path) -> Iterator[SimulatedHost]:
    """Its path has a space, since somebody's will."""
    host = SimulatedHost.below(tmp_path, "a host")
    yield host
    host.stop()


@pytest.fixture
def regen(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--regen"))


@pytest.fixture
def free_port() -> int:
    [port] = free_ports(1)
    return port
