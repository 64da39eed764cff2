"""A site with a key, and a host that is to be installed from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.hosts import SimulatedHost
from tests.host.pull.pulled import PulledHost, Site, make_key


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(directory=tmp_path / "site", key=make_key(tmp_path / "key"), rootfs=tmp_path / "rootfs")
    site.directory.mkdir()
    server = site.serve()
    yield site
    server.shutdown()
    server.server_close()


@pytest.fixture
def pulled(tmp_path: Path, site: Site) -> Iterator[PulledHost]:
    """Its path has a space, since somebody's will."""
    host = SimulatedHost.below(tmp_path, "a host")
    yield PulledHost(simulated=host, site=site)
    host.stop()
