"""A directory of the user's own for stack files, so that an update of this project is one `git pull` in its checkout.

It is a Pulumi project: Pulumi.yaml names the checkout's virtual environment and provider, and __main__.py runs the checkout's
program. Plain `pulumi` therefore works in it. The program and every plugin run in it, and relative paths of a stack file start
there: with `main: ../gpu-fleet` they would start in the checkout (pulumi 3.259.0, pkg/engine/project.go, getPwdMain, 2026-11-22).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
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

_WORKFLOW: Final = ".github/workflows/gpu-fleet.yml"
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
        if workflow := _workflow(directory.resolve()):
            file, text = workflow
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            yield f"wrote {file}"
    except OSError as error:
        raise OperationError(f"STACKS: cannot write to {directory}: {error.strerror}") from None


def _workflow(directory: Path) -> tuple[Path, str] | None:
    """The checkout's report.yml, for pull requests of the repository that has the directory or will have it as its root.
    None where that has one or is the checkout, and where nothing says from where GitHub could clone the checkout."""
    top, checkout = Path(_git(directory, "rev-parse", "--show-toplevel") or directory), ROOT.resolve()
    file = top / _WORKFLOW
    is_submodule = _git(checkout, "rev-parse", "--show-superproject-working-tree") == str(top)
    url = _without_login(_git(checkout, "remote", "get-url", "origin"))
    if file.exists() or top == checkout or not (is_submodule or url):
        return None
    values = {"STACK_FILES": os.path.relpath(directory, top), "CHECKOUT": os.path.relpath(checkout, top)}
    if not is_submodule:
        values |= {"CHECKOUT_URL": url, "CHECKOUT_COMMIT": _git(checkout, "rev-parse", "HEAD")}
    text = (ROOT / ".github/workflows/report.yml").read_text()
    for name, value in values.items():
        before, after = re.split(rf"(?m)^  {name}: .*$", text)
        text = f"{before}  {name}: {json.dumps(value)}{after}"
    return file, text


def _git(directory: Path, *arguments: str) -> str:
    """What git prints; empty where it fails or is missing."""
    try:
        done = subprocess.run(["git", *arguments], cwd=directory, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _without_login(url: str) -> str:
    """A runner has no SSH key, and a token in the URL is a secret: git@github.com:o/r.git -> https://github.com/o/r.git"""
    url = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", url)
    return re.sub(r"^(https?://)[^/@]*@", r"\1", url)


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
