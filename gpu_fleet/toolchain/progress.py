"""What the user sees during an installation: one line per program, and for a long step its duration and estimate."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TextIO

WIDTH = 31  # of the column with name and version: the longest is "pulumi-resource-command 1.2.1"


class Progress:
    """Writes to `out`; on a terminal a running step rewrites its line every second, elsewhere it adds one every 15 s.

    `quiet`: what is installed already is printed only together with something that is not.
    """

    def __init__(self, out: TextIO | None = None, *, quiet: bool = False):
        self._out = out or sys.stdout
        self._held: list[str] | None = [] if quiet else None
        self._terminal = self._out.isatty()
        self.every_s = 1.0 if self._terminal else 15.0

    def installed(self, text: str) -> None:
        """About something that is installed already, or a heading."""
        if self._held is None:
            self.say(text)
        else:
            self._held.append(text)

    def say(self, text: str) -> None:
        held, self._held = self._held, None
        for line in held or ():
            self.say(line)
        self._out.write(("\r\033[K" if self._terminal else "") + text + "\n")
        self._out.flush()

    def line(self, title: str, text: str, *, is_installed: bool = False) -> None:
        show = self.installed if is_installed else self.say
        show(f"{title:<{WIDTH}} {text}")

    @contextlib.contextmanager
    def step(self, title: str, doing: str, expected_s: float | None = None) -> Iterator[Step]:
        """A step that may take long. The caller reports its end with `line`."""
        step = Step(doing, expected_s)
        ended = threading.Event()

        def tick() -> None:
            while not ended.wait(self.every_s):
                text = f"{title:<{WIDTH}} {step}"
                if self._terminal:
                    self._out.write(f"\r\033[K{text[: shutil.get_terminal_size().columns - 1]}")
                    self._out.flush()
                else:
                    self.say(text)

        ticker = threading.Thread(target=tick, daemon=True)
        ticker.start()
        try:
            yield step
        finally:
            ended.set()
            ticker.join()


class Step:
    """A running step; set `detail` to what it is doing."""

    def __init__(self, doing: str, expected_s: float | None):
        self.doing = doing
        self.detail = ""
        self._expected_s = expected_s
        self._began = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def __str__(self) -> str:
        text = f"{self.doing}, {duration(self.elapsed_s)}"
        if self._expected_s:
            is_late = self.elapsed_s > self._expected_s
            text += f", expected {duration(self._expected_s)}" if is_late else f" of about {duration(self._expected_s)}"
        return text + (f": {self.detail}" if self.detail else "")


class Pace:
    """How long the builds of one run take, from how long those before them took here.

    Measured seconds are of another machine, and of one that did nothing else.
    """

    def __init__(self, measured_s: Iterable[float]) -> None:
        self._left_s = sum(measured_s)
        self._measured_s = self._took_s = 0.0

    @property
    def left_s(self) -> float:
        return self.expected_s(self._left_s)

    def expected_s(self, measured_s: float) -> float:
        return measured_s * self._took_s / self._measured_s if self._measured_s else measured_s

    def skip(self, measured_s: float) -> None:
        self._left_s -= measured_s

    def done(self, measured_s: float, took_s: float) -> None:
        self.skip(measured_s)
        self._measured_s += measured_s
        self._took_s += took_s


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def size(count: float) -> str:
    """Bytes in the decimal units of disks."""
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
