"""`make shell`: pulumi and a stack at hand, whatever the user's own shell does at its start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_fleet import toolchain
from gpu_fleet.operations import shell
from gpu_fleet.operations.engine import OperationError
from tests.checkout import REPO


def test_commands_run_with_the_projects_pulumi_and_the_stack_selected(tmp_path: Path) -> None:
    """As CI does, with the commands on standard input; the stack `dev` needs no login, since `make dev` gave it a backend."""
    state = tmp_path / "state"
    state.mkdir()
    own = {"PULUMI_BACKEND_URL": f"file://{state}", "PULUMI_CONFIG_PASSPHRASE": "p", "SHELL": "/bin/sh"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PULUMI_")} | own
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "gpu_fleet.toolchain",
            "run",
            "--",
            sys.executable,
            "-m",
            "gpu_fleet.operations.shell",
            "--stack",
            "dev",
        ],
        input="command -v pulumi; echo $PULUMI_STACK; pulumi stack ls --json\n",
        cwd=REPO,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(toolchain.find("pulumi")), "dev", "[]"]
    assert "has no stack dev" in done.stderr and "pulumi stack init dev" in done.stderr, "the shell is where to create it"
    assert "stack dev selected" in done.stderr


def test_the_projects_pulumi_comes_before_that_of_the_users_own_startup_file(tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("PATH=/own/pulumi:$PATH\nPS1='mine> '\nMINE=kept\n")
    command = shell.command("/bin/bash", is_terminal=True)
    environment = {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "GPU_FLEET_TOOLS_PATH": "/tools:/usr/bin:/bin",
        "PULUMI_STACK": "s",
    }
    done = subprocess.run(
        [*command, "-c", 'echo "$PATH $PS1 $MINE"'], env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.stdout == "/tools:/usr/bin:/bin (s) mine>  kept\n", done.stderr


def test_the_dev_stack_is_selected_with_its_own_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "_DEV", tmp_path / "env")
    given = {"PATH": "/usr/bin:/bin"}
    with pytest.raises(OperationError, match="run `make dev`"):
        shell.variables("dev", given)
    (tmp_path / "env").write_text("export PULUMI_BACKEND_URL='file:///of dev'\n")
    found = shell.variables("dev", given)
    assert (found["PULUMI_BACKEND_URL"], found["PULUMI_STACK"]) == ("file:///of dev", "dev")
    login = {**given, "PULUMI_BACKEND_URL": "s3://state"}
    assert shell.variables("dev", login)["PULUMI_BACKEND_URL"] == "s3://state", "the user's own takes precedence"
    assert "PULUMI_STACK" not in shell.variables("", given), "without a stack it is the place to log in"
