from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standins.project import Project


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    yield Project(tmp_path).create()
