"""Every shell script of the project is read by shellcheck, the tool made for that."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
ROOMS = ("components", "gpu_fleet", "lab", ".ci")


def _scripts() -> list[Path]:
    found = []
    for room in ROOMS:
        for path in sorted((REPOSITORY / room).rglob("*")):
            if not path.is_file() or path.suffix in (".py", ".md") or "node_modules" in path.parts:
                continue
            with path.open("rb") as file:
                first_line = file.readline(80)
            if first_line.startswith(b"#!") and b"sh" in first_line.split(b"/")[-1]:
                found.append(path)
    return found


@pytest.mark.parametrize("script", _scripts(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_shellcheck_finds_nothing(script: Path) -> None:
    shellcheck = shutil.which("shellcheck")
    assert shellcheck, "shellcheck is not on the PATH: install the package of this name (apt-get install shellcheck)"
    # -x -a: the files it sources are read with it and held to the same.
    run = subprocess.run([shellcheck, "-x", "-a", "-P", "SCRIPTDIR", str(script)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
