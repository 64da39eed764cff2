"""Other programs: run without a terminal, without our lock, and with their output read as text."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import Callable, NamedTuple

from .. import output
from . import causes
from .errors import Failure


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.code == 0


NOT_FOUND = 127
_MOST_BYTES = 64 << 20  # of each stream; of more than that nothing is read


def run(
    *command: str,
    environment: dict[str, str] | None = None,
    directory: str | None = None,
    joined: bool = False,
    shown: bool = False,
) -> Done:
    """`joined`: stderr is part of stdout; `shown`: it is ours. A signal that ends this program lets the other one end first: a
    useradd that is cut off leaves an account by half."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if joined else None if shown else subprocess.PIPE,
            env=environment,
            cwd=directory,
        )
    except OSError as error:
        cause = causes.of_error(error)
        if cause and cause.code == "limit":  # not a program that is missing
            raise Failure.of(f"cannot start {command[0]}", error) from error
        return Done(NOT_FOUND, "", f"{command[0]}: {error.strerror}")
    try:
        printed = output.Output(process, _MOST_BYTES)
        printed.has_ended()
    except BaseException:
        process.wait()
        raise
    return Done(process.returncode, text(printed.stdout), text(printed.stderr))


def end_on_signals() -> None:
    """By an exception, so that what is temporary is removed."""

    def end(number: int, _: object) -> None:
        sys.exit(130 if number == signal.SIGINT else 143)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def must(what: str, *command: str) -> None:
    """Raises Failure with what the program said."""
    done = run(*command)
    if done.code < 0 and not done.stderr.strip():  # somebody, or the kernel for lack of memory
        raise Failure.saying("stopped", what, f"{command[0]} was ended by {signal.Signals(-done.code).name}")
    if not done.ok:
        raise Failure.saying("internal", what, done.stderr)


def text(data: bytes | bytearray) -> str:
    """Every byte, whatever it is."""
    return data.decode("utf-8", "surrogateescape")


def read(path: str) -> str:
    with open(path, "rb") as file:
        return text(file.read())


def read_or_empty(path: str) -> str:
    try:
        return read(path)
    except OSError:
        return ""


def lines_of(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]


def pairs(text: str) -> dict[str, str]:
    """Of lines NAME=value."""
    return {name: value for name, is_one, value in (line.partition("=") for line in text.split("\n")) if is_one}


def pause() -> None:
    time.sleep(0.2)


def until(tries: int, is_so: Callable[[], bool]) -> bool:
    """Was it so, with a pause between two looks?"""
    for _ in range(tries):
        if is_so():
            return True
        pause()
    return False
