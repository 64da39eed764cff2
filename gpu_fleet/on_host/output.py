"""What a program prints, up to a bound: one that prints without end must not fill the memory of its host."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import subprocess
import time
from typing import Mapping, Sequence

MOST_BYTES = 16 << 20  # a program of a host with eight GPUs prints some kilobytes
_BLOCK = 1 << 16
_POLL_S = 0.005  # at first; a tool takes from 10 ms to seconds


class TooMuch(subprocess.SubprocessError):
    """It printed more than the bound, and was ended."""

    def __init__(self, program: str, most: int) -> None:
        super().__init__(f"{os.path.basename(program)} printed more than {most >> 20} MiB, and was ended")  # noqa: PTH119


class Output:
    """The first `most` bytes of stdout and of stderr, empty where it is no pipe; `is_cut`: there was more."""

    def __init__(self, process: subprocess.Popen[bytes], most: int) -> None:
        self._process, self._most = process, most
        self.stdout, self.stderr = bytearray(), bytearray()
        self.is_cut = False
        self._selector = selectors.DefaultSelector()
        for stream, kept in ((process.stdout, self.stdout), (process.stderr, self.stderr)):
            if stream:
                self._selector.register(stream, selectors.EVENT_READ, kept)

    def has_ended(self, within_s: float = math.inf, *, until_cut: bool = False) -> bool:
        """Reads until the process ends, for so long at most, and no more than is kept with `until_cut`. What it left running may
        keep the pipes open."""
        deadline, pause_s = time.monotonic() + within_s, _POLL_S
        while self._process.poll() is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or (until_cut and self.is_cut):
                return False
            if self._selector.get_map():
                self._read(min(pause_s, left_s))
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):  # asked now and then only where there is an end to it
                    self._process.wait(None if left_s == math.inf else min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, 0.1)
        while self._read(0) and not self.is_cut:
            pass
        return True

    def _read(self, within_s: float) -> bool:
        """Was there something?"""
        found = self._selector.select(within_s) if self._selector.get_map() else []
        for key, _ in found:
            block, kept = os.read(key.fd, _BLOCK), key.data
            if not block:
                self._selector.unregister(key.fileobj)
            self.is_cut = self.is_cut or len(kept) + len(block) > self._most
            kept += block[: self._most - len(kept)]
        return bool(found)


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
            printed = Output(process, most)
            has_ended = printed.has_ended(within_s, until_cut=True)
            if printed.is_cut:
                raise TooMuch(command[0], most)
            if not has_ended:
                raise subprocess.TimeoutExpired(command, within_s, bytes(printed.stdout))
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, bytes(printed.stdout), bytes(printed.stderr))
