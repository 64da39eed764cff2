"""What commands print: text of hosts, servers and pulumi shows on the terminal or in the log of a CI job, and is no command
there."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import NoReturn, TextIO

from gpu_fleet.safetext.terminal import printable


def run(main: Callable[[list[str]], int]) -> NoReturn:
    """Ends this process with what `main` returns for its arguments."""
    sys.stdout, sys.stderr = _Safe(sys.stdout), _Safe(sys.stderr)
    sys.exit(main(sys.argv[1:]))


def own_lines() -> TextIO:
    """Standard output for what moves the cursor on purpose."""
    return sys.stdout.inner if isinstance(sys.stdout, _Safe) else sys.stdout


class _Safe(io.TextIOWrapper):
    def __init__(self, inner: TextIO):
        super().__init__(inner.buffer, inner.encoding, "backslashreplace", line_buffering=True)
        self.inner = inner

    def write(self, text: str) -> int:
        return super().write(printable(text))
