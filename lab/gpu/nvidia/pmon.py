"""`nvidia-smi pmon`: one line per process and sample."""

from __future__ import annotations

import time

from lab.gpu.machine import Gpu, Machine
from lab.gpu.nvidia.answering import LOST, OK, Options, lost_message, processes, select
from lab.gpu.nvidia.fields import Answers

_COLUMNS = (("sm", "%"), ("mem", "%"), ("enc", "%"), ("dec", "%"), ("jpg", "%"), ("ofa", "%"))


def run(machine: Machine, options: Options) -> int:
    ids = options.value("-i", "--id")
    chosen, lost = select(machine, ids)
    count = int(options.value("-c", "--count") or 0)
    every_s = int(options.value("-d", "--delay") or 1)
    options.done()
    if lost:
        print(lost_message(lost[0]))
        return LOST
    print("# gpu         pid   type" + "".join(f"{name:>7}" for name, _ in _COLUMNS) + "    command ")
    print("# Idx           #    C/G" + "".join(f"{unit:>7}" for _, unit in _COLUMNS) + "    name ")
    sample = 0
    while True:
        print("\n".join(line for gpu in chosen for line in _lines(gpu)), flush=True)
        sample += 1
        if sample == count:
            return OK
        time.sleep(every_s)
        machine = Machine.load(machine.state)
        chosen, _ = select(machine, ids)


def _lines(gpu: Gpu) -> list[str]:
    answers = Answers(gpu)
    nothing = "".join(f"{'-':>7}" for _ in _COLUMNS)
    running = processes(gpu, answers)
    if not running:
        return [f"{gpu.index:>5}{'-':>11}{'-':>6}{nothing}    {'-':<15}"]
    lines = []
    for pid, name, _ in running:
        busy = nothing
        if not gpu.mig:
            percents = (round(100 * answers.reading.utilization), round(100 * answers.reading.memory_utilization))
            busy = "".join(f"{value:>7}" for value in (*percents, "-", "-", "-", "-"))
        lines.append(f"{gpu.index:>5}{pid:>11}{'C':>6}{busy}    {name.rsplit('/', 1)[-1][:14]:<15}")
    return lines
