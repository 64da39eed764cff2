"""`make shell`: a shell in which `pulumi` is this project's, with the backend and the stack selected.

    python -m gpu_fleet.operations.shell [--stack us-west-training]

Without a stack it is the place to log in (`pulumi login`). Commands on standard input are run instead of a prompt.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.output import run
from gpu_fleet.operations.stack import deployed_configuration, enter_project, stack_file
from gpu_fleet.stackfile.config import ROOT

_BASH_STARTUP = Path(__file__).with_name("shell.bash")
_DEV = ROOT / ".dev/env"


def variables(stack: str, given: Mapping[str, str]) -> dict[str, str]:
    """The environment of the shell. `make dev` keeps its stack in a backend of its own. Raises OperationError."""
    ours = dict(given)
    if stack:
        stack_file(stack)
        ours["PULUMI_STACK"] = stack
    if stack == "dev" and "PULUMI_BACKEND_URL" not in given:
        if not _DEV.exists():
            raise OperationError("the dev datacenter has not been created yet: run `make dev`")
        printed = subprocess.run(["sh", "-c", f". {shlex.quote(str(_DEV))}; env -0"], env=ours, capture_output=True, check=True)
        ours = dict(line.split("=", 1) for line in printed.stdout.decode().split("\0") if "=" in line)
    return ours


def command(shell: str, *, is_terminal: bool) -> list[str]:
    """Bash reads a file of ours after the user's own, which may put another pulumi first on the PATH."""
    if not is_terminal:
        return [shell]
    return [shell, "--rcfile", str(_BASH_STARTUP), "-i"] if Path(shell).name == "bash" else [shell, "-i"]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gpu_fleet.operations.shell", description="Open a shell with pulumi and a stack."
    )
    parser.add_argument("--stack", default="")
    stack = parser.parse_args(arguments).stack
    try:
        enter_project()
        os.environ.update(variables(stack, os.environ))
        os.environ["GPU_FLEET_TOOLS_PATH"] = os.environ["PATH"]
    except OperationError as error:
        print(error, file=sys.stderr)
        return 1
    if stack:
        try:
            deployed_configuration(stack)
        except OperationError as error:  # this shell is where to fix it
            print(error, file=sys.stderr)
    selected = f"stack {stack} selected; " if stack else "no stack selected; "
    print(f"pulumi and the other tools of this project are on the PATH; {selected}`exit` leaves this shell.", file=sys.stderr)
    shell = os.environ.get("SHELL") or "/bin/sh"
    os.execv(shell, command(shell, is_terminal=sys.stdin.isatty()))  # noqa: S606


if __name__ == "__main__":
    run(main)
