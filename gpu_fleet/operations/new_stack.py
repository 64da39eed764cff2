"""`make new-stack`: a commented stack file, its stack in the backend, and the secrets that it needs.

    python -m gpu_fleet.operations.new_stack --datacenter us-west --cluster training [--metrics-url URL --logs-url URL --push-user
    NAME --logs-user NAME]

`make new-stack STACKS=DIR` prepares DIR first, a directory of the user's own (docs/own-directory.md), if it has no Pulumi.yaml.
A file that exists is never written. Values that are not given are prompted for on a terminal; elsewhere the file has examples.
Passwords come from the terminal, or from METRICS_PASSWORD, LOGS_PASSWORD and RULERS_PASSWORD in the environment, never from an
argument.
"""

from __future__ import annotations

import argparse
import getpass
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from gpu_fleet.operations.engine import OperationError, error_of, pulumi
from gpu_fleet.operations.output import run
from gpu_fleet.operations.own_directory import prepare
from gpu_fleet.operations.stack import NOT_LOGGED_IN, STACKS, configuration, enter_project, project, stack_files
from gpu_fleet.stackfile.config import ROOT, ConfigErrors
from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.new_stack import new_stack, passwords_of

# pulumi 3.259.0, pkg/secrets/passphrase: its error names this variable where there is no passphrase.
_SCHEMA = "gpu_fleet/stackfile/stack.schema.json"
_NO_PASSPHRASE = "PULUMI_CONFIG_PASSPHRASE"  # noqa: S105 - its name


def written(name: str, text: str) -> Path:
    """The new file. Raises OperationError when there is one of this name."""
    file = project() / f"Pulumi.{name}.yaml"
    try:
        with file.open("x") as out:
            out.write(text)
    except FileExistsError:
        raise OperationError(
            f"{file.name} exists already and was not changed. If the backend has no stack {name} yet:\n"
            f"    make shell STACK={name}\n"
            f"    pulumi stack init {name}"
        ) from None
    except OSError as error:
        raise OperationError(f"cannot write {file.name}: {error.strerror}") from None
    return file


def _with_schema(text: str) -> str:
    """Editors look for the schema from the directory of the file."""
    return text.replace(f"$schema={_SCHEMA}", f"$schema={os.path.relpath(ROOT / _SCHEMA)}", 1)


def create_stack(name: str, *, is_terminal: bool) -> None:
    """Raises OperationError."""
    done = pulumi("stack", "init", name)
    if done.returncode != 0 and _NO_PASSPHRASE in done.stderr and is_terminal:
        os.environ[_NO_PASSPHRASE] = _new_passphrase()
        done = pulumi("stack", "init", name)
    if done.returncode == 0:
        return
    error = error_of(done)
    if NOT_LOGGED_IN in error:
        error = "pulumi is not logged in to a backend, where stacks are kept; log in with `pulumi login URL`"
    raise OperationError(error)


def _new_passphrase() -> str:
    print("A passphrase encrypts the secrets of this stack. Keep it: without it they are lost.", file=sys.stderr)
    while True:
        first = getpass.getpass("Passphrase: ")
        if first and first == getpass.getpass("Again: "):
            return first
        print("Empty, or not the same twice.", file=sys.stderr)


def set_secrets(name: str, keys: list[str], given: Mapping[str, str], *, is_terminal: bool) -> list[str]:
    """Returns those that nobody gave a value for. Raises OperationError."""
    missing = []
    for key in keys:
        value = given.get(_variable(key), "")
        if not value and is_terminal:
            value = getpass.getpass(f"{PROJECT}:{key} (empty: later): ")
        if not value:
            missing.append(key)
            continue
        done = pulumi("config", "set", "--secret", f"{PROJECT}:{key}", "--stack", name, stdin=value)
        if done.returncode != 0:
            raise OperationError(f"cannot set the secret {PROJECT}:{key}: {error_of(done)}")
    return missing


def _variable(key: str) -> str:
    """metricsPassword -> METRICS_PASSWORD"""
    return re.sub(r"([A-Z])", r"_\1", key).upper()


def next_steps(name: str, missing: list[str], *, is_created: bool) -> str:
    """What is left to do. `missing`: secrets without a value."""
    commands = [] if is_created else ["pulumi login URL", f"pulumi stack init {name}"]
    commands += [f"pulumi config set --secret {PROJECT}:{key}" for key in missing]
    lines = [f"    make shell STACK={name}", *(f"    {command}" for command in commands)] if commands else []
    return "\n".join(
        [
            *lines,
            f"Next: edit Pulumi.{name}.yaml (URLs, and hosts or a cluster), then",
            f"    make known-hosts STACK={name}",
            f"    make preview STACK={name}",
            f"    make up STACK={name}",
        ]
    )


def main(arguments: list[str]) -> int:
    """Exit status: 1 when the file was not written or the stack not created."""
    parser = argparse.ArgumentParser(
        prog="python -m gpu_fleet.operations.new_stack", description="Write a stack file, create its stack."
    )
    for option in ("datacenter", "cluster"):
        parser.add_argument(f"--{option}", required=True)
    for option in ("metrics-url", "logs-url", "push-user", "logs-user"):
        parser.add_argument(f"--{option}", default="")
    given = parser.parse_args(arguments)
    is_terminal = sys.stdin.isatty()
    try:
        new_stack(given.datacenter, given.cluster)  # errors in the names come before any question
        name = f"{given.datacenter}-{given.cluster}"
        if os.environ.get(STACKS):
            for line in prepare(project()):
                print(line)
        enter_project()
        if name in stack_files():
            written(name, "")
        if is_terminal:
            given.metrics_url = given.metrics_url or input(
                "Mimir's push URL, or another store's (docs/stores.md) [https://mimir.example.com/api/v1/push]: "
            )
            given.logs_url = given.logs_url or input("Loki's push URL [https://loki.example.com/loki/api/v1/push]: ")
            given.push_user = given.push_user or input("User name for both (empty: no login): ")
        options = {"metrics_url": given.metrics_url, "logs_url": given.logs_url}
        options |= {"username": given.push_user, "logs_username": given.logs_user}
        file = written(name, _with_schema(new_stack(given.datacenter, given.cluster, **options)))
        print(f"wrote {file.name}")
        if not (given.metrics_url and given.logs_url):
            print("URLs that were not given are those of example.com, where no server is: replace them before `make up`")
        needed = passwords_of(configuration(name).values)
    except (OperationError, ConfigErrors) as error:
        print(error, file=sys.stderr)
        return 1
    is_created, missing = False, needed
    try:
        create_stack(name, is_terminal=is_terminal)
        is_created = True
        print(f"created the stack {name}")
        missing = set_secrets(name, needed, os.environ, is_terminal=is_terminal)
    except OperationError as error:
        print(error if is_created else f"the stack {name} was not created: {error}", file=sys.stderr)
        print(next_steps(name, missing, is_created=is_created))
        return 1
    print(next_steps(name, missing, is_created=True))
    return 0


if __name__ == "__main__":
    run(main)
