"""Simulated machines like those that were recorded, and their tools' output in a form that can be compared with a recording."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from lab.gpu import setup
from lab.gpu.machine import CLOCK_VARIABLE, MACHINE_FILE, STATE_VARIABLE
from lab.gpu.scenario import compile_scenario

NOON = 1_780_000_000.0
SMI_COMMAND = f"{sys.executable} -I -S {setup.PROGRAMS / 'nvidia-smi'}"


def make(
    directory: Path, scenario: str, *, driver: str | None = None, cuda: str | None = None, gpus: int = 1, load: str = "training"
) -> Path:
    """The first `gpus` GPUs of a scenario under another driver and load."""
    machine = compile_scenario(scenario) | {"booted_s": NOON - 1_000_000}
    machine["driver"] = driver or machine["driver"]
    machine["cuda"] = cuda or machine["cuda"]
    machine["gpus"] = [gpu | {"load": load} for gpu in machine["gpus"][:gpus]]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MACHINE_FILE).write_text(json.dumps(machine))
    return directory


def run(state: Path, tool: str, *arguments: str) -> tuple[str, int]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", setup.PROGRAMS / tool, *arguments],
        env={**os.environ, STATE_VARIABLE: str(state), CLOCK_VARIABLE: str(NOON)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.stdout, done.returncode


def shape(text: str) -> str:
    """Without what differs between two machines: numbers, hexadecimal words and identifiers become one mark each."""
    text = re.sub(r"\b(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", r"\1-UUID", text)
    text = re.sub(r"\b[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d\b", "BUS", text)
    text = re.sub(r"\b[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(\.\d)?\b", "BUS", text)
    text = re.sub(r"\b0x[0-9A-Fa-f]+\b", "HEX", text)
    return re.sub(r"-?\d+", "9", text)


def shapes(text: str) -> list[str]:
    return [shape(line.rstrip()) for line in text.splitlines() if line.strip()]
