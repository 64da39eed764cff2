"""Command line of the simulated nvidia-smi. Unknown options are rejected with the real one's message."""

from __future__ import annotations

import os
import sys
import time

from lab.gpu.machine import STATE_VARIABLE, Gpu, Machine, NoMachine
from lab.gpu.nvidia import field_list, queries
from lab.gpu.nvidia.answering import (
    DRIVER_NOT_LOADED,
    LOST,
    NOT_LOADED,
    OK,
    VERSION_MISMATCH,
    Options,
    Refused,
    lost_message,
    print_gpus,
    print_whole,
    select,
)

# Each a module with run(); imported when asked for, since every import costs every call.
_SUBCOMMANDS = ("nvlink", "dmon")

HELP = """This is a simulated nvidia-smi of gpu-fleet's lab: a stand-in over simulated GPUs, no NVIDIA driver.

    nvidia-smi                                  the table
    nvidia-smi -L                               the GPUs and their UUIDs
    nvidia-smi --query-gpu=FIELD,... --format=csv[,noheader][,nounits]
    nvidia-smi --query-compute-apps=FIELD,... --format=csv[...]
    nvidia-smi --help-query-gpu                 the fields of this driver
    nvidia-smi -q -d TEMPERATURE                temperatures and their limits
    nvidia-smi nvlink -s | -e | -gt d | -gt r | -g 0 (drivers before 470)
    nvidia-smi dmon -s t [-c COUNT]             PCIe traffic, one line per GPU
    nvidia-smi --version
    -i GPU,...                                  only these: index, UUID or PCI bus id
"""


def main(arguments: list[str]) -> int:
    state = os.environ.get(STATE_VARIABLE)
    if not state:
        print(f"simulated nvidia-smi: {STATE_VARIABLE} is not set; start it through a wrapper that lab.gpu.ensure makes")
        return DRIVER_NOT_LOADED
    try:
        machine = Machine.load(state)
        _suffer(machine)
        return _run(machine, list(arguments))
    except NoMachine as missing:
        print(f"simulated nvidia-smi: {missing}", file=sys.stderr)
        print(f"{NOT_LOADED}\n")
        return DRIVER_NOT_LOADED
    except Refused as refused:
        print(f"{refused}\n")
        return refused.code
    except BrokenPipeError:
        return 1


def _suffer(machine: Machine) -> None:
    """What is wrong with the driver as a whole."""
    time.sleep(machine.stall_s)
    if machine.driver_problem == "not-loaded":
        raise Refused(NOT_LOADED, DRIVER_NOT_LOADED)
    if machine.driver_problem == "version-mismatch":
        short = ".".join(machine.driver.split(".")[:2])
        newer = f"\nNVML library version: {short}" if machine.driver_major >= 535 else ""
        raise Refused(f"Failed to initialize NVML: Driver/library version mismatch{newer}", VERSION_MISMATCH)


def _run(machine: Machine, arguments: list[str]) -> int:
    if arguments and arguments[0] in _SUBCOMMANDS:
        # Not importlib, whose import takes 1 ms.
        return __import__(f"lab.gpu.nvidia.{arguments[0]}", fromlist=["run"]).run(machine, Options(arguments[1:]))
    if arguments == ["lab-nvml"]:
        from lab.gpu.nvidia import nvml

        return _print([nvml.document(machine)])
    options = Options(arguments)
    if options.flag("-h", "--help"):
        print(HELP)
        return OK
    if machine.driver_major >= 545 and options.flag("--version"):  # seen: not 535, but 550
        return _print(_version(machine))
    if options.flag("--help-query-gpu"):
        return _print(_help_query(machine))
    asked = [(switch, fields) for switch in queries.QUERIES if (fields := options.value(switch)) is not None]
    form = options.value("--format")
    chosen, lost = select(machine, options.value("-i", "--id"))
    if asked:
        options.done()
        return print_gpus(queries.rows(machine, *asked[0], form), chosen, lost)
    if options.flag("-L", "--list-gpus"):
        options.done()
        return _print_list(chosen, lost)
    if options.flag("-q", "--query"):
        from lab.gpu.nvidia import temperatures

        if (display := options.value("-d", "--display")) != "TEMPERATURE":
            raise Refused(f"the simulated nvidia-smi has -q -d TEMPERATURE alone, not {display}")
        options.done()
        return print_whole(temperatures.text(machine, chosen), lost)
    options.done()
    from lab.gpu.nvidia import table

    return print_whole(table.render(machine, chosen), lost)


def _print(lines: list[str]) -> int:
    print("\n".join(lines))
    return OK


def _print_list(chosen: list[Gpu], lost: list[Gpu]) -> int:
    """All that have a handle, whatever the driver."""
    for gpu in sorted([*chosen, *lost], key=lambda gpu: gpu.index):
        print("\n".join([lost_message(gpu).replace("GPU0000:", "gpu 0000:"), "", ""] if gpu.lost else _list(gpu)))
    return LOST if lost else OK


def _list(gpu: Gpu) -> list[str]:
    lines = [f"GPU {gpu.index}: {gpu.product['name']} (UUID: GPU-{gpu.uuid})"]
    for part in gpu.mig:
        lines.append(f"  MIG {part['profile']:<12}Device {part['device']:>2}: (UUID: MIG-{part['uuid']})")
    return lines


def _version(machine: Machine) -> list[str]:
    driver, short = machine.driver, ".".join(machine.driver.split(".")[:2])
    if machine.driver_major >= 610:
        return [
            f"NVIDIA-SMI version  : {driver}",
            f"NVML version        : {short}",
            'DRIVER version      : Deprecated, see "KMD version" instead',
            'CUDA version        : Deprecated, see "CUDA UMD version" instead',
            f"KMD version         : {driver}",
            f"CUDA UMD version    : {machine.cuda}",
        ]
    return [
        f"NVIDIA-SMI version  : {driver}",
        f"NVML version        : {short}",
        f"DRIVER version      : {driver}",
        f"CUDA Version        : {machine.cuda}",
    ]


def _help_query(machine: Machine) -> list[str]:
    lines = ['List of valid properties to query for the switch "--query-gpu":']
    others: dict[str, list[str]] = {}
    for alias, name in field_list.ALIASES.items():
        others.setdefault(name, []).append(alias)
    for name, unit in field_list.known(machine.driver_major).items():
        spellings = [name, *others.get(name, [])]
        if name.startswith("clocks_event_reasons."):
            spellings.append(name.replace("clocks_event_reasons", "clocks_throttle_reasons"))
        lines += ["", " or ".join(f'"{spelling}"' for spelling in spellings), f"Simulated{', in ' + unit if unit else ''}."]
    return lines
