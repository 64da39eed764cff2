"""What ours costs on a host: CPU time and memory of each unit, and CPU time of a run that changes nothing. Needs root.

A real systemd host of the lab with eight simulated GPUs gets everything that a stack places, and runs for a while; its agent
pushes to a store that accepts everything. Each unit gets a slice of its own, which outlives the runs of a timer. nvidia-smi
answers from files, as fast as anything can: what it takes on a real host is the driver's.

    python -m bench.host [--minutes 12]
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import alerts.readiness
from bench.comparison import sink
from gpu_fleet.host.parts import PROGRAMS
from gpu_fleet.host.parts.readiness import Readiness
from gpu_fleet.on_host import nvidia_gpu_exporter as exporter
from gpu_fleet.on_host.collect import links
from gpu_fleet.on_host.metrics import Metrics
from gpu_fleet.on_host.tools import Answer, Tools
from gpu_fleet.operations.table import table
from lab.gpu import setup
from lab.hosts import VARIANTS, Host, Site
from lab.hosts.host import PRESENT
from lab.hosts.needs import unified_cgroups
from lab.standins.programs import gather
from tests.hosts.placed import ARTIFACTS, CONVERGE, ENVELOPE, PlacedHost

REPORT: Final = Path(__file__).parents[1] / ".dev" / "host.json"
UNITS: Final = ("alloy", "node-exporter", "nvidia-gpu-exporter", "textfile", "ready", "check")
PID_1: Final = "init.scope"  # systemd: what it takes to start the runs of timers
_SETTLE_S: Final = 90  # the first scrapes, and the first run of each timer but the check's
_EVERY_S: Final = 5
_RUNS: Final = 9


@dataclass
class Unit:
    """CPU seconds in all; MB of memory at each look: `anonymous`: its own; `resident`: with its share of mapped files."""

    cpu_s: float = 0
    anonymous: list[float] = field(default_factory=list)
    resident: list[float] = field(default_factory=list)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.host", description="Measures what ours costs on a host.")
    parser.add_argument("--minutes", type=float, default=12)
    given = parser.parse_args(arguments)
    runs, rows = measure(given.minutes * 60)
    for title, found in (("runs that change nothing", runs), ("units", rows)):
        print(f"{title}:\n{table(list(found[0]), [[str(value) for value in row.values()] for row in found])}")
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps({"runs": runs, "units": rows}, indent=2) + "\n")
    return 0


def measure(seconds: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What a run takes that changes nothing, and what each unit takes."""
    with tempfile.TemporaryDirectory() as directory, sink() as port, Site.up({"gpu-1": VARIANTS["metal"]}) as site:
        host = site.hosts["gpu-1"]
        gather(Path(directory, "artifacts"), PROGRAMS, present=PRESENT)
        answer_from_files(host, Path(directory, "tools"))
        url = f"http://{site.relay(port)}"
        settings = {"GPU_FLEET_METRICS_URL": f"{url}/api/v1/push", "GPU_FLEET_LOGS_URL": f"{url}/loki/api/v1/push"}
        options = {"readiness": Readiness(table=alerts.readiness.table())}
        placed = PlacedHost(host, Path(directory, "artifacts"), settings=settings, options=options)
        if errors := placed.apply().errors:
            raise RuntimeError(f"{host.name} could not be set up: {errors}")
        runs = list(_runs(placed))
        _give_slices(host)
        time.sleep(_SETTLE_S)
        return runs, list(_rows(_watched(host, seconds), seconds))


def _runs(placed: PlacedHost) -> Iterator[dict[str, Any]]:
    """The host program's own CPU time and that of what it waits for, without SSH."""
    brought = f"sh {ENVELOPE}/bundle/converge"
    for verb, command in {
        "plan": f"{brought} plan --prefix '' --envelope {ENVELOPE}",
        "apply": f"{brought} apply --prefix '' --envelope {ENVELOPE} --artifacts {ARTIFACTS}",
        "check": f"{CONVERGE} check --prefix ''",
    }.items():
        timed = f"TIMEFORMAT='%U %S'; for run in $(seq {_RUNS}); do time {command} >/dev/null 2>&1 || exit 1; done"
        times = placed.host.ssh(f"bash -c {shlex.quote(timed)}").stderr.splitlines()
        seconds = [round(sum(map(float, line.split())), 3) for line in times]
        yield {"verb": verb, "CPU, s": statistics.median(seconds), "least": min(seconds), "most": max(seconds)}


def _watched(host: Host, seconds: float) -> Mapping[str, Unit]:
    groups = {unit: _group(host, f"benchhost.slice/benchhost-{unit.replace('-', '_')}.slice") for unit in UNITS}
    groups["systemd"] = _group(host, PID_1)
    found = {name: Unit(cpu_s=-_cpu_s(group)) for name, group in groups.items()}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for name, group in groups.items():
            anonymous, resident = _memory(group)
            found[name].anonymous.append(anonymous)
            found[name].resident.append(resident)
        time.sleep(_EVERY_S)
    for name, group in groups.items():
        found[name].cpu_s += _cpu_s(group)
    return found


def _rows(units: Mapping[str, Unit], seconds: float) -> Iterator[dict[str, Any]]:
    ours = {name: unit for name, unit in units.items() if name != "systemd"}
    for name, unit in units.items():
        yield _row(name, [unit], seconds)
    yield _row("ours", list(ours.values()), seconds)


def _row(name: str, units: Sequence[Unit], seconds: float) -> dict[str, Any]:
    cpu_s = sum(unit.cpu_s for unit in units)
    anonymous = [sum(at) for at in zip(*(unit.anonymous for unit in units), strict=True)]
    resident = [sum(at) for at in zip(*(unit.resident for unit in units), strict=True)]
    return {
        "unit": name,
        "CPU, % of a core": round(100 * cpu_s / seconds, 2),
        "CPU, ms per 15 s": round(1000 * cpu_s / seconds * 15, 1),
        "memory of its own, MB": round(sum(anonymous) / len(anonymous), 1),
        "with mapped files, MB": round(sum(resident) / len(resident), 1),
        "most, MB": round(max(resident), 1),
    }


def _give_slices(host: Host) -> None:
    for unit in UNITS:
        directory = host.inside / f"run/systemd/system/gpu-fleet-{unit}.service.d"
        directory.mkdir(parents=True)
        (directory / "bench.conf").write_text(f"[Service]\nSlice=benchhost-{unit.replace('-', '_')}.slice\n")
    services = " ".join(f"gpu-fleet-{unit}.service" for unit in UNITS)
    host.ssh(f"systemctl daemon-reload; systemctl stop {services}; systemctl restart {services}")


def _group(host: Host, below: str) -> Path:
    """The control group of the host's process 1 has all others beside it."""
    of_init = next(
        line.split("::", 1)[1] for line in Path(f"/proc/{host.leader}/cgroup").read_text().splitlines() if line.startswith("0::")
    )
    root = unified_cgroups()
    assert root is not None
    return Path(f"{root}{of_init}").parent / below


def _cpu_s(group: Path) -> float:
    try:
        return int((group / "cpu.stat").read_text().split()[1]) / 1e6
    except FileNotFoundError:  # a timer that has not elapsed yet
        return 0


def _memory(group: Path) -> tuple[float, float]:
    """MB of its own, and with its share of what several processes have mapped."""
    anonymous = resident = 0
    for procs in group.rglob("cgroup.procs"):
        for pid in _text(procs).split():
            sizes = dict(re.findall(r"(?m)^(Pss|Pss_Anon): +(\d+) kB", _text(Path(f"/proc/{pid}/smaps_rollup"))))
            anonymous += int(sizes.get("Pss_Anon", 0))
            resident += int(sizes.get("Pss", 0))
    return anonymous / 1024, resident / 1024


def _text(file: Path) -> str:
    """Empty when the process or the group has ended."""
    try:
        return file.read_text()
    except OSError:
        return ""


class _Recording(Tools):
    """Runs the simulated nvidia-smi on this machine and keeps what it answers."""

    def __init__(self, program: str) -> None:
        super().__init__(None)
        self._program, self.answers = program, dict[str, str]()

    def find(self, *names: str) -> str:
        return self._program

    def ask(self, within_s: float, command: Sequence[str], **options: Any) -> Answer:
        answer = super().ask(within_s, command, **options)
        self.answers[" ".join(command[1:])] = answer.text
        return answer


def answer_from_files(host: Host, directory: Path) -> None:
    """The host's nvidia-smi prints what the simulator prints now; what is asked otherwise goes to the simulator."""
    setup.place_tools(state=host.gpu_state, bin_directory=directory)
    tools = _Recording(str(directory / "nvidia-smi"))
    seen = exporter.look(tools)
    seen.answer(tools, [*seen.fields.asked, *exporter.IDENTITY], ["--format=csv"])
    links.collect(tools, Metrics())
    answers = host.inside / "usr/local/lib/bench-nvidia-smi"
    answers.mkdir()
    cases = ""
    for number, (asked, text) in enumerate(tools.answers.items()):
        (answers / str(number)).write_text(text)
        cases += f"  {shlex.quote(asked)}) exec cat /usr/local/lib/bench-nvidia-smi/{number} ;;\n"
    smi = host.inside / "usr/bin/nvidia-smi"
    simulator = smi.rename(smi.with_name("nvidia-smi.simulator")).name
    smi.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}esac\nexec /usr/bin/{simulator} "$@"\n')
    smi.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
