"""The simulated machine as its tools see it: the installed GPUs with the current faults, at one point in time.

`Gpu.now()` is the one place that turns load and faults into readings; nvidia-smi, rocm-smi, amd-smi and the exporters only
print them. Standard library only and light: nvidia-smi runs it on every call. Not done here: any vendor's format.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from lab.gpu import faults as faults_
from lab.gpu import load, work

MACHINE_FILE = "machine.json"
KERNEL_LOG = "kernel.log"
STATE_VARIABLE = "GPU_FLEET_LAB_STATE"
CLOCK_VARIABLE = "GPU_FLEET_LAB_TIME"  # unix seconds; freezes the machine, so that fixtures come out the same every time


class NoMachine(Exception):
    """No simulated machine was found; the text says how to create one."""


def clock() -> float:
    return float(os.environ.get(CLOCK_VARIABLE) or time.time())


class Machine:
    """`gpus` holds lost ones too: the tools differ in how they show them."""

    def __init__(self, state: str | os.PathLike[str], text: dict, faults: dict, at_s: float, given: list[work.Work]) -> None:
        self.state = os.fspath(state)
        self.vendor = text["vendor"]
        self.scenario = text["scenario"]
        self.driver = text["driver"]
        self.cuda = text["cuda"]
        self.rocm = text["rocm"]
        self.hostname = text["hostname"]
        self.seed = text["seed"]
        self.booted_s = text["booted_s"]
        self.at_s = at_s
        self.xids = faults["xids"]
        self.driver_problem = faults["driver"]
        self.stall_s = faults["stall_s"]
        self.nvswitches = [f"0000:{bus:02x}:{device:02x}.0" for bus, device in text["nvswitches"]]
        self.gpus = [
            Gpu(self, gpu, faults_.of_gpu(faults, gpu["index"]), [each for each in given if each["gpu"] == gpu["index"]])
            for gpu in text["gpus"]
        ]

    @classmethod
    def load(cls, state: str | os.PathLike[str]) -> Machine:
        try:
            text = json.loads(Path(state, MACHINE_FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise NoMachine(f"no simulated machine in {state}: make one with lab.gpu.ensure") from None
        return cls(state, text, faults_.read(os.fspath(state)), clock(), work.read(os.fspath(state)))

    @property
    def driver_major(self) -> int:
        return int(self.driver.split(".")[0])

    def gpu(self, index: int) -> Gpu:
        if not 0 <= index < len(self.gpus):
            raise NoMachine(f"GPU {index}: this machine has GPUs 0 to {len(self.gpus) - 1}")
        return self.gpus[index]


class Gpu:
    def __init__(self, machine: Machine, text: dict, faults: dict, given: list[work.Work]) -> None:
        self.machine = machine
        self.work = given
        self.index = text["index"]
        self.uuid = text["uuid"]  # without the vendor's prefix
        self.serial = text["serial"]
        self.bus, self.device = text["pci"]
        self.load = text["load"]
        self.mig = text["mig"]
        self.product = text["product"]
        self.faults = faults
        self._now: Reading | None = None

    @property
    def pci_kernel(self) -> str:
        return f"0000:{self.bus:02x}:{self.device:02x}"

    @property
    def lost(self) -> bool:
        return self.faults["lost"]

    def has(self, feature: str) -> bool:
        return feature in self.product.get("features", ())

    @property
    def links(self) -> int:
        return self.product.get("nvlink", {}).get("links", 0)

    def activity(self, at_s: float) -> float:
        if self.faults["hang"]:
            return 0.12  # a hung kernel spins on a few SMs and draws little
        throttle = 0.55 if self.slowdowns() else 1.0
        pattern = load.activity(self.load, self.machine.seed, self.index, at_s)
        return throttle * (max(pattern, work.LEVEL) if work.parts(self.work, at_s) else pattern)

    def slowdowns(self) -> list[str]:
        return [reason for reason in self.faults["throttle"] if reason != "sync_boost"]

    def now(self) -> Reading:
        if self._now is None:  # `nvlink` wants it for every one of 144 links
            self._now = Reading(self, self.machine.at_s)
        return self._now


class Reading:
    """All values of one GPU at one time, in the units of the names."""

    def __init__(self, gpu: Gpu, at_s: float) -> None:
        product, faults = gpu.product, gpu.faults
        activity = gpu.activity(at_s)
        recent = sum(gpu.activity(at_s - back) for back in (0, 15, 30, 45, 60)) / 5
        since_boot = max(0.0, at_s - gpu.machine.booted_s)

        self.busy = activity > 0 or faults["hang"]
        self.utilization = 1.0 if faults["hang"] else min(1.0, activity * 1.04) if self.busy else 0.0
        self.memory_utilization = 0.0 if faults["hang"] else self.utilization * 0.46
        self.test_parts = work.parts(gpu.work, at_s)  # of the load test that runs, if any
        held = _MEMORY_HELD[gpu.load] if self.busy or gpu.load == "held" else 0.0
        self.memory_used_ratio = max(held, _MEMORY_OF_A_TEST) if self.test_parts else held
        power = product["power_w"]
        self.power_w = (
            power["idle"] + (power["load"] - power["idle"]) * activity + 2.0 * load.noise(gpu.machine.seed, gpu.index, int(at_s))
        )
        self.temperature_c = self._temperature(gpu, recent)
        above = product["temperature_c"].get("memory_above")
        self.memory_temperature_c = None if above is None else self.temperature_c + above
        self.energy_j = self._energy(gpu, since_boot)
        self.traffic = 0.0 if faults["hang"] else activity  # share of the links' load
        self.link_kib = self._link_kib(gpu, since_boot)
        self.pcie_rx_mb_s = int(2 + 1900 * self.traffic)
        self.pcie_tx_mb_s = int(1 + 1200 * self.traffic)
        self.clock_ratio = (0.35 if gpu.slowdowns() else 1.0) if self.busy else 0.0  # of the way from idle to full

    @staticmethod
    def _temperature(gpu: Gpu, recent: float) -> int:
        if gpu.faults["temperature_c"] is not None:
            return gpu.faults["temperature_c"]
        ends = gpu.product["temperature_c"]
        spread = 3 * load.noise(gpu.machine.seed, gpu.index, 2)  # a GPU's place in the air stream
        return round(ends["idle"] + (ends["load"] - ends["idle"]) * recent + spread)

    @staticmethod
    def _energy(gpu: Gpu, since_boot: float) -> float:
        """Joules of the noise-free pattern: a counter must not run backwards. A hung GPU keeps the pattern's pace."""
        power = gpu.product["power_w"]
        busy_s = load.busy_seconds(gpu.load, since_boot) + work.seconds(gpu.work, gpu.machine.booted_s + since_boot)
        return power["idle"] * since_boot + (power["load"] - power["idle"]) * busy_s

    @staticmethod
    def _link_kib(gpu: Gpu, since_boot: float) -> list[tuple[int, int]]:
        """(tx, rx) in KiB per NVLink since boot."""
        per_second = 9_200_000 * load.busy_seconds(gpu.load, since_boot)
        levels = [1 - 0.02 * load.noise(gpu.machine.seed, gpu.index, 10 + link) for link in range(gpu.links)]
        return [(int(per_second * level), int(per_second * level * 0.997)) for level in levels]


_MEMORY_OF_A_TEST = 0.05
# Share of the memory that the work of each pattern holds while it runs.
_MEMORY_HELD = {"training": 0.87, "inference": 0.71, "ramp": 0.42, "idle": 0.0, "held": 0.35}
