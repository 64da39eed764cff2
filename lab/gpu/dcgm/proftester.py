"""Stand-in of dcgmproftester: the GPUs of the simulated machine show its load for as long as it runs.

Source: DCGM user guide, "Profiling Metrics", dcgmproftester (read November 2026). Of its options those that are used with it:
-t, -d, -i and --no-dcgm-validation, without which it wants a running host engine.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from lab.gpu import work
from lab.gpu.machine import STATE_VARIABLE, Machine, NoMachine, clock


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="dcgmproftester12", allow_abbrev=False)
    parser.add_argument("-t", "--fieldId", dest="test", type=int, default=1001)
    parser.add_argument("-d", "--duration", type=float, default=30.0)
    parser.add_argument("-i", "--gpuIds", dest="gpus", default="")
    parser.add_argument("--no-dcgm-validation", action="store_true")
    options = parser.parse_args(arguments)
    try:
        machine = Machine.load(os.environ.get(STATE_VARIABLE, ""))
        gpus = [int(each) for each in options.gpus.split(",") if each] or [gpu.index for gpu in machine.gpus if not gpu.lost]
        for index in gpus:
            machine.gpu(index)
    except NoMachine as error:
        print(error, file=sys.stderr)
        return 1
    if options.test not in work.TESTS:
        print(f"Error: field {options.test} is not supported; it has: {', '.join(map(str, work.TESTS))}", file=sys.stderr)
        return 1
    start_s = clock()
    run = {"test": options.test, "from_s": start_s, "until_s": start_s + options.duration}
    work.write(machine.state, [*work.read(machine.state), *({"gpu": index, **run} for index in gpus)])
    for index in gpus:
        print(f"Worker {index}:0[{options.test}]: running for {options.duration:g} s (simulated)", flush=True)
    time.sleep(options.duration)
    return 0
