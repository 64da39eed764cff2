"""What a program prints, up to a bound: one that prints without end must not fill the memory of its host."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from typing import Mapping, Sequence

MOST_BYTES = 16 << 20  # a program of a host with eight GPUs prints some kilobytes
_BLOCK = 1 << 16


class TooMuch(subprocess.SubprocessError):
    """It printed more than the bound, and was ended."""

    def __init__(self, program: str, most: int) -> None:
        super().__init__(f"{os.path.basename(program)} printed more than {most >> 20} MiB, and was ended")  # noqa: PTH119


class Pipe:
    """The first `most` bytes of what is written to `end`, the file descriptor for a program; `is_cut`: there was more."""

    def __init__(self, most: int) -> None:
        self._read, self.end = os.pipe()
        os.set_blocking(self._read, False)
        self._most = most
        self._kept = bytearray()
        self._has_ended = False
        self.is_cut = False

    def take(self, within_s: float) -> None:
        """Waits for something to be printed, and reads it. At the end of the file it waits for the time."""
        if self._has_ended or self.is_cut:
            time.sleep(within_s)
            return
        with selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            if selector.select(within_s):
                self._take_block()

    def text(self) -> str:
        """Once the program has ended: what it left running may keep the pipe open."""
        while self._take_block():
            pass
        return self._kept.decode("utf-8", "replace")

    def _take_block(self) -> bool:
        if self.is_cut:
            return False
        try:
            block = os.read(self._read, _BLOCK)
        except BlockingIOError:
            return False
        self._has_ended = not block
        self.is_cut = len(self._kept) + len(block) > self._most
        self._kept += block[: self._most - len(self._kept)]
        return bool(block)

    def started(self) -> None:
        """The program has its own copy of `end` now."""
        os.close(self.end)
        self.end = -1

    def close(self) -> None:
        os.close(self._read)
        if self.end >= 0:
            os.close(self.end)


def of(process: subprocess.Popen[bytes], most: int = MOST_BYTES, within_s: float | None = None) -> tuple[bytes, bytes]:
    """The first `most` bytes of stdout and of stderr, empty where it is no pipe, once the process has ended.

    Raises subprocess.TimeoutExpired, and TooMuch; without `within_s` it raises neither, and what is too much is not kept.
    """
    deadline = None if within_s is None else time.monotonic() + within_s
    printed, errors = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for stream, kept in ((process.stdout, printed), (process.stderr, errors)):
            if stream:
                selector.register(stream, selectors.EVENT_READ, kept)
        while selector.get_map():
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise subprocess.TimeoutExpired(process.args, within_s or 0, bytes(printed))
            for key, _ in selector.select(left_s):
                block = os.read(key.fd, _BLOCK)
                if not block:
                    selector.unregister(key.fileobj)
                kept = key.data
                if deadline is not None and len(kept) + len(block) > most:
                    raise TooMuch(_program(process.args), most)
                kept += block[: most - len(kept)]
    process.wait(None if deadline is None else max(0, deadline - time.monotonic()))
    return bytes(printed), bytes(errors)


def run(
    command: Sequence[str],
    within_s: float,
    most: int = MOST_BYTES,
    errors: int = subprocess.PIPE,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """As subprocess.run. Raises OSError, TimeoutExpired and TooMuch; the program has ended then."""
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=nothing, stdout=pipe, stderr=errors, env=environment) as process:
        try:
            printed = of(process, most, within_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, *printed)


def _program(arguments: object) -> str:
    return str(arguments[0]) if isinstance(arguments, (list, tuple)) else str(arguments)
