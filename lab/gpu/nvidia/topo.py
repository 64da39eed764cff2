"""`nvidia-smi topo -m`: how the GPUs reach each other. Two sockets; NVLink between all GPUs where the product has it."""

from __future__ import annotations

from lab.gpu.machine import Gpu, Machine
from lab.gpu.nvidia.answering import LOST, OK, Options, Refused, lost_message, select

_UNDERLINED, _PLAIN = "\x1b[4m", "\x1b[0m"  # the real one writes them to files too
_CORES_PER_SOCKET = 52

_LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks"""


def run(machine: Machine, options: Options) -> int:
    chosen, lost = select(machine, options.value("-i", "--id"))
    if not options.flag("-m", "--matrix"):
        raise Refused("Invalid combination of input arguments. Please run 'nvidia-smi topo -h' for help.")
    options.done()
    if lost:
        print(lost_message(lost[0]))
        return LOST
    names = "\t".join(f"GPU{gpu.index}" for gpu in chosen)
    lines = [f"\t{_UNDERLINED}{names}\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID{_PLAIN}"]
    lines += [_row(gpu, chosen) for gpu in chosen]
    print("\n".join([*lines, _LEGEND]))
    return OK


def _row(gpu: Gpu, gpus: list[Gpu]) -> str:
    node = _node(gpu)
    first = node * _CORES_PER_SOCKET
    reach = "\t".join(" X " if other is gpu else _connection(gpu, other) for other in gpus)
    return f"GPU{gpu.index}\t{reach}\t{first}-{first + _CORES_PER_SOCKET - 1}\t{node}\t\tN/A"


def _connection(gpu: Gpu, other: Gpu) -> str:
    up = gpu.links - len(gpu.faults["links_down"])
    if gpu.links and not gpu.mig and up:
        return f"NV{up}"
    return "NODE" if _node(gpu) == _node(other) else "SYS"


def _node(gpu: Gpu) -> int:
    return 0 if gpu.index < max(1, len(gpu.machine.gpus) // 2) else 1
