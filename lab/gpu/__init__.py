"""A simulated GPU machine for tests and for users without GPUs. It is a stand-in that lives in lab/; nothing in components/
knows it.

A *state directory* is the machine: `machine.json` (what is built in, compiled from a scenario), `faults.json` (what is
broken at the moment) and `kernel.log` (the driver's messages). The programs in `bin/` are the vendor's tools and exporters
over that directory; what they report is a function of the machine, its faults and the time, so nothing has to run between
two calls.

The functions below are what other rooms of the lab use. They import what they need when called: every run of the
simulated nvidia-smi imports this package, and there are thousands. pathlib and typing alone would take half of one.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers see it, that of typing
if TYPE_CHECKING:
    from pathlib import Path


def ensure(*, state: Path, bin_directory: Path, scenario: str = "h100x8") -> None:
    """The machine of `scenario` is in `state`, healthy, and its tools in `bin_directory`. An existing one keeps its
    GPUs, counters and kernel log and is repaired, unless it was made from another scenario or by another version of this
    package: then it is created again."""
    from lab.gpu.setup import ensure

    ensure(state=state, bin_directory=bin_directory, scenario=scenario)


def count(state: Path) -> int:
    """Number of installed GPUs, including lost ones."""
    from lab.gpu.machine import Machine

    return len(Machine.load(state).gpus)


def pci_address(state: Path, gpu: int) -> str:
    """As in kernel log lines: domain, bus and device, `0000:5d:00`."""
    from lab.gpu.machine import Machine

    return Machine.load(state).gpu(gpu).pci_kernel


def inject_xid(state: Path, *, code: int, gpu: int) -> list[str]:
    """Injects an XID now; returns the kernel log lines that the driver writes."""
    from lab.gpu.inject import inject_xid

    return inject_xid(state, code=code, gpu=gpu)


def clear(state: Path) -> None:
    """Makes every GPU healthy again; the kernel log is kept."""
    from lab.gpu.inject import clear

    clear(state)
