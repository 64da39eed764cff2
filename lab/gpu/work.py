"""Work that somebody gives to simulated GPUs for a while, beside the pattern they have: `work.json` in the state directory.

The tests are those of NVIDIA's dcgmproftester, numbered like the profiling field that each drives up; it reached 0.98 engine and
0.87 tensor activity with test 1004 on a T4. Source: NVIDIA's blog "Monitoring GPUs in Kubernetes with DCGM", read November 2026.
Standard library only and cheap to import: nvidia-smi reads it on every run.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

FILE = "work.json"
LEVEL = 0.98  # of the engine in every test, and of the power drawn
# What a test drives up, as profiling ratios; the rest stays near nothing.
TESTS: dict[int, dict[str, float]] = {
    1001: {"engine": LEVEL},
    1002: {"engine": LEVEL, "sm": 0.97},
    1003: {"engine": LEVEL, "sm": 0.97, "occupancy": 0.95},
    1004: {"engine": LEVEL, "sm": 0.97, "tensor": 0.87, "dram": 0.21},
    1005: {"engine": LEVEL, "sm": 0.96, "dram": 0.91},
    1006: {"engine": LEVEL, "sm": 0.97, "fp64": 0.96},
    1007: {"engine": LEVEL, "sm": 0.97, "fp32": 0.96},
    1008: {"engine": LEVEL, "sm": 0.97, "fp16": 0.96},
    1009: {"engine": LEVEL},
    1010: {"engine": LEVEL},
}
IDLE_PART = 0.01

Work = dict  # {"gpu": index, "test": number, "from_s": unix time, "until_s": unix time}


def read(state: str) -> list[Work]:
    try:
        return json.loads(Path(state, FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []


def write(state: str, work: list[Work]) -> None:
    """All work there is; what has ended belongs to it, for the energy it took."""
    path = os.path.join(state, FILE)  # noqa: PTH118
    with open(f"{path}.new", "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(work, file, indent=1)
    os.replace(f"{path}.new", path)  # noqa: PTH105


def parts(work: list[Work], at_s: float) -> dict[str, float] | None:
    """The profiling ratios of a GPU with this work; None while none of it runs."""
    running = [each for each in work if each["from_s"] <= at_s < each["until_s"]]
    return TESTS[running[-1]["test"]] if running else None


def seconds(work: list[Work], at_s: float) -> float:
    """Seconds at full activity until `at_s`."""
    return sum(LEVEL * max(0.0, min(each["until_s"], at_s) - each["from_s"]) for each in work)
