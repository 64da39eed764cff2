"""Generated tapes: written ones with what varies between drivers, hosts and syslog daemons, and the same expectation. Pure.

A pattern that fits only the spacing, the order, the case or the addresses of one recording fails here. Only tapes of kernel lines
are varied. What is varied was seen in recordings: columns of NVLink 5 lines are padded (GB200), addresses are in either case, an
unknown process is printed as '<unknown>', names of processes contain spaces and brackets, lines are repeated.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from lab.scorecard.tape import FORMS, MODES, Expected, Tape

SEED: Final = 20261125
_GIVEN: Final[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "fuzz.yaml").read_text())
_SCENARIOS: Final[dict[str, dict[str, int]]] = _GIVEN["scenarios"]
_NOISE: Final[dict[str, list[str]]] = {"amd": _GIVEN["noise"], "nvidia": [*_GIVEN["noise"], *_GIVEN["nvidia_noise"]]}
_PADDED: Final = re.compile(r"(?<=\): )(14[4-9]|150), (\S+) (Fatal|Nonfatal) (XC\S*)")
_PROCESS: Final = re.compile(r"pid=('<unknown>'|\d+), name=(<unknown>|[^,]+), ")


def generated(tapes: Sequence[Tape], seed: int = SEED) -> list[Tape]:
    """One for every two written tapes, so that a third of all is generated."""
    usable = sorted((each for each in tapes if _is_usable(each)), key=lambda each: random.Random(f"{seed}/{each.name}").random())
    wanted = len(tapes) // 2
    rounds = [(number, each) for number in range(1, 1 + -(-wanted // max(1, len(usable)))) for each in usable]
    # The same tapes whatever their number: each has a generator of its own.
    return [_varied(each, number, random.Random(f"{seed}/{each.name}/{number}")) for number, each in rounds[:wanted]]


def _is_usable(tape: Tape) -> bool:
    scenarios = _SCENARIOS[tape.vendor]
    return tape.scenario in scenarios and all(set(step) <= {"at", "kernel", "times", "form"} for step in tape.steps)


def _varied(tape: Tape, number: int, chance: random.Random) -> Tape:
    needed = {int(found) for found in re.findall(r"\{(?:pci|PCI)(\d+)\}", str(tape.steps))}
    has_switch = "{switch" in str(tape.steps)
    scenario = chance.choice(
        [name for name, gpus in _SCENARIOS[tape.vendor].items() if gpus >= max(2, len(needed)) and not (has_switch and gpus < 4)]
    )
    places = chance.sample(range(_SCENARIOS[tape.vendor][scenario]), len(needed))
    gpus = dict(zip(sorted(needed), places, strict=True))
    mode = chance.choice([name for name, each in MODES.items() if each.vendor == tape.vendor])
    steps = tuple(_steps(tape, gpus, chance))
    return replace(
        tape,
        name=f"fuzz-{tape.name}-{number}",
        kind="fuzz",
        scenario=scenario,
        driver=chance.choice(_GIVEN["drivers"]) if tape.vendor == "nvidia" else None,
        modes=(mode,),
        steps=steps,
        length_s=tape.length_s + 20,
        expected=_about(tape.expected, gpus),
        seed=chance.randrange(2**32),
    )


def _about(expected: Expected, gpus: Mapping[int, int]) -> Expected:
    gpu = expected.gpu
    # A few seconds more: the lines of one burst come one after the other.
    return replace(expected, gpu=gpus[gpu] if isinstance(gpu, int) else gpu, within_s=expected.within_s + 10)


def _steps(tape: Tape, gpus: Mapping[int, int], chance: random.Random) -> Iterator[dict[str, Any]]:
    form = chance.choice(FORMS)
    for step in tape.steps:
        lines = [step["kernel"]] if isinstance(step["kernel"], str) else list(step["kernel"])
        case = chance.choice(("pci", "PCI")) if tape.vendor == "nvidia" else "pci"
        at = float(step["at"])
        for line in _in_order(lines, chance):
            for _ in range(chance.choice((0, 0, 1, 3))):
                yield {"at": at, "kernel": chance.choice(_NOISE[tape.vendor]), "form": form}
            varied = _line(line, gpus, case, chance)
            yield {"at": at, "kernel": varied, "form": form, "times": step.get("times", 1) * chance.choice((1, 1, 1, 2, 6))}
            at += chance.choice((0, 0, 0.2, 1.1))


def _in_order(lines: list[str], chance: random.Random) -> list[str]:
    """Lines of one GPU stay in their order, those of several are interleaved."""
    queues: dict[str, list[str]] = {}
    for line in lines:
        queues.setdefault("".join(re.findall(r"\{pci\d+\}", line)) or "host", []).append(line)
    order = [key for key, queue in queues.items() for _ in queue]
    if len(queues) > 1 and "host" not in queues:
        first = order.pop(0)  # the cause comes before what it causes on others
        chance.shuffle(order)
        order.insert(0, first)
        return [queues[key].pop(0) for key in order]
    return lines


def _line(line: str, gpus: Mapping[int, int], case: str, chance: random.Random) -> str:
    line = re.sub(r"\{(?:pci|PCI)(\d+)\}", lambda found: f"{{{case}{gpus[int(found[1])]}}}", line)
    line = _PADDED.sub(
        lambda found: f"{found[1]}, {found[2]:<{chance.choice((1, 16, 20))}} {found[3]:<{chance.choice((1, 9))}} {found[4]}", line
    )
    pid, name = chance.randrange(2, 4_000_000), chance.choice(_GIVEN["processes"])
    process = chance.choice((f"pid={pid}, name={name}, ", "pid='<unknown>', name=<unknown>, "))
    line = _PROCESS.sub(lambda _: process, line)
    line = re.sub(r"\bLink \d\d\b", f"Link {chance.randrange(18):02}", line)
    line = re.sub(r"\bCh [0-9a-f]{8}\b", f"Ch {chance.randrange(64):08x}", line)
    return re.sub(
        r"0x[0-9a-f]{4}_[0-9a-f]{8}\b", lambda _: f"0x{chance.randrange(16**4):04x}_{chance.randrange(16**8):08x}", line
    )
