"""The programs this project runs on a workstation or in CI: pulumi and its plugins, Alloy, Mimir, Loki, promtool, ...

`install.Installer` gets what is missing, in this order: the right version in the cache or on the PATH, the upstream release
(verified by sha256), a build from the Go module proxy. It says which it took and why. `find` and `environment` only look; they
never install. Versions and checksums are in gpu_fleet/toolchain/versions.yaml. See README.md beside this file.

The installer is not imported here: every run of the program needs versions of this package, and nothing of HTTP and archives.
"""

from __future__ import annotations

from gpu_fleet.toolchain.cache import Cache, Record
from gpu_fleet.toolchain.errors import NotInstalled, ToolchainError, WrongChecksum
from gpu_fleet.toolchain.locate import environment, find, located
from gpu_fleet.toolchain.programs import PROGRAMS, Program

__all__ = [
    "Cache",
    "NotInstalled",
    "PROGRAMS",
    "Program",
    "Record",
    "ToolchainError",
    "WrongChecksum",
    "environment",
    "find",
    "located",
]
