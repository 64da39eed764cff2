"""A directory of the user's own for stack files, so that an update of this project is one `git pull` in its checkout.

It is a Pulumi project: Pulumi.yaml names the checkout's virtual environment and provider, and __main__.py runs the checkout's
program. Plain `pulumi` therefore works in it. The program and every plugin run in it, and relative paths of a stack file start
there: with `main: ../gpu-fleet` they would start in the checkout (pulumi 3.259.0, pkg/engine/project.go, getPwdMain, 2026-11-22).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from gpu_fleet.operations.engine import OperationError
from gpu_fleet.stackfile.config import ROOT
from gpu_fleet.stackfile.naming import PROJECT

_MAIN: Final = '''"""Runs GPU Fleet, from the checkout whose virtual environment Pulumi.yaml names."""

import runpy
import sys
from pathlib import Path

checkout = Path(sys.prefix).parent
sys.path.insert(0, str(checkout))
runpy.run_path(str(checkout / "__main__.py"), run_name="__main__")
'''

_MAKEFILE: Final = """# Every make target of GPU Fleet, for the stacks of this directory; `make help` lists them.
GPU_FLEET ?= {checkout}

.DEFAULT_GOAL := help
%: FORCE
\t@$(MAKE) --no-print-directory -C "$(GPU_FLEET)" $@ STACKS="$(CURDIR)"
FORCE Makefile: ;
"""


def prepare(directory: Path) -> Iterator[str]:
    """Writes the files that the directory lacks, and yields a line for each. Raises OperationError for another project."""
    if (directory / "Pulumi.yaml").exists():
        _refuse_another_project(directory / "Pulumi.yaml")
    checkout = Path(os.path.relpath(ROOT, directory))
    files = {
        "Pulumi.yaml": yaml.safe_dump(_project(checkout), sort_keys=False, width=200),
        "__main__.py": _MAIN,
        "Makefile": _MAKEFILE.format(checkout=checkout),
        ".gitignore": "build/\n__pycache__/\n",
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            if not (directory / name).exists():
                (directory / name).write_text(text)
                yield f"wrote {directory / name}"
    except OSError as error:
        raise OperationError(f"STACKS: cannot write to {directory}: {error.strerror}") from None


def _project(checkout: Path) -> dict[str, Any]:
    """The checkout's own Pulumi.yaml, as seen from another directory. `checkout`: relative to that."""
    project: dict[str, Any] = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())
    options = project["runtime"]["options"]
    options["virtualenv"] = str(checkout / options["virtualenv"])
    for provider in project["plugins"]["providers"]:
        provider["path"] = str(checkout / provider["path"])
    return project


def our_provider(file: Path) -> Mapping[str, Any] | None:
    """The entry of our provider in a Pulumi.yaml; None where it has none, or cannot be read."""
    try:
        providers = yaml.safe_load(file.read_text())["plugins"]["providers"]
        return next((provider for provider in providers if provider["name"] == PROJECT), None)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, KeyError):
        return None


def _refuse_another_project(file: Path) -> None:
    if our_provider(file) is None:
        raise OperationError(
            f"STACKS: {file} belongs to another Pulumi program: it has no provider {PROJECT} below plugins.providers.\n"
            "Give an empty directory; `make new-stack` writes a Pulumi.yaml into it."
        )
