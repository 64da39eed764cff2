"""A showcase for the tests of each file that needs real data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.showcase import Showcase


@pytest.fixture(scope="module")
def showcase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Showcase]:
    with Showcase(tmp_path_factory.mktemp("showcase")) as running:
        yield running
