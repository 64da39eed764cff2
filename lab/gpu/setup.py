"""Making a simulated machine: its state directory, and a directory with its tools."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from lab.gpu import faults, work
from lab.gpu.inject import clear
from lab.gpu.machine import KERNEL_LOG, MACHINE_FILE, STATE_VARIABLE, clock
from lab.gpu.nvml import LIBRARY_VARIABLE, PROGRAM_VARIABLE
from lab.gpu.scenario import compile_scenario

PROGRAMS = Path(__file__).parent / "bin"
_TOOLS = {
    "nvidia": ("nvidia-smi", "nvidia_gpu_exporter", "dcgm-exporter", "dcgmproftester12"),
    "amd": ("rocm-smi", "amd-smi", "amd-metrics-exporter"),
}
_UPTIME_S = 86_400 * 12.5  # so that counters and kernel time stamps look like those of a machine in use


def init(*, state: Path, scenario: str, hostname: str | None = None) -> dict[str, Any]:
    """A new machine in `state`; one that lay there is gone, faults and kernel log included."""
    machine = compile_scenario(scenario, hostname=hostname)
    machine["booted_s"] = clock() - _UPTIME_S
    if state.exists():
        for name in (MACHINE_FILE, faults.FILE, work.FILE, KERNEL_LOG, "faults.lock"):
            (state / name).unlink(missing_ok=True)
    state.mkdir(parents=True, exist_ok=True)
    (state / KERNEL_LOG).touch()
    _write(state / MACHINE_FILE, json.dumps(machine, indent=1) + "\n")
    return machine


def place_tools(*, state: Path, bin_directory: Path) -> list[str]:
    """Wrappers named like the vendor's programs. They carry the state directory and the interpreter, so a service finds
    the machine with an empty environment; isolated mode keeps a start under 60 ms."""
    vendor = json.loads((state / MACHINE_FILE).read_text(encoding="utf-8"))["vendor"]
    bin_directory.mkdir(parents=True, exist_ok=True)
    for name in {tool for tools in _TOOLS.values() for tool in tools} - set(_TOOLS[vendor]):
        (bin_directory / name).unlink(missing_ok=True)
    for name in _TOOLS[vendor]:
        _write(
            bin_directory / name,
            "#!/bin/sh\n"
            "# Made by lab.gpu: a simulated GPU machine, no real driver.\n"
            f"export {STATE_VARIABLE}={shlex.quote(str(state.resolve()))}\n"
            f'exec {shlex.quote(sys.executable)} -I -S {shlex.quote(str(PROGRAMS / name))} "$@"\n',
            mode=0o755,
        )
    return list(_TOOLS[vendor])


def ensure(*, state: Path, bin_directory: Path, scenario: str) -> None:
    try:
        there = json.loads((state / MACHINE_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        there = {}
    wanted = compile_scenario(scenario)
    if {key: there.get(key) for key in wanted} != wanted:
        init(state=state, scenario=scenario)
    elif faults.read(str(state)) != faults.none():
        clear(state)
    place_tools(state=state, bin_directory=bin_directory)


def use_real_nvidia_smi(branch: str, *, state: Path, bin_directory: Path) -> str:
    """The machine gets the driver of a branch and NVIDIA's own nvidia-smi of that branch (lab.gpu.nvml). Returns the driver's
    version. Raises NoPackages."""
    from lab.gpu.nvml import real

    generation = real.ensure(branch)
    machine = json.loads((state / MACHINE_FILE).read_text(encoding="utf-8"))
    machine.update(driver=generation.driver, cuda=generation.cuda)
    _write(state / MACHINE_FILE, json.dumps(machine, indent=1) + "\n")
    wrapper = bin_directory / "nvidia-smi"
    variables = {PROGRAM_VARIABLE: generation.program, LIBRARY_VARIABLE: real.library()}
    exports = "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in variables.items())
    _write(wrapper, wrapper.read_text(encoding="utf-8").replace("exec ", f"{exports}exec "), mode=0o755)
    return generation.driver


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    """Whole or not at all: a service may be starting the tool meanwhile."""
    partial = path.with_name(path.name + ".new")
    partial.write_text(text, encoding="utf-8")
    partial.chmod(mode)
    partial.replace(path)
