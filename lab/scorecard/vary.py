"""Tapes made from other tapes by chance, from a fixed seed: what drivers, kernels, log daemons and sites write differently.

What is varied says nothing about the fault, so the expected notification stays: which GPU it is, how its address is written,
the width of columns, what a log daemon puts in front, the driver's version, and what other lines lie between. Pure.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from lab.scorecard.tape import FORMS, Tape

_SEED: Final = 28
_GPUS: Final = 4  # of the scenarios of single hosts
_DRIVERS: Final = ("535.247.01", "550.163.01", "570.172.08", "580.95.05", "580.105.08")
# Lines that say nothing about GPUs, or nothing bad. Of healthy hosts.
_NOISE: Final = (
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
    "docker0: port 3(veth71c2f) entered forwarding state",
    "perf: interrupt took too long (2511 > 2500), lowering kernel.perf_event_max_sample_rate to 79500",
    "nvidia-uvm: Loaded the UVM driver, major device number 234.",
    "mlx5_core 0000:18:00.0: Port module event: module 0, Cable plugged",
    "pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0",
    "python3[4242]: segfault at 0 ip 000055d0 sp 00007ffd error 4 in libtorch_cuda.so[7f00,1000]",
    "EXT4-fs (nvme0n1p2): re-mounted. Quota mode: none.",
)


def is_variable(tape: Tape) -> bool:
    """Only lines of the kernel, on a host of one of the usual scenarios: nothing else of it has a text that varies."""
    return tape.scenario in ("h100x4", "mi300x4") and all({"kernel", "nothing"} & set(step) for step in tape.steps)


def varied(tapes: Sequence[Tape]) -> list[Tape]:
    """Half as many as there are tapes, so that a third of all of them are these."""
    sources = [tape for tape in tapes if is_variable(tape) and any("kernel" in step for step in tape.steps)]
    chance = random.Random(_SEED)
    wanted, found = len(tapes) // 2, list[Tape]()
    while sources and len(found) < wanted:
        for tape in chance.sample(sources, min(len(sources), wanted - len(found))):
            found.append(_one(tape, len(found), chance))
    return found


def _one(tape: Tape, number: int, chance: random.Random) -> Tape:
    moved = dict(enumerate(chance.sample(range(_GPUS), _GPUS)))
    form = chance.choice(FORMS)
    steps = [_step(step, moved, form, chance) for step in tape.steps]
    if tape.vendor == "nvidia" and tape.driver is None:
        tape = replace(tape, driver=chance.choice(_DRIVERS))
    expected = tape.expected
    if isinstance(expected.gpu, int):
        expected = replace(expected, gpu=moved[expected.gpu])
    return replace(
        tape,
        name=f"{tape.name}-varied-{number}",
        kind="varied",
        modes=(chance.choice(tape.modes),),
        steps=tuple(steps),
        expected=expected,
    )


def _step(step: Mapping[str, Any], moved: Mapping[int, int], form: str, chance: random.Random) -> Mapping[str, Any]:
    if "kernel" not in step:
        return step
    lines = [step["kernel"]] if isinstance(step["kernel"], str) else list(step["kernel"])
    lines = [_line(line, moved, chance) for line in lines]
    if step.get("times", 1) == 1:
        for _ in range(chance.randrange(3)):
            lines.insert(chance.randrange(len(lines) + 1), chance.choice(_NOISE))
    # What a tape writes in a certain way, it does for a reason.
    return {**step, "kernel": lines, "form": step.get("form", form)}


def _line(line: str, moved: Mapping[int, int], chance: random.Random) -> str:
    line = re.sub(r"\{(pci|PCI)(\d)\}", lambda found: f"{{{found[1]}{moved.get(int(found[2]), found[2])}}}", line)
    if line.startswith("NVRM: Xid (PCI:{pci"):
        before, after = chance.choice([("PCI:", ""), ("PCI:", ""), ("PCI:0000", ""), ("PCI:", ".0"), ("", "")])
        letters = chance.choice(["pci", "PCI"])
        line = re.sub(r"\(PCI:\{pci(\d)\}", rf"({before}{{{letters}\1}}{after}", line, count=1)
        # NVLink 5: unit, severity and place are columns, padded since R570.
        line = re.sub(r"(NETIR\w*|RLW\w*|SAW\w*|TLW\w*)[ ]+(Fatal|Nonfatal)[ ]+", _padded(chance), line)
    return line


def _padded(chance: random.Random) -> str:
    return chance.choice([r"\1 \2 ", r"\1  \2   ", r"\1      \2  "])
