"""A Pulumi project whose stack is run by the real engine, with stand-ins for the plugins that are not installed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from gpu_fleet.toolchain import find
from lab.standins import programs
from tests.checkout import REPO


class Project:
    """A Pulumi project with a stack on a file backend, both below one directory.

    `create` makes the stack, as the project is by then.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "state").mkdir()
        (directory / ".venv").symlink_to(REPO / ".venv")
        (directory / "Pulumi.yaml").write_text(
            "name: standins\nruntime: {name: python, options: {toolchain: pip, virtualenv: .venv}}\n"
        )
        self.environment = {
            **os.environ,
            **programs.environment("test"),
            "PULUMI_BACKEND_URL": f"file://{directory}/state",
            "PULUMI_CONFIG_PASSPHRASE": "a passphrase",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        }

    def create(self, stack: str = "test") -> Project:
        self.run("stack", "init", stack)
        return self

    def program(self, text: str, file: str = "__main__.py") -> None:
        (self.directory / file).write_text(text)

    def run(self, *arguments: str, fails: bool = False) -> str:
        done = subprocess.run(
            [find("pulumi"), *arguments, "--color", "never", "--non-interactive"],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=900,
        )
        output = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, output
        return done.stdout if "--json" in arguments or arguments[:2] == ("stack", "export") else output

    def up(self, **options: bool) -> str:
        return self.run("up", "--yes", "--skip-preview", **options)

    def previewed_up(self, *arguments: str) -> tuple[str, str]:
        """What one run printed of its preview, and of the update."""
        output = self.run("up", "--yes", *arguments)
        preview, header, update = output.partition("\nUpdating (")
        assert header, output
        return preview, update

    def state(self) -> list[dict[str, Any]]:
        return json.loads(self.run("stack", "export"))["deployment"].get("resources", [])

    def state_text(self) -> str:
        return "".join(file.read_text() for file in (self.directory / "state").rglob("*.json"))
