"""A copy of the checkout for tests that run pulumi in it: what pulumi writes beside Pulumi.yaml belongs in no real checkout."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
# The last commit before every module moved to another directory, from which tests/test_history.py upgrades a stack. A later one
# may take its place once a release breaks with it.
BASE = "0ce8b7ba825f9f64e7d7b4c66035bfffed75fbf2"


def copy_to(directory: Path) -> None:
    """Every file that git has or would take, and the same virtual environment. Bytecode comes along, valid as files keep their
    times: to compile the rooms takes a second of every copy's first run."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=REPO, capture_output=True, check=True).stdout.decode()
    for name in filter(None, files.split("\0")):
        if (REPO / name).is_file():
            with contextlib.suppress(FileNotFoundError):  # what git would take may be a temporary file that is gone by now
                copy_file(name, directory)
    (directory / ".venv").symlink_to(REPO / ".venv")


def copy_file(name: str, directory: Path) -> None:
    """One file, with its bytecode. `name`: its path in the checkout."""
    source, to = REPO / name, directory / name
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, to)
    compiled = Path(importlib.util.cache_from_source(name))
    if name.endswith(".py") and (REPO / compiled).is_file():
        (directory / compiled).parent.mkdir(exist_ok=True)
        shutil.copy2(REPO / compiled, directory / compiled)
