"""The pulumi command, as the other modules here run it: without questions, with its output captured."""

from __future__ import annotations

import os
import subprocess
import sys

from gpu_fleet.operations.backend import repaired
from gpu_fleet.stackfile.naming import PROJECT


class OperationError(Exception):
    """An error that the user can fix; str() says what is wrong and how to fix it."""


def pulumi(*arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """`variables`: added to the environment. A secret is passed by `stdin`, never by `arguments`. Raises OperationError when
    pulumi is not installed."""
    command = ["pulumi", "--non-interactive", *arguments]
    environment = {**os.environ, **variables}
    try:
        done = subprocess.run(command, input=stdin, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0 and (deleted := repaired(error_of(done))):
            files = " ".join(map(str, deleted))
            print(
                f"A killed run left the backend unreadable; deleted, and nothing of the state with it: {files}", file=sys.stderr
            )
            done = subprocess.run(command, input=stdin, env=environment, capture_output=True, text=True, check=False)
        return done
    except FileNotFoundError:
        raise OperationError(
            "pulumi is not on the PATH: `make setup` installs it, `make shell` opens a shell that has it"
        ) from None


def secret(stack: str, key: str) -> str:
    """The decrypted value of a secret of the stack. Raises OperationError."""
    done = pulumi("config", "get", f"{PROJECT}:{key}", "--stack", stack)
    if done.returncode != 0:
        raise OperationError(f"cannot read the secret {PROJECT}:{key} of the stack {stack}: {error_of(done)}")
    return done.stdout


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """What pulumi printed, without its own `error: `."""
    return (done.stderr.strip() or done.stdout.strip()).removeprefix("error: ")
