"""Durations as Prometheus and Grafana write them: 30s, 5m, 1h30m, 1d."""

from __future__ import annotations

import re
from typing import Any

SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31536000}


def seconds(text: Any) -> float | None:
    """None for what is no duration."""
    if text in ("0", 0):
        return 0.0
    if not isinstance(text, str) or not re.fullmatch(r"(\d+(ms|[smhdwy]))+", text):
        return None
    return sum(int(number) * SECONDS[unit] for number, unit in re.findall(r"(\d+)(ms|[smhdwy])", text))


def text(duration_s: float) -> str:
    """The shortest writing: 300 is 5m, 90 is 1m30s, 0 is 0s."""
    rest, written = int(duration_s), ""
    for unit in ("w", "d", "h", "m", "s"):
        count, rest = divmod(rest, int(SECONDS[unit]))
        written += f"{count}{unit}" if count else ""
    return written or "0s"
