"""`nvidia-smi dmon -s t`: PCIe traffic, one line per GPU and sample. Drivers before 535 print narrower columns without trailing
spaces."""

from __future__ import annotations

import time

from lab.gpu.machine import Machine
from lab.gpu.nvidia.answering import LOST, OK, Options, Refused, lost_message, select

_HEADER_EVERY = 20  # samples


def run(machine: Machine, options: Options) -> int:
    ids = options.value("-i", "--id")
    chosen, lost = select(machine, ids)
    groups = options.value("-s", "--select")
    count = int(options.value("-c", "--count") or 0)
    every_s = int(options.value("-d", "--delay") or 1)
    options.done()
    if groups != "t":
        raise Refused(f"Invalid selection: {groups}. The lab's nvidia-smi has `dmon -s t` alone.")
    if lost:
        print(lost_message(lost[0]))
        return LOST
    width, end = (6, "") if machine.driver_major < 535 else (7, " ")
    sample = 0
    while True:
        if sample % _HEADER_EVERY == 0:
            print(f"# gpu{'rxpci':>{width}}{'txpci':>{width}}{end}\n# Idx{'MB/s':>{width}}{'MB/s':>{width}}{end}")
        for gpu in chosen:
            now = gpu.now()
            print(f"{gpu.index:>5}{now.pcie_rx_mb_s:>{width}}{now.pcie_tx_mb_s:>{width}}{end}", flush=True)
        sample += 1
        if sample == count:
            return OK
        time.sleep(every_s)
        machine = Machine.load(machine.state)
        chosen, _ = select(machine, ids)
