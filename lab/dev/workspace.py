"""Paths of the dev datacenter, and the environment for `pulumi`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from gpu_fleet import toolchain
from lab.standins import programs

REPO = Path(__file__).resolve().parents[2]
DEV = REPO / ".dev"
STACK = "dev"


class DevError(Exception):
    """A problem that the user can fix; str() says what and how."""


def relative(path: Path) -> str:
    return str(path.relative_to(REPO)) if path.is_relative_to(REPO) else str(path)


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """One dev command at a time. The lock is released with the process, also if it is killed."""
    try:
        DEV.mkdir(exist_ok=True)
        file = (DEV / "lock").open("a+")
    except OSError as error:
        raise DevError(
            f"cannot write in {DEV}: {error.strerror}. The checkout must be writable by {os.environ.get('USER', 'you')}."
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise DevError(
                f"another dev command is running (pid {file.read().strip() or 'unknown'}); wait for it or stop it"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def generated_secret(name: str) -> Path:
    """A file with a random secret, 0600, created once."""
    path = DEV / name
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(24))
    return path


def environment() -> dict[str, str]:
    """The environment for `pulumi` on the dev stack: tools, a file backend, a passphrase, the stack's own config file."""
    return {
        **programs.environment(STACK),
        "PULUMI_BACKEND_URL": f"file://{DEV / 'state'}",
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(generated_secret("passphrase")),
        # The engine writes the encryption salt to the config file: to our copy, not to the one in git.
        "PULUMI_OPTION_CONFIG_FILE": str(DEV / f"Pulumi.{STACK}.yaml"),
        "PULUMI_STACK": STACK,
        "PULUMI_DIY_BACKEND_DISABLE_CHECKPOINT_BACKUPS": "true",
    }


def write_environment_file() -> Path:
    """`.dev/env`: the same for an interactive shell (`. .dev/env`)."""
    path = DEV / "env"
    lines = [f"export {name}='{value}'\n" for name, value in sorted(environment().items())]
    path.write_text("# The environment for `pulumi` on the dev stack; load it with:  . .dev/env\n" + "".join(lines))
    return path


def write_stack_config(more: Mapping[str, Any], of_host: Mapping[str, Any]) -> None:
    """`.dev/Pulumi.dev.yaml`: the stack file in git, with the salt and the secrets of this machine.

    `more`: further sections. `of_host`: further keys of the host."""
    ours = DEV / f"Pulumi.{STACK}.yaml"
    checked_in = yaml.safe_load((REPO / f"Pulumi.{STACK}.yaml").read_text())
    checked_in["config"].update({f"gpu-fleet:{name}": section for name, section in more.items()})
    for host in checked_in["config"]["gpu-fleet:hosts"].values():
        host.update(of_host)
    kept = yaml.safe_load(ours.read_text()) if ours.exists() else {}
    checked_in["encryptionsalt"] = (kept or {}).get("encryptionsalt")
    secure = {
        key: value for key, value in (kept or {}).get("config", {}).items() if isinstance(value, dict) and "secure" in value
    }
    checked_in["config"].update(secure)
    if not checked_in["encryptionsalt"]:
        del checked_in["encryptionsalt"]
    text = yaml.safe_dump(checked_in, sort_keys=False)
    if not ours.exists() or ours.read_text() != text:
        ours.write_text(text)


def pulumi(
    *arguments: str, check: bool = True, capture: bool = False, extra: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs pulumi on the dev stack, its output shown immediately unless captured."""
    return run([str(toolchain.find("pulumi")), "--non-interactive", *arguments], check=check, capture=capture, extra=extra)


def run(
    command: list[str],
    *,
    check: bool = True,
    capture: bool = False,
    extra: Mapping[str, str] | None = None,
    stdin: str | None = None,
) -> subprocess.CompletedProcess[str]:
    with subprocess.Popen(
        command,
        cwd=REPO,
        env={**os.environ, **environment(), **(extra or {})},
        text=True,
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE if capture else None,
        stderr=subprocess.STDOUT if capture else None,
    ) as process:
        try:
            output, _ = process.communicate(stdin)
        except KeyboardInterrupt:
            # The terminal interrupted the command too: pulumi completes its current operations and releases its lock. Killing
            # it would prevent both.
            process.wait()
            raise
    if check and process.returncode != 0:
        said = f":\n{output.strip()}" if capture else ", see above"
        raise DevError(f"`{Path(command[0]).name} {' '.join(command[1:4])} …` failed (exit {process.returncode}){said}")
    return subprocess.CompletedProcess(command, process.returncode, output)


def remove_everything() -> None:
    shutil.rmtree(DEV, ignore_errors=True)
    if DEV.exists():
        print(f"could not remove all of {relative(DEV)}; check what is left there", file=sys.stderr)
