"""`nvidia-smi dmon`: one line per GPU and sample. Drivers before 535 print narrower columns without trailing spaces."""

from __future__ import annotations

import time

from lab.gpu.machine import Gpu, Machine
from lab.gpu.nvidia.answering import LOST, OK, Options, Refused, lost_message, select
from lab.gpu.nvidia.fields import clocks

# Letter of -s -> columns with unit.
_GROUPS = {
    "p": (("pwr", "W"), ("gtemp", "C"), ("mtemp", "C")),
    "u": (("sm", "%"), ("mem", "%"), ("enc", "%"), ("dec", "%"), ("jpg", "%"), ("ofa", "%")),
    "c": (("mclk", "MHz"), ("pclk", "MHz")),
    "v": (("pviol", "%"), ("tviol", "bool")),
    "m": (("fb", "MB"), ("bar1", "MB"), ("ccpm", "MB")),
    "e": (("sbecc", "errs"), ("dbecc", "errs"), ("pci", "errs")),
    "t": (("rxpci", "MB/s"), ("txpci", "MB/s")),
}
_HEADER_EVERY = 20  # samples


def run(machine: Machine, options: Options) -> int:
    ids = options.value("-i", "--id")
    chosen, lost = select(machine, ids)
    groups = options.value("-s", "--select") or "puc"
    count = int(options.value("-c", "--count") or 0)
    every_s = int(options.value("-d", "--delay") or 1)
    options.done()
    for letter in groups:
        if letter not in _GROUPS:
            raise Refused(f"Invalid selection: {letter}. Please run 'nvidia-smi dmon -h' for help.")
    if lost:
        print(lost_message(lost[0]))
        return LOST
    columns = [column for letter in groups for column in _GROUPS[letter]]
    sample = 0
    while True:
        if sample % _HEADER_EVERY == 0:
            print("\n".join(_header(columns, machine.driver_major)))
        print("\n".join(_row(gpu, columns) for gpu in chosen), flush=True)
        sample += 1
        if sample == count:
            return OK
        time.sleep(every_s)
        machine = Machine.load(machine.state)
        chosen, _ = select(machine, ids)


def _header(columns: list[tuple[str, str]], driver_major: int) -> list[str]:
    if driver_major < 535:
        return ["# gpu" + "".join(f"{name:>6}" for name, _ in columns), "# Idx" + "".join(f"{unit:>6}" for _, unit in columns)]
    return [
        "# gpu" + "".join(f"{name:>7}" for name, _ in columns) + " ",
        "# Idx" + "".join(f"{unit:>7}" for _, unit in columns) + " ",
    ]


def _row(gpu: Gpu, columns: list[tuple[str, str]]) -> str:
    values = _values(gpu)
    if gpu.machine.driver_major < 535:
        return f"{gpu.index:>5}" + "".join(f"{values[name]:>6}" for name, _ in columns)
    return f"{gpu.index:>5}" + "".join(f"{values[name]:>7}" for name, _ in columns) + " "


def _values(gpu: Gpu) -> dict[str, int | str]:
    now = gpu.now()
    sm, memory, _ = clocks(gpu, now)
    percent = ("-", "-") if gpu.mig else (round(100 * now.utilization), round(100 * now.memory_utilization))
    zero = "-" if gpu.mig else 0
    return {
        "pwr": int(now.power_w),
        "gtemp": now.temperature_c,
        "mtemp": "-" if now.memory_temperature_c is None else now.memory_temperature_c,
        "sm": percent[0],
        "mem": percent[1],
        "enc": zero,
        "dec": zero,
        "jpg": zero if gpu.has("media") else "-",
        "ofa": zero if gpu.has("media") else "-",
        "mclk": memory,
        "pclk": sm,
        "pviol": 100 if "hw_power_brake_slowdown" in gpu.faults["throttle"] else 0,
        "tviol": int("hw_thermal_slowdown" in gpu.faults["throttle"]),
        "fb": round((gpu.product["memory_mib"] - gpu.product["reserved_mib"]) * now.memory_used_ratio),
        "bar1": 2,
        "ccpm": 0,
        "sbecc": gpu.faults["ecc_corrected"],
        "dbecc": gpu.faults["ecc_uncorrected"],
        "pci": gpu.faults["pcie_replays"],
        "rxpci": now.pcie_rx_mb_s,
        "txpci": now.pcie_tx_mb_s,
    }
