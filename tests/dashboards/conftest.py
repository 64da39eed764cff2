"""One showcase for all tests that need real data: its making takes most of the time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.showcase import Showcase


@pytest.fixture(scope="session")
def showcase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Showcase]:
    with Showcase(tmp_path_factory.mktemp("showcase")) as running:
        yield running
