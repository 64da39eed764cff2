"""A PULUMI_HOME in the cache: where Pulumi finds the plugins and the language host that the toolchain chose.

On the PATH they would be found too, but Pulumi then warns about each of them on every run. These are two-line programs that
become the real one, so that nothing is copied.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpu_fleet.toolchain.cache import Cache

USERS: Final = "GPU_FLEET_USERS_PULUMI_HOME"  # a PULUMI_HOME of the user's own, which ours takes the place of


def directory(cache: Cache) -> Path:
    """Not `pulumi`, its name until November 2026: there the same plugins may be the lab's stand-ins."""
    return cache.root / "pulumi-home"


def environment(cache: Cache) -> dict[str, str]:
    """The variables that make Pulumi use it, and keep the login of a person who has one in Pulumi's usual directory."""
    home = os.environ.get("PULUMI_HOME", "")
    usual = os.environ.get("PULUMI_CREDENTIALS_PATH") or home or str(Path.home() / ".pulumi")
    users = os.environ.get(USERS, "" if Path(home).is_relative_to(cache.root) else home)
    return {
        **({USERS: users} if users else {}),
        "PULUMI_HOME": str(directory(cache)),
        **({"PULUMI_CREDENTIALS_PATH": usual} if Path(usual).is_dir() else {}),
        # What is missing is installed by `install`, verified, and never by Pulumi itself.
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        # Without it Pulumi offers its assistant below every run that reported anything, such as what changes on a dashboard.
        "PULUMI_SUPPRESS_NEO_LINK": "true",
    }


def offer(cache: Cache, plugins: Mapping[str, Path]) -> None:
    """Makes each of `plugins` (name of its directory, e.g. `resource-command-v1.2.1`, to its executable) Pulumi's choice."""
    place(directory(cache), {name: (path.name, shlex.quote(str(path))) for name, path in plugins.items()})


def place(home: Path, plugins: Mapping[str, tuple[str, str]]) -> None:
    """Writes programs into a PULUMI_HOME: directory of a plugin -> name of its program, and what that becomes, as shell text."""
    for directory_name, (program, target) in plugins.items():
        path, text = home / "plugins" / directory_name / program, f'#!/bin/sh\nexec {target} "$@"\n'
        if path.is_file() and path.read_text() == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{program}.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.rename(path)  # at once: another run may be starting it
