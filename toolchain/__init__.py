"""The programs this project runs on a workstation or in CI: pulumi and its plugins, Alloy, Mimir, Loki, promtool, ...

`install` gets what is missing, in this order: the right version in the cache or on the PATH, the upstream release (verified by
sha256), a build from the Go module proxy. It says which it took and why. `find` and `environment` only look; they never install.
Versions and checksums are in toolchain/versions.yaml. See README.md beside this file.
"""

from __future__ import annotations

from toolchain.cache import Cache, Record
from toolchain.errors import NotInstalled, ToolchainError, WrongChecksum
from toolchain.install import Installer, architecture
from toolchain.locate import environment, find, located
from toolchain.programs import PROGRAMS, Program

__all__ = [
    "Cache",
    "Installer",
    "NotInstalled",
    "PROGRAMS",
    "Program",
    "Record",
    "ToolchainError",
    "WrongChecksum",
    "architecture",
    "environment",
    "find",
    "install",
    "located",
]


def install(names: list[str] | None = None) -> None:
    """Gets the named programs that are missing, by default those for work on stacks. Raises ToolchainError with every reason."""
    Installer().install(names)
