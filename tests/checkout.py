"""A copy of the checkout for tests that run pulumi in it: what pulumi writes beside Pulumi.yaml belongs in no real checkout."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]


def copy_to(directory: Path) -> None:
    """Every file that git has or would take, and the same virtual environment."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=REPO, capture_output=True, check=True).stdout.decode()
    for name in filter(None, files.split("\0")):
        if (REPO / name).is_file():
            with contextlib.suppress(FileNotFoundError):  # what git would take may be a temporary file that is gone by now
                copy_file(name, directory)
    (directory / ".venv").symlink_to(REPO / ".venv")


def copy_file(name: str, directory: Path) -> None:
    """`name`: its path in the checkout."""
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(REPO / name, directory / name)
