"""Injects faults into a simulated GPU.

Every function writes the kernel lines that the real driver would write, changes what the tools report from now on, and
returns the kernel lines. XIDs with lasting damage cause it: after 79 the GPU is lost, after 48 it counts an uncorrected
error, after 64 its remapping has failed, and so on; `clear` repairs everything at once, like a reboot.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.gpu import faults, kernel
from lab.gpu.machine import KERNEL_LOG, Gpu, Machine

HOT_C = 93  # above the slowdown temperature of every simulated product


class CannotInject(ValueError):
    """The machine does not have it; the text lists what it has."""


@contextmanager
def _changing(state: Path) -> Iterator[dict]:
    """The faults, to be modified in place; written when the block ends without an error."""
    with (state / "faults.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        now = faults.read(os.fspath(state))
        yield now
        partial = state / f"{faults.FILE}.new"
        partial.write_text(json.dumps(now, indent=1, sort_keys=True), encoding="utf-8")
        partial.replace(state / faults.FILE)


def inject_xid(state: Path, *, code: int, gpu: int, link: int = 6) -> list[str]:
    """XID `code` on one GPU, with the 154 line that this driver adds to it."""
    machine = Machine.load(state)
    if machine.vendor != "nvidia":
        raise CannotInject(f"XIDs are NVIDIA's; this machine ({machine.scenario}) has AMD GPUs: use `inject ras`")
    target = machine.gpu(gpu)
    lines = kernel.xid_lines(
        code,
        pci=target.pci_kernel,
        gpu=gpu,
        link=link,
        pid=20_000 + 17 * gpu,
        process="python3",
        driver_major=machine.driver_major,
    )
    with _changing(state) as now:
        record = faults.record(now, gpu)
        now["xids"].append({"gpu": gpu, "code": code, "at": machine.at_s})
        _damage(record, code, link)
        action = kernel.recovery_action(code, machine.driver_major)
        if action and action != record["recovery_action"]:
            lines.append(kernel.recovery_line(pci=target.pci_kernel, before=record["recovery_action"], after=action))
            record["recovery_action"] = action
            now["xids"].append({"gpu": gpu, "code": 154, "at": machine.at_s})
    return _log(machine, lines)


def see_xids(state: Path, xids: list[tuple[int, int]]) -> None:
    """(GPU, code): events that NVML reports, without a line and without damage."""
    at_s = Machine.load(state).at_s
    with _changing(state) as now:
        now["xids"] += [{"gpu": gpu, "code": code, "at": at_s} for gpu, code in xids]


def _damage(record: dict, code: int, link: int) -> None:
    if code == 79:
        record["lost"] = True
    elif code in (48, 95, 140, 171):
        record["ecc_uncorrected"] += 1
    elif code == 94:
        record["ecc_uncorrected"] += 1
        record["remap_pending"] = True
        record["remapped_uncorrectable"] += 1
    elif code == 63:
        record["remap_pending"] = True
        record["remapped_uncorrectable"] += 1
        record["retired_dbe"] += 1
        record["retire_pending"] = True
    elif code == 64:
        record["remap_failed"] = True
    elif code == 92:
        record["ecc_corrected"] += 64
    elif code in (74, *range(144, 151)):
        record["links_down"] = sorted({*record["links_down"], link})
        _link_errors(record, link)["recovery"] += 1
    elif code in (119, 120):
        record["hang"] = True


def inject_sxid(state: Path, *, code: int, switch: int = 0, link: int = 28) -> list[str]:
    machine = Machine.load(state)
    if not 0 <= switch < len(machine.nvswitches):
        has = f"switches 0 to {len(machine.nvswitches) - 1}" if machine.nvswitches else "no NVSwitch"
        raise CannotInject(f"switch {switch}: this machine ({machine.scenario}) has {has}")
    if code not in kernel.SXID_CODES:
        raise CannotInject(f"SXid {code}: the lab knows {', '.join(map(str, kernel.SXID_CODES))}")
    return _log(machine, kernel.sxid_lines(code, switch=switch, pci=machine.nvswitches[switch], link=link))


def stall_adapter(state: Path, *, pci: str = "0000:18:00.0") -> list[str]:
    """A ConnectX adapter resets a transmit queue that timed out. Only its kernel line: the lab has no adapters."""
    return _log(Machine.load(state), [f"mlx5_core {pci} eth2: TX timeout detected"])


def inject_ecc(state: Path, *, gpu: int, corrected: int = 0, uncorrected: int = 0) -> list[str]:
    """Errors in the DRAM. Uncorrected ones come with their XID 48 on NVIDIA."""
    machine = Machine.load(state)
    machine.gpu(gpu)
    with _changing(state) as now:
        record = faults.record(now, gpu)
        record["ecc_corrected"] += corrected
        record["ecc_uncorrected"] += uncorrected
    if machine.vendor == "amd":
        return _log(machine, _ras_lines(machine.gpu(gpu), corrected, uncorrected))
    if not uncorrected:
        return []
    with _changing(state) as now:
        faults.record(now, gpu)["ecc_uncorrected"] -= 1  # the XID below counts one itself
    return inject_xid(state, code=48, gpu=gpu)


def _ras_lines(gpu: Gpu, corrected: int, uncorrected: int) -> list[str]:
    """Source: recorded amdgpu lines (ROCm issue 4021, node-scraper's tests)."""
    start = f"amdgpu {gpu.pci_kernel}.0: amdgpu: "
    counts = (("correctable", corrected), ("uncorrectable", uncorrected))
    return [f"{start}{count} {kind} hardware errors detected in umc block" for kind, count in counts if count]


def make_hot(state: Path, *, gpu: int, temperature_c: int = HOT_C) -> list[str]:
    """Pinned at a temperature; above the product's limit the hardware slows the GPU down."""
    machine = Machine.load(state)
    limit = machine.gpu(gpu).product["temperature_c"].get("limit", 100)
    with _changing(state) as now:
        faults.record(now, gpu)["temperature_c"] = temperature_c
        if temperature_c > limit:
            for reason in ("hw_slowdown", "hw_thermal_slowdown"):
                faults.record(now, gpu)["throttle"].setdefault(reason, machine.at_s)
    return []


def throttle(state: Path, *, gpu: int, reason: str) -> list[str]:
    machine = Machine.load(state)
    machine.gpu(gpu)
    if reason not in faults.THROTTLES:
        raise CannotInject(f"throttle reason {reason!r}; one of {', '.join(faults.THROTTLES)}")
    with _changing(state) as now:
        faults.record(now, gpu)["throttle"].setdefault(reason, machine.at_s)
    return []


def lose(state: Path, *, gpu: int) -> list[str]:
    """Lost without an XID, only with the three lines of a driver that cannot reach the card. For an XID inject 79."""
    machine = Machine.load(state)
    address = f"{machine.gpu(gpu).pci_kernel}.0"
    with _changing(state) as now:
        faults.record(now, gpu)["lost"] = True
    if machine.vendor == "amd":
        return _log(machine, [f"amdgpu {address}: amdgpu: device lost from bus!"])
    return _log(
        machine,
        [
            f"NVRM: The NVIDIA GPU {address}",
            "NVRM: (PCI ID: 10de:2330) installed in this system has",
            "NVRM: fallen off the bus and is not responding to commands.",
        ],
    )


def remap_row(state: Path, *, gpu: int, failed: bool = False) -> list[str]:
    return inject_xid(state, code=64 if failed else 63, gpu=gpu)


def take_link_down(state: Path, *, gpu: int, link: int) -> list[str]:
    """One NVLink inactive, with the XID of the generation (74)."""
    links = Machine.load(state).gpu(gpu).links
    if not 0 <= link < links:
        raise CannotInject(f"link {link}: GPU {gpu} has {f'links 0 to {links - 1}' if links else 'no NVLink'}")
    return inject_xid(state, code=74, gpu=gpu, link=link)


def add_link_errors(state: Path, *, gpu: int, link: int, replay: int = 0, crc: int = 0) -> list[str]:
    Machine.load(state).gpu(gpu)
    with _changing(state) as now:
        errors = _link_errors(faults.record(now, gpu), link)
        errors["replay"] += replay
        errors["crc"] += crc
    return []


def hang(state: Path, *, gpu: int) -> list[str]:
    """A kernel that never ends: 100 % utilization, little power, no traffic."""
    Machine.load(state).gpu(gpu)
    with _changing(state) as now:
        faults.record(now, gpu)["hang"] = True
    return []


def answer(state: Path, *, gpu: int, key: str, value: str) -> list[str]:
    """What the driver says of a GPU to the real nvidia-smi: a key of lab/gpu/nvml/nvml.c, and a value or "!ERROR"."""
    Machine.load(state).gpu(gpu)
    with _changing(state) as now:
        faults.record(now, gpu).setdefault("nvml", {})[key] = value
    return []


def add_pcie_replays(state: Path, *, gpu: int, count: int) -> list[str]:
    Machine.load(state).gpu(gpu)
    with _changing(state) as now:
        faults.record(now, gpu)["pcie_replays"] += count
    return []


def break_driver(state: Path, *, problem: str) -> list[str]:
    """The tools answer as they do without the kernel module, or after an upgrade under a loaded one. NVIDIA only."""
    if problem not in faults.DRIVER_PROBLEMS:
        raise CannotInject(f"driver problem {problem!r}; one of {', '.join(faults.DRIVER_PROBLEMS)}")
    Machine.load(state)
    with _changing(state) as now:
        now["driver"] = problem
    return []


def stall(state: Path, *, seconds: float) -> list[str]:
    """Delays every response of the driver, as with a GSP that does not respond."""
    Machine.load(state)
    with _changing(state) as now:
        now["stall_s"] = seconds
    return []


def clear(state: Path) -> list[str]:
    """Makes every GPU healthy and forgets all XIDs; the kernel log is kept."""
    machine = Machine.load(state)
    with _changing(state) as now:
        now.update(faults.none())
    return _log(
        machine,
        ["NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  " + machine.driver] if machine.vendor == "nvidia" else [],
    )


def _link_errors(record: dict, link: int) -> dict:
    return record["link_errors"].setdefault(str(link), {"replay": 0, "recovery": 0, "crc": 0})


def _log(machine: Machine, lines: list[str]) -> list[str]:
    """Appended in one write: a reader that follows the file never sees half a line."""
    stamped = [kernel.stamp(machine.at_s - machine.booted_s, line) for line in lines]
    if stamped:
        with (Path(machine.state) / KERNEL_LOG).open("a", encoding="utf-8") as log:
            log.write("".join(f"{line}\n" for line in stamped))
    return stamped
