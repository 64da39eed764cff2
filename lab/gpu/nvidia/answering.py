"""What every subcommand of the simulated nvidia-smi shares: options taken one by one, the GPUs asked for, refusals in the
words of the real one, and what a lost GPU looks like.

Messages go to stdout, as the real one's do. Source: recorded outputs; NVML return codes.
"""

from __future__ import annotations

from lab.gpu import TYPE_CHECKING
from lab.gpu.machine import Gpu, Machine
from lab.gpu.nvidia.fields import Answers, bus_id

# Exit codes: wrong arguments, no such GPU, no driver, a lost GPU, library and module of different versions, an unknown option.
OK, BAD_ARGUMENT, NOT_FOUND, DRIVER_NOT_LOADED, LOST, VERSION_MISMATCH, BAD_OPTION = 0, 2, 6, 9, 15, 18, 255
NOT_LOADED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running."
)

if TYPE_CHECKING:
    from collections.abc import Callable

    # The lines of one GPU, or with None those above all GPUs.
    Rows = Callable[[Gpu | None], list[str]]


class Refused(Exception):
    """An error message of the real one, and its exit code."""

    def __init__(self, text: str, code: int = BAD_ARGUMENT) -> None:
        super().__init__(text)
        self.code = code


class Options:
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
                raise Refused(f"ERROR: Option {argument} is missing its value. Please run 'nvidia-smi -h' for help.", BAD_OPTION)
            value = self.left[place + 1]
            del self.left[place : place + 2]
            return value
        return None

    def done(self) -> None:
        if self.left:
            raise Refused(f"ERROR: Option {self.left[0]} is not recognized. Please run 'nvidia-smi -h'.", BAD_OPTION)


def select(machine: Machine, ids: str | None) -> tuple[list[Gpu], list[Gpu]]:
    """The selected GPUs, and those of them that are lost."""
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
        bus_id(gpu).lower(),
        f"{gpu.pci_kernel}.0",
        f"{gpu.bus:02x}:{gpu.device:02x}.0",
    }


_ONE_LOST_ENDS_ALL_BEFORE = 560  # seen: 535, 550 and 555; 590 has the line among the rows


def lost_message(gpu: Gpu) -> str:
    address, major = f"0000:{gpu.bus:02X}:{gpu.device:02X}.0", gpu.machine.driver_major
    name = f"GPU {address}" if major < 535 else f"GPU{address}" if major < 560 else f"GPU{gpu.index}: {address}"
    return f"Unable to determine the device handle for {name}: GPU is lost.  Reboot the system to recover this GPU"


def print_gpus(rows: Rows, chosen: list[Gpu], lost: list[Gpu]) -> int:
    """Line by line in the order of the GPUs: a lost one has its error where its row would be, the others still answer. Before 560
    they do not, unless only they are asked for."""
    if lost and lost[0].machine.driver_major < _ONE_LOST_ENDS_ALL_BEFORE:
        return print_whole("", lost)
    lines = list(rows(None))
    for gpu in sorted([*chosen, *lost], key=lambda gpu: gpu.index):
        lines += [lost_message(gpu)] if gpu.lost else rows(gpu)
    if lines:
        print("\n".join(lines))
    return LOST if lost else OK


def print_whole(text: str, lost: list[Gpu]) -> int:
    """The table, -q and dmon stop at the first lost GPU."""
    if lost:
        print(lost_message(lost[0]))
        return LOST
    print(text)
    return OK


def processes(gpu: Gpu, answers: Answers) -> list[tuple[int, str, int]]:
    """(pid, name, MiB) of the processes on the GPU."""
    if not answers.reading.busy:
        return []
    name = {"training": "/usr/bin/python3", "inference": "/opt/vllm/bin/vllm", "ramp": "/usr/bin/python3"}.get(
        gpu.load, "./hung_kernel"
    )
    return [(20_000 + 17 * gpu.index, name, max(1, int(answers["memory.used"] or 0) - 6))]
