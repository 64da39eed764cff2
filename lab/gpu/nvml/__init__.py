"""The real nvidia-smi over a simulated machine: NVIDIA's program with a driver library of the lab (nvml.c) that reads a text.

The wrapper in a machine's bin directory writes that text as of now and becomes the real program. Light: it is every call's start.
"""

from __future__ import annotations

import os
import time

from lab.gpu.machine import STATE_VARIABLE, Machine, NoMachine

PROGRAM_VARIABLE = "GPU_FLEET_LAB_NVIDIA_SMI"  # the real one; without it the simulated nvidia-smi runs
LIBRARY_VARIABLE = "GPU_FLEET_LAB_NVML_LIBRARY"  # the directory of libnvidia-ml.so.1
TEXT_VARIABLE = "GPU_FLEET_LAB_NVML"  # what nvml.c reads


def become(program: str, arguments: list[str]) -> None:
    """Never returns."""
    environment = {**os.environ, "LD_LIBRARY_PATH": os.environ[LIBRARY_VARIABLE]}
    try:
        machine = Machine.load(os.environ[STATE_VARIABLE])
    except NoMachine:
        pass  # as without a driver
    else:
        from lab.gpu.nvml import state

        time.sleep(machine.stall_s)
        text = os.memfd_create("nvml", flags=0)  # which the real one inherits
        os.write(text, state.text(machine).encode())
        environment[TEXT_VARIABLE] = f"/proc/self/fd/{text}"
    os.execve(program, ["nvidia-smi", *arguments], environment)  # noqa: S606
