"""What the stacks of a commit would register: components/registered.py, run on a checkout of that commit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.stack import project
from gpu_fleet.policy.checks import Grouped, findings
from gpu_fleet.stackfile.config import ROOT

_REGISTERED = ROOT / "components/registered.py"
_PROCESSES = os.cpu_count() or 1
_PREFIX, _SUFFIX = "Pulumi.", ".yaml"


@dataclass(frozen=True, kw_only=True)
class Resource:
    type: str
    name: str
    inputs: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One stack at one commit. `error`: why the program ended early; `resources` are then those registered before.
    `environments`: of Pulumi ESC, whose values are missing; the program may have ended early because of that."""

    resources: tuple[Resource, ...] = ()
    outputs: Mapping[str, Any]
    config: Mapping[str, Any]  # without the secret keys
    secrets: Mapping[str, str] = field(default_factory=dict)  # components/registered.py
    warnings: tuple[str, ...] = ()
    error: str | None = None
    environments: str | None = None

    def of_type(self, *types: str) -> dict[str, Resource]:
        """By name."""
        return {one.name: one for one in self.resources if one.type in types}

    @cached_property
    def findings(self) -> Grouped:
        """Of policies (docs/policies.md)."""
        return findings((one.type, one.name, one.inputs) for one in self.resources)


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """The commit's files in a directory of their own: of this checkout, or of the user's directory of stack files, whose program
    is this checkout's at both commits. Raises OperationError."""
    with tempfile.TemporaryDirectory(prefix="gpu-fleet-base-") as directory:
        if _is_new(commit):
            yield Path(directory)
            return
        archive = subprocess.run(["git", "archive", commit], cwd=project(), capture_output=True, check=False)
        if archive.returncode != 0:
            reason = archive.stderr.decode(errors="replace").strip()
            raise OperationError(
                f"the base commit cannot be read: {reason}\nGive a branch or commit that this clone has: make pr-report "
                "BASE=origin/main. A shallow clone gets it by `git fetch --depth 1 origin main`."
            )
        subprocess.run(["tar", "-x", "-C", directory], input=archive.stdout, check=True)
        yield Path(directory)


def _is_new(commit: str) -> bool:
    """Whether the stack files' directory, below the root of its repository, is not in the commit."""

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *arguments], cwd=project(), capture_output=True, text=True, check=False)

    prefix = git("rev-parse", "--show-prefix").stdout.strip()
    is_readable = git("cat-file", "-e", f"{commit}^{{tree}}").returncode == 0
    return bool(prefix) and is_readable and git("cat-file", "-e", f"{commit}:{prefix}").returncode != 0


def changed_files(commit: str) -> list[str]:
    """Of this checkout, compared with the commit: relative paths, new ones too."""
    found = []
    for command in (["diff", "--name-only", "--relative", commit], ["ls-files", "--others", "--exclude-standard"]):
        done = subprocess.run(["git", *command], cwd=project(), capture_output=True, text=True, check=False)
        found += done.stdout.splitlines()
    return sorted({*found})


def stack_files_in(directory: Path) -> dict[str, str]:
    """Stack -> its file, relative to the directory; the examples where this checkout has no other. `dev` is left out: it is the
    lab on the machine of whoever runs it."""
    for pattern in (f"{_PREFIX}*{_SUFFIX}", f"examples/**/{_PREFIX}*{_SUFFIX}"):
        files = {file.name.removeprefix(_PREFIX).removesuffix(_SUFFIX): file for file in sorted(directory.glob(pattern))}
        if found := {stack: str(file.relative_to(directory)) for stack, file in files.items() if stack != "dev"}:
            return found
    return {}


def pictures(directory: Path, stacks: Mapping[str, str] | None = None) -> dict[str, Picture]:
    """By stack. `directory`: a checkout, of any commit. `stacks`: their files; default: all but `dev`. Raises OperationError."""
    stacks = stack_files_in(directory) if stacks is None else stacks
    files = list(stacks.values())
    shares = [share for start in range(_PROCESSES) if (share := files[start::_PROCESSES])]

    def take(share: Sequence[str]) -> str:
        command = [sys.executable, str(_REGISTERED), str(directory), *share]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        if done.returncode != 0 or len(done.stdout.splitlines()) != len(share):
            raise OperationError(f"the program of {directory} could not be run for {', '.join(share)}:\n{done.stderr.strip()}")
        return done.stdout

    with ThreadPoolExecutor() as pool:
        lines = "".join(pool.map(take, shares)).splitlines()
    taken = {found["file"]: _picture(found) for found in map(json.loads, lines)}
    return {stack: taken[file] for stack, file in stacks.items()}


def _picture(found: Mapping[str, Any]) -> Picture:
    return Picture(
        resources=tuple(Resource(type=one["type"], name=one["name"], inputs=one["inputs"]) for one in found["resources"]),
        outputs=found["outputs"],
        config=found["config"],
        secrets=found["secrets"],
        warnings=tuple(found["warnings"]),
        error=found["error"],
        environments=found["environments"],
    )
