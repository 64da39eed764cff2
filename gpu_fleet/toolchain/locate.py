"""Where an installed program is. Only looks: an error for a missing one says how to install it."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from functools import cache as memoized
from pathlib import Path

from gpu_fleet.toolchain import pulumi_home
from gpu_fleet.toolchain.cache import Cache, How
from gpu_fleet.toolchain.errors import NotInstalled
from gpu_fleet.toolchain.programs import PROGRAMS, REPO, Program

VERSION_S = 10  # for a program to print its version: a big one on a cold disk takes 3 s


@dataclass(frozen=True)
class Located:
    path: Path
    how: How


def located(name: str, cache: Cache | None = None) -> Located | None:
    """The program and its source; None when it is not installed. Raises NotInstalled for an unknown name."""
    program = PROGRAMS.get(name)
    if program is None:
        raise NotInstalled(f"Unknown program {name!r}. Known: {', '.join(PROGRAMS)}.")
    return installed(program, cache or Cache())


def installed(program: Program, cache: Cache) -> Located | None:
    """The same for a program that need not be in PROGRAMS."""
    record = cache.record(program.name, program.release.version)
    is_other_version = record is not None and record.how == "go" and program.go is not None and bool(program.go.version)
    if (record is None or is_other_version) and (path := on_path(program)):
        return Located(path, "path")
    if record is None:
        return None
    path = cache.directory(program.name, program.release.version) / record.program
    return Located(path, record.how) if path.is_file() else None


def find(name: str) -> Path:
    """The executable of a program. Raises NotInstalled, with the command that installs it."""
    if (found := located(name)) is None:
        raise NotInstalled(
            f"{PROGRAMS[name].title} is not installed: run `.venv/bin/python -m gpu_fleet.toolchain install {name}`."
        )
    return found.path


def environment() -> dict[str, str]:
    """The variables by which every installed program is found: by its name, and by Pulumi as its plugin."""
    cache = Cache()
    chosen = [found for program in PROGRAMS.values() if not program.plugin and (found := installed(program, cache))]
    inherited = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return {
        "PATH": os.pathsep.join(dict.fromkeys([*(str(found.path.parent) for found in chosen), *inherited])),
        **pulumi_home.environment(cache),
    }


def on_path(program: Program) -> Path | None:
    """The program on the PATH, or among Pulumi's own plugins, if it is of the right version and not one of ours."""
    if program.name.startswith("pulumi-resource-"):
        # A plugin cannot print its version, but Pulumi installs it in a directory named after it.
        named = filter(None, map(os.environ.get, (pulumi_home.USERS, "PULUMI_HOME")))
        homes: list[str | Path] = [*named, Path.home() / ".pulumi"]
        candidates = [Path(home) / "plugins" / program.plugin / program.name for home in homes]
        return next((path for path in candidates if os.access(path, os.X_OK) and not _is_ours(path)), None)
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = Path(directory or ".") / program.name
        # os.access first: in a directory that we cannot read, is_file raises.
        if os.access(path, os.X_OK) and path.is_file() and not _is_ours(path) and _is_right(program, path):
            return path.absolute()
    return None


def _is_ours(path: Path) -> bool:
    """The cache's programs are known by their record; nothing of a checkout is ever the program. Both may be on the PATH."""
    resolved, cache = path.resolve(), Cache()
    return any(resolved.is_relative_to(place.resolve()) for place in (REPO, cache.root, cache.tools))


def _is_right(program: Program, path: Path) -> bool:
    if program.beside:
        beside = PROGRAMS[program.beside]
        return _prints_version(path.resolve().with_name(beside.name), beside.version_args, program.release.version)
    return bool(program.version_args) and _prints_version(path, program.version_args, program.release.version)


def _prints_version(path: Path, args: tuple[str, ...], version: str) -> bool:
    try:
        return _printed_version(path, args, path.stat().st_mtime_ns) == version
    except (OSError, subprocess.TimeoutExpired):
        return False


@memoized
def _printed_version(path: Path, args: tuple[str, ...], mtime_ns: int) -> str:
    """The first version in what the program prints; run once per process, unless the file changes (`mtime_ns`)."""
    done = subprocess.run([path, *args], capture_output=True, text=True, timeout=VERSION_S, check=False)
    printed = re.search(r"\d+\.\d+\.\d+", done.stdout + done.stderr)
    return printed[0] if printed else ""
