"""pulumi's own directory in the cache: where it finds the plugins and the language host that the toolchain chose.

On the PATH they would be found too, but pulumi then warns of each of them on every run. What lies here are two-line programs that
become the real one, so that nothing is copied and a stand-in is always that of the checkout at work.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from toolchain.cache import Cache
from toolchain.programs import REPO

CHECKOUT = "GPU_FLEET_CHECKOUT"  # the variable that tells which checkout's stand-ins run


def directory(cache: Cache) -> Path:
    return cache.root / "pulumi"


def environment(cache: Cache) -> dict[str, str]:
    """The variables that make pulumi use it, and keep the login of a person who has one in pulumi's usual directory."""
    usual = os.environ.get("PULUMI_CREDENTIALS_PATH") or os.environ.get("PULUMI_HOME") or str(Path.home() / ".pulumi")
    return {
        "PULUMI_HOME": str(directory(cache)),
        **({"PULUMI_CREDENTIALS_PATH": usual} if Path(usual).is_dir() else {}),
        CHECKOUT: str(REPO),
        # What is missing is got by `install`, verified, and never by pulumi behind a person's back.
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        # Without it pulumi offers its assistant below every run that reported anything, such as what changes on a dashboard.
        "PULUMI_SUPPRESS_NEO_LINK": "true",
    }


def offer(cache: Cache, plugins: Mapping[str, Path]) -> None:
    """Makes each of `plugins` (name of its directory, e.g. `resource-command-v1.2.1`, to its executable) pulumi's choice."""
    for name, executable in plugins.items():
        ours = executable.is_relative_to(REPO)
        target = f'"${{{CHECKOUT}:?}}/{executable.relative_to(REPO)}"' if ours else shlex.quote(str(executable))
        path = directory(cache) / "plugins" / name / executable.name
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{executable.name}.{os.getpid()}")
        fresh.write_text(f'#!/bin/sh\nexec {target} "$@"\n')
        fresh.chmod(0o755)
        fresh.rename(path)  # at once: another run may be starting it
