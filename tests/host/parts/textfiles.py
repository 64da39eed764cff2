"""Running the textfile collectors of a host against tools that answer from text."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gpu_fleet.host.parts.drift import BUNDLE
from tests.host.parts.places import parts_of, place

PYTHON = {"GPU_FLEET_PYTHON": sys.executable}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def bound_to_guests(
    root: Path, address: str, *, driver: str = "vfio-pci", device_class: str = "0x030200", vendor: str = "0x10de"
) -> Path:
    """A PCI device in a host's /sys, by default a GPU that vfio-pci has."""
    device = root / "sys/bus/pci/drivers" / driver / address
    device.mkdir(parents=True)
    (device / "class").write_text(f"{device_class}\n")
    (device / "vendor").write_text(f"{vendor}\n")
    return device


def tool(directory: Path, name: str, answers: Mapping[str, str], *, code: int = 0, default: str = "") -> Path:
    """An executable `name` that prints the answer whose key its arguments begin with, and exits with `code`."""
    directory.mkdir(parents=True, exist_ok=True)
    cases = []
    for number, (arguments, text) in enumerate(answers.items()):
        answer = directory / f"{name}.{number}"
        answer.write_text(text)
        cases.append(f"  '{arguments}'*) cat '{answer}' ;;\n")
    script = directory / name
    script.write_text(f"#!/bin/sh\ncase \"$*\" in\n{''.join(cases)}  *) printf '%s' '{default}' ;;\nesac\nexit {code}\n")
    script.chmod(0o755)
    return script


def collect(prefix: Path, facts: Mapping[str, str], tools: Path, *, patience_s: int | None = None) -> Path:
    """One run as the timer starts it, on a host with these facts. Returns the textfile directory, with what collectors wrote.

    `patience_s`: for how long it waits for each tool, where that is not to be the real time.
    """
    place(parts_of(facts), prefix)
    (prefix / BUNDLE.lstrip("/")).unlink()
    if patience_s is not None:
        for module in (prefix / "opt/gpu-fleet/lib/python/on_host/collect").glob("[a-z]*.py"):
            module.write_text(re.sub(r"^(\w*PATIENCE_S) = .*$", rf"\1 = {patience_s}", module.read_text(), flags=re.MULTILINE))
    subprocess.run(
        [prefix / "opt/gpu-fleet/libexec/run", "textfile"],
        env={"PATH": os.environ["PATH"], "GPU_FLEET_PREFIX": str(prefix), "GPU_FLEET_TOOL_PATH": str(tools), **PYTHON, **facts},
        check=True,
        timeout=300,
    )
    return prefix / "var/lib/gpu-fleet/textfile"


def samples(file: Path) -> Samples:
    """The samples of a textfile by name and labels."""
    found: Samples = {}
    for line in file.read_text().splitlines():
        if line.startswith("#"):
            continue
        match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        assert match, f"no sample: {line!r}"
        labels = frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or ""))
        found[match[1], labels] = float(match[3])
    return found


def by_gpu(found: Samples, name: str) -> dict[str, float]:
    """GPU -> value of one metric."""
    return {dict(labels)["gpu"]: value for (sample, labels), value in found.items() if sample == name}


def value(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((name, frozenset(labels.items())))
