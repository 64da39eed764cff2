"""`nvidia-smi nvlink`: state, errors and counters of every link, in the wording of the driver branch."""

from __future__ import annotations

from lab.gpu import TYPE_CHECKING
from lab.gpu.machine import Gpu, Machine
from lab.gpu.nvidia.answering import OK, Options, Refused, print_gpus, select

if TYPE_CHECKING:
    from collections.abc import Callable

    from lab.gpu.nvidia.answering import Rows

    Lines = Callable[[Gpu, int], list[str]]

_SAYS_WHY_SINCE = 560  # seen: 590; 535, 550 and 555 leave out a GPU without NVLink
_THROUGHPUT_SINCE = 470  # before: `-g 0`, the counters that `-sc` sets up


def run(machine: Machine, options: Options) -> int:
    chosen, lost = select(machine, options.value("-i", "--id"))
    if options.value("-sc", "--setcontrol") is not None:
        options.done()
        return OK
    counters, kind = options.value("-g", "--getcounters"), options.value("-gt", "--getthroughput")
    status = options.flag("-s", "--status")
    errors = options.flag("-e", "--errorcounters")
    options.done()
    if counters is not None and machine.driver_major < _THROUGHPUT_SINCE:
        return print_gpus(_per_link(_counters), chosen, lost)
    if kind is not None and machine.driver_major >= _THROUGHPUT_SINCE:
        if kind not in ("d", "r"):
            raise Refused(f"Invalid throughput type: {kind}. Please run 'nvidia-smi nvlink -h' for help.")
        throughput = _throughput("Data", 1.0) if kind == "d" else _throughput("Raw", 1.39)
        return print_gpus(_per_link(throughput, None), chosen, lost)
    if status:
        return print_gpus(_per_link(_status), chosen, lost)
    if errors:
        return print_gpus(_per_link(_errors, "errors"), chosen, lost)
    option = "-g" if counters is not None else "-gt" if kind is not None else ""
    raise Refused(f"ERROR: Option {option} is not recognized. Please run 'nvidia-smi nvlink -h' for help.")


def _per_link(lines: Lines, what: str | None = "information") -> Rows:
    """`what`: the word for it in the line about a GPU whose links are all down; None where there is no such line."""

    def rows(gpu: Gpu | None) -> list[str]:
        if gpu is None:
            return []
        head = f"GPU {gpu.index}: {gpu.product['name']} (UUID: GPU-{gpu.uuid})"
        if (gpu.mig or not gpu.links) and gpu.machine.driver_major < _SAYS_WHY_SINCE:
            return []
        if gpu.mig:
            return [head, "Nvlink queries are not supported for Devices in MIG mode"]
        if not gpu.links:
            return [head, "Device does not have or support Nvlink"]
        if what and len(gpu.faults["links_down"]) >= gpu.links:
            return [head, _all_inactive(gpu.machine.driver_major, what)]
        return [head, *(line for link in range(gpu.links) for line in lines(gpu, link))]

    return rows


def _all_inactive(driver_major: int, what: str) -> str:
    name, state = "Nvlink" if driver_major >= 610 else "NVLink", "inActive" if driver_major >= 535 else "inactive"
    return f"NVML: Unable to retrieve {name} {what} as all links are {state}"


def _down(gpu: Gpu, link: int) -> bool:
    return link in gpu.faults["links_down"]


def _status(gpu: Gpu, link: int) -> list[str]:
    speed = "<inactive>" if _down(gpu, link) else f"{gpu.product['nvlink']['gbytes_per_s']} GB/s"
    return [f"\t Link {link}: {speed}"]


def _errors(gpu: Gpu, link: int) -> list[str]:
    if _down(gpu, link):
        return []
    counts = gpu.faults["link_errors"].get(str(link), {"replay": 0, "recovery": 0, "crc": 0})
    names = (("Replay", "replay"), ("Recovery", "recovery"), ("CRC", "crc"))
    return [*(f"\t Link {link}: {name} Errors: {counts[key]}" for name, key in names), ""]


def _throughput(name: str, overhead: float) -> Lines:
    """Raw counts headers and protocol too; the factor is that of a recorded training run."""

    def lines(gpu: Gpu, link: int) -> list[str]:
        if _down(gpu, link):
            return []
        tx, rx = gpu.now().link_kib[link]
        return [f"\t Link {link}: {name} Tx: {int(tx * overhead)} KiB", f"\t Link {link}: {name} Rx: {int(rx * overhead)} KiB"]

    return lines


def _counters(gpu: Gpu, link: int) -> list[str]:
    tx, rx = gpu.now().link_kib[link]
    return [f"\t Link {link}: Rx0: {rx} KBytes, Tx0: {tx} KBytes"]
