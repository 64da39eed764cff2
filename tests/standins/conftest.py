from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.standins import programs
from tests.checkout import REPO
from tests.standins.project import Project


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """On stand-ins, also where the official plugins are installed: Pulumi finds them on the PATH, and no others."""
    project = Project(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    programs.keep_no_logs(home)
    path = os.pathsep.join([str(REPO / "lab/standins/bin"), project.environment["PATH"]])
    project.environment |= {"PATH": path, "PULUMI_HOME": str(home)}
    yield project.create()
