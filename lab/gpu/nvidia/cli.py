"""Command line of the simulated nvidia-smi. What it does not know it refuses with the real one's message.

Messages go to stdout, as the real one's do. Exit codes: 2 wrong arguments, 6 no such GPU, 15 a GPU is lost.
Source: recorded outputs; NVML return codes.
"""

from __future__ import annotations

import os
import sys
import time

from lab.gpu.machine import STATE_VARIABLE, Gpu, Machine, NoMachine
from lab.gpu.nvidia import fields

OK, BAD_ARGUMENT, NOT_FOUND, DRIVER_NOT_LOADED, LOST = 0, 2, 6, 9, 15

HELP = """This is a simulated nvidia-smi of gpu-fleet's lab: a stand-in over simulated GPUs, no NVIDIA driver.

    nvidia-smi                                  the table
    nvidia-smi -L                               the GPUs and their UUIDs
    nvidia-smi --query-gpu=FIELD,... --format=csv[,noheader][,nounits]
    nvidia-smi --query-compute-apps=FIELD,... --format=csv[,noheader][,nounits]
    nvidia-smi --help-query-gpu                 the fields of this driver
    nvidia-smi -q [-x] [-d SECTION,...]         everything about a GPU
    nvidia-smi nvlink -s | -e | -gt d | -gt r | -g 0 (drivers before 470)
    nvidia-smi dmon [-s SELECTION] [-c COUNT]   monitoring, one line per GPU
    nvidia-smi topo -m                          the matrix of connections
    nvidia-smi --version
    -i GPU,...                                  only these: index, UUID or PCI bus id
"""


class Refused(Exception):
    """What the real one prints instead of an answer, and its exit code."""

    def __init__(self, text: str, code: int = BAD_ARGUMENT) -> None:
        super().__init__(text)
        self.code = code


def main(arguments: list[str]) -> int:
    state = os.environ.get(STATE_VARIABLE)
    if not state:
        print(
            f"simulated nvidia-smi: {STATE_VARIABLE} is not set; start it through a wrapper that `python -m lab.gpu init` makes"
        )
        return DRIVER_NOT_LOADED
    try:
        machine = Machine.load(state)
        return _run(machine, list(arguments))
    except NoMachine as missing:
        print(f"simulated nvidia-smi: {missing}", file=sys.stderr)
        print(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
            "Make sure that the latest NVIDIA driver is installed and running.\n"
        )
        return DRIVER_NOT_LOADED
    except Refused as refused:
        print(f"{refused}\n")
        return refused.code
    except BrokenPipeError:
        return 1


def _run(machine: Machine, arguments: list[str]) -> int:
    if arguments and arguments[0] in ("nvlink", "dmon", "topo"):
        return _subcommand(machine, arguments)
    if arguments == ["lab-nvml"]:
        from lab.gpu.nvidia import nvml

        return _print([nvml.document(machine)])
    options = _Options(arguments)
    if options.flag("-h", "--help"):
        print(HELP)
        return OK
    if options.flag("--version"):
        return _print(_version(machine))
    if options.flag("--help-query-gpu"):
        return _print(_help_query(machine))
    query, apps = options.value("--query-gpu"), options.value("--query-compute-apps")
    form = options.value("--format")
    chosen, missing = select(machine, options.value("-i", "--id"))
    if query is not None or apps is not None:
        styles = _csv_styles(form)
        options.done()
        rows = _query(machine, query, styles) if query is not None else _compute_apps(machine, apps or "", styles)
        return print_gpus(rows, chosen, missing)
    if options.flag("-L", "--list-gpus"):
        options.done()
        return print_gpus(_list, chosen, missing)
    if options.flag("-q", "--query"):
        from lab.gpu.nvidia import details

        xml, display = options.flag("-x", "--xml-format"), options.value("-d", "--display")
        options.done()
        text = details.xml(machine, chosen) if xml else details.text(machine, chosen, display)
        return _print_whole(text, missing)
    options.done()
    from lab.gpu.nvidia import table

    return _print_whole(table.render(machine, chosen), missing)


def _subcommand(machine: Machine, arguments: list[str]) -> int:
    name, rest = arguments[0], arguments[1:]
    if name == "nvlink":
        from lab.gpu.nvidia import nvlink as module
    elif name == "dmon":
        from lab.gpu.nvidia import dmon as module
    else:
        from lab.gpu.nvidia import topo as module
    return module.run(machine, _Options(rest))


class _Options:
    """Arguments taken one by one; what is left at the end is not known."""

    def __init__(self, arguments: list[str]) -> None:
        self.left = arguments

    def flag(self, *names: str) -> bool:
        for name in names:
            if name in self.left:
                self.left.remove(name)
                return True
        return False

    def value(self, *names: str) -> str | None:
        """`--name=value`, `--name value`, `-n value`."""
        for place, argument in enumerate(self.left):
            name, equals, value = argument.partition("=")
            if name not in names:
                continue
            if equals and name.startswith("--"):
                del self.left[place]
                return value
            if place + 1 == len(self.left):
                raise Refused(f"ERROR: Option {argument} is missing its value. Please run 'nvidia-smi -h' for help.")
            value = self.left[place + 1]
            del self.left[place : place + 2]
            return value
        return None

    def done(self) -> None:
        if self.left:
            raise Refused(f"ERROR: Option {self.left[0]} is not recognized. Please run 'nvidia-smi -h' for help.")


def select(machine: Machine, ids: str | None) -> tuple[list[Gpu], list[Gpu]]:
    """The GPUs asked for, and those among them that are lost."""
    gpus = machine.gpus
    if ids is not None:
        gpus = []
        for wanted in ids.split(","):
            found = [gpu for gpu in machine.gpus if wanted.lower() in _names(gpu)]
            if not found:
                raise Refused("No devices were found", NOT_FOUND)
            gpus += found
    return [gpu for gpu in gpus if not gpu.lost], [gpu for gpu in gpus if gpu.lost]


def _names(gpu: Gpu) -> set[str]:
    return {
        str(gpu.index),
        f"gpu-{gpu.uuid}",
        gpu.serial,
        fields.bus_id(gpu).lower(),
        f"{gpu.pci_kernel}.0",
        f"{gpu.bus:02x}:{gpu.device:02x}.0",
    }


def lost_message(gpu: Gpu) -> str:
    address = f"0000:{gpu.bus:02X}:{gpu.device:02X}.0"
    name = f"GPU{gpu.index}: {address}" if gpu.machine.driver_major >= 535 else f"GPU {address}"
    return f"Unable to determine the device handle for {name}: GPU is lost.  Reboot the system to recover this GPU"


def _print(lines: list[str]) -> int:
    print("\n".join(lines))
    return OK


def print_gpus(rows, chosen: list[Gpu], lost: list[Gpu]) -> int:
    """Line by line in the order of the GPUs: a lost one has its error where its row would be, the others still answer."""
    lines = list(rows(None))
    for gpu in sorted([*chosen, *lost], key=lambda gpu: gpu.index):
        lines += [lost_message(gpu)] if gpu.lost else rows(gpu)
    if lines:
        print("\n".join(lines))
    return LOST if lost else OK


def _print_whole(text: str, lost: list[Gpu]) -> int:
    """The table and -q give up at the first lost GPU."""
    if lost:
        print(lost_message(lost[0]))
        return LOST
    print(text)
    return OK


def _list(gpu: Gpu | None) -> list[str]:
    if gpu is None:
        return []
    lines = [f"GPU {gpu.index}: {gpu.product['name']} (UUID: GPU-{gpu.uuid})"]
    for part in gpu.mig:
        lines.append(f"  MIG {part['profile']:<12}Device {part['device']:>2}: (UUID: MIG-{part['uuid']})")
    return lines


def _csv_styles(form: str | None) -> set[str]:
    if form is None:
        raise Refused("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.")
    styles = {style.strip() for style in form.split(",")}
    if "csv" not in styles or styles - {"csv", "noheader", "nounits"}:
        raise Refused(f"\"{form}\" is not a valid format. Please run 'nvidia-smi -h' for help.")
    return styles


def _query(machine: Machine, query: str, styles: set[str]):
    known = fields.known(machine.driver_major)
    names = [fields.own_name(name.strip(), machine.driver_major) for name in query.split(",")]
    for asked, name in zip(query.split(","), names, strict=True):
        if name not in known:
            raise Refused(f'Field "{asked.strip()}" is not a valid field to query.')

    def row(gpu: Gpu | None) -> list[str]:
        if gpu is None:
            return [] if "noheader" in styles else [", ".join(fields.header(name, known[name]) for name in names)]
        answers = fields.Answers(gpu)
        return [", ".join(_cell(answers[name], known[name], styles) for name in names)]

    return row


def _cell(value: str | None, unit: str, styles: set[str]) -> str:
    if value is None:
        return "[N/A]"
    return f"{value} {unit}" if unit and "nounits" not in styles and value[:1] != "[" else value


_APP_FIELDS = {
    "timestamp": "",
    "gpu_name": "",
    "gpu_bus_id": "",
    "gpu_serial": "",
    "gpu_uuid": "",
    "pid": "",
    "process_name": "",
    "name": "",
    "used_gpu_memory": "MiB",
    "used_memory": "MiB",
}


def _compute_apps(machine: Machine, query: str, styles: set[str]):
    names = [name.strip() for name in query.split(",")]
    for name in names:
        if name not in _APP_FIELDS:
            raise Refused(f'Field "{name}" is not a valid field to query.')
    own = {"name": "process_name", "used_memory": "used_gpu_memory"}

    def rows(gpu: Gpu | None) -> list[str]:
        if gpu is None:
            return (
                []
                if "noheader" in styles
                else [", ".join(fields.header(own.get(name, name), _APP_FIELDS[name]) for name in names)]
            )
        answers = fields.Answers(gpu)
        lines = []
        for pid, process, used in processes(gpu, answers):
            values = {
                "timestamp": answers["timestamp"],
                "gpu_name": answers["name"],
                "gpu_bus_id": answers["pci.bus_id"],
                "gpu_serial": answers["serial"],
                "gpu_uuid": answers["uuid"],
                "pid": str(pid),
                "process_name": process,
                "used_gpu_memory": str(used),
            }
            lines.append(", ".join(_cell(values[own.get(name, name)], _APP_FIELDS[name], styles) for name in names))
        return lines

    return rows


def processes(gpu: Gpu, answers: fields.Answers) -> list[tuple[int, str, int]]:
    """(pid, name, MiB) of what runs on the GPU."""
    if not answers.reading.busy:
        return []
    name = {"training": "/usr/bin/python3", "inference": "/opt/vllm/bin/vllm", "ramp": "/usr/bin/python3"}.get(
        gpu.load, "./hung_kernel"
    )
    return [(20_000 + 17 * gpu.index, name, max(1, int(answers["memory.used"] or 0) - 6))]


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
    for alias, name in fields.ALIASES.items():
        others.setdefault(name, []).append(alias)
    for name, unit in fields.known(machine.driver_major).items():
        spellings = [name, *others.get(name, [])]
        if name.startswith("clocks_event_reasons."):
            spellings.append(name.replace("clocks_event_reasons", "clocks_throttle_reasons"))
        lines += ["", " or ".join(f'"{spelling}"' for spelling in spellings), f"Simulated{', in ' + unit if unit else ''}."]
    return lines


def watch(machine: Machine, every_s: float):
    """The machine again and again, for subcommands that print until they are stopped."""
    while True:
        yield machine
        time.sleep(every_s)
        machine = Machine.load(machine.state)
