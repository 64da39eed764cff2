"""A copy of the checkout for tests that run pulumi in it: what pulumi writes beside Pulumi.yaml belongs in no real checkout."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
# Those of the project; a contributor or a fork may have others beside Pulumi.yaml.
EXAMPLES = sorted(REPO.glob("examples/**/Pulumi.*.yaml"))
STACK_FILES = [REPO / "Pulumi.dev.yaml", *EXAMPLES]


def stack_of(file: Path) -> str:
    return file.name.removeprefix("Pulumi.").removesuffix(".yaml")


def copy_to(directory: Path) -> None:
    """Every file that git has or would take, but a contributor's own stack files, and the same virtual environment."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=REPO, capture_output=True, check=True).stdout.decode()
    for name in filter(None, files.split("\0")):
        is_somebodys = re.fullmatch(r"Pulumi\.(?!dev\.).+\.yaml", name)
        if (REPO / name).is_file() and not is_somebodys:
            with contextlib.suppress(FileNotFoundError):  # what git would take may be a temporary file that is gone by now
                copy_file(name, directory)
    (directory / ".venv").symlink_to(REPO / ".venv")


def copy_file(name: str, directory: Path) -> None:
    """`name`: its path in the checkout."""
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(REPO / name, directory / name)
