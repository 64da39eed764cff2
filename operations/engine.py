"""The pulumi command, as the other modules here run it: without questions, with its output captured."""

from __future__ import annotations

import os
import subprocess

from stackfile.naming import PROJECT


class OperationError(Exception):
    """An error that the user can fix; str() says what is wrong and how to fix it."""


def pulumi(*arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """`variables`: added to the environment. A secret is passed by `stdin`, never by `arguments`. Raises OperationError when
    pulumi is not installed."""
    command = ["pulumi", "--non-interactive", *arguments]
    try:
        return subprocess.run(command, input=stdin, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
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
