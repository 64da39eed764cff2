"""Waiting for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def eventually(what: str, holds: Callable[[], Any], shown: Callable[[], Any] = lambda: "", within_s: float = 240) -> Any:
    """The first true value of `holds`. `shown`: what a failure shows."""
    deadline = time.monotonic() + within_s
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what}: not within {within_s} s: {shown()}"
        time.sleep(0.1)
    return found
