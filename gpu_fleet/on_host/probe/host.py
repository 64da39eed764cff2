"""A host as probes read it: settings and facts so far, files, commands and our records. Nothing here changes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Mapping

from ..files import text_of

if TYPE_CHECKING:
    from ..tools import Answer


class Refusal(Exception):
    """The probe has no facts. `code`: its exit status (gpu_fleet/host/converge/README.md). The lines say why."""

    def __init__(self, code: int, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.code = code


class Hangs(Refusal):
    """A command that nothing can kill."""


class Host:
    """`environment`: settings and facts, as GPU_FLEET_*; for the tests GPU_FLEET_ROOT, where the file system begins."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.root = environment.get("GPU_FLEET_ROOT", "")
        self.prefix = environment.get("GPU_FLEET_PREFIX", "")
        self.state = Path(f"{self.root or self.prefix}/var/lib/gpu-fleet")

    def setting(self, name: str, default: str = "") -> str:
        """Of GPU_FLEET_<name>; the default where it is missing or empty."""
        return self.environment.get(f"GPU_FLEET_{name}") or default

    def path(self, path: str) -> Path:
        return Path(self.root + path)

    def text(self, path: str) -> str:
        """Empty when there is no such file."""
        return text_of(self.path(path))

    def has(self, program: str) -> bool:
        places = self.environment.get("PATH", "").split(":")
        return any(Path(place, program).is_file() and os.access(Path(place, program), os.X_OK) for place in places if place)

    def driver_tool(self, *names: str) -> str:
        """The path of the first of these tools of GPU drivers, wherever drivers install them; empty where there is none."""
        from ..tools import CollectError, Tools

        try:
            return Tools(None, self.environment).find(*names)
        except CollectError:
            return ""

    def ask(self, *command: str, within_s: float = 60, with_stderr: bool = False, cut: bool = False) -> Answer:
        """Status 127 where there is no such command, None where it did not end in time. Raises Hangs; Refusal: it prints too
        much, unless `cut`."""
        # Here, because half of the probes ask nothing, and what it imports takes longer than they do.
        from ..tools import Answer, CollectError, Tools, TooMuch

        if not command[0].startswith("/") and not self.has(command[0]):
            return Answer("", 127)
        try:
            return Tools(None, self.environment).ask(within_s, command, with_stderr=with_stderr, cut=cut)
        except TooMuch as error:
            raise Refusal(1, str(error)) from None
        except CollectError as error:
            raise Hangs(1, str(error)) from None

    def has_placed(self, kind: str, key: str) -> bool:
        """Do converge's records say that we placed it?"""
        return any(line.startswith(f"{kind}\t{key}\t") for line in text_of(self.state / "placed").splitlines())
