"""How busy a simulated GPU is: pure functions of (pattern, seed, GPU, time), so that two programs asked at the same moment
agree and a counter never runs backwards.

Activity is the share of the GPU's power that the work draws, 0 to 1. Noise is left out of the counters: they add up the
pattern itself. Standard library only, and cheap to import: nvidia-smi starts with it.
"""

from __future__ import annotations

from math import floor, pi, sin

# Length in seconds of one turn of each pattern: short enough that a person sees it move on a 15 minute panel.
PERIODS_S = {"training": 240.0, "inference": 600.0, "ramp": 1800.0, "idle": 60.0, "held": 60.0}
PATTERNS = tuple(PERIODS_S)

_STEPS = 48  # per turn, for the areas below


def pattern(name: str, at_s: float) -> float:
    """Activity of the pattern itself."""
    turn = (at_s / PERIODS_S[name]) % 1.0
    if name == "training":  # steps with a slow sag, then a checkpoint is written
        return 0.98 - 0.10 * (turn / 0.85) if turn < 0.85 else 0.22
    if name == "inference":
        return 0.42 + 0.28 * sin(2 * pi * turn)
    if name == "ramp":
        return turn
    return 0.0


def activity(name: str, seed: int, gpu: int, at_s: float) -> float:
    """What one GPU does at one moment: the pattern, an own level per GPU, and noise that changes every 5 s."""
    base = pattern(name, at_s)
    if base < 0.02:  # idle, or held: a program that waits
        return 0.0
    level = 1.0 - 0.05 * noise(seed, gpu, 0)
    wobble = (noise(seed, gpu, 1 + floor(at_s / 5)) - 0.5) * (0.04 if name == "training" else 0.16)
    return min(1.0, max(0.02, base * level + wobble))


def busy_seconds(name: str, at_s: float) -> float:
    """The pattern's area from time 0 to `at_s`: seconds at full activity. Grows without limit."""
    period = PERIODS_S[name]
    width = period / _STEPS
    turns, rest = divmod(at_s, period)
    whole = sum(pattern(name, step * width) for step in range(_STEPS)) * width
    steps, part = divmod(rest, width)
    begun = sum(pattern(name, step * width) for step in range(int(steps))) * width
    return turns * whole + begun + pattern(name, steps * width) * part


def noise(seed: int, *keys: int) -> float:
    """0 to 1, the same for the same arguments on every machine and Python (splitmix64)."""
    value = seed & 0xFFFFFFFFFFFFFFFF
    for key in keys:
        value = (value + 0x9E3779B97F4A7C15 * (key + 1)) & 0xFFFFFFFFFFFFFFFF
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 31
    return value / 2**64
