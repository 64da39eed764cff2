"""The hosts of the showcase: two datacenters with typical incidents, and one faulty host for every exporter mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.gpu import inject

MODES_DATACENTER: Final = "lab"  # its clusters are named by modes, one host each
Fault = Callable[[Path], object]


@dataclass(frozen=True)
class Mode:
    """One way in which a host's GPUs are read. `label`: its exporter_mode. `words`: for people."""

    label: str
    words: str


MODES: Final = {
    "dcgm-4.8": Mode("dcgm-exporter", "dcgm-exporter 4.8, standard counters"),
    "dcgm-4.9": Mode("dcgm-exporter", "dcgm-exporter 4.9, profiling counters"),
    "smi-exec": Mode("nvidia_gpu_exporter", "nvidia_gpu_exporter, nvidia-smi"),
    "smi-nvml": Mode("nvidia_gpu_exporter", "nvidia_gpu_exporter, NVML"),
    "textfile-nvidia": Mode("textfile", "textfile collector, NVIDIA"),
    "amd-exporter": Mode("amd-device-metrics-exporter", "AMD's exporter"),
    "textfile-amd": Mode("textfile", "textfile collector, AMD"),
    "kubernetes": Mode("dcgm-exporter", "Kubernetes, dcgm-exporter 4.9"),
}


@dataclass(frozen=True, kw_only=True)
class Host:
    """`fault`: injected when the incidents begin. `is_cut_off`: it sends nothing from then on.

    `is_ready`: whether work may start on it nevertheless. `containers`: "docker", "podman" or "pods" write logs.
    """

    name: str
    datacenter: str
    cluster: str
    mode: str
    scenario: str
    fault: Fault | None = None
    is_ready: bool = True
    is_cut_off: bool = False
    containers: str | None = None

    @property
    def labels(self) -> dict[str, str]:
        return {
            "instance": self.name,
            "datacenter": self.datacenter,
            "cluster": self.cluster,
            "exporter_mode": MODES[self.mode].label,
        }


def _falls_off_the_bus(gpu: int) -> Fault:
    return lambda state: inject.inject_xid(state, code=79, gpu=gpu)


def _bit_of_everything(state: Path) -> None:
    """Every GPU still answers: nvidia_gpu_exporter would fall silent with the first that does not."""
    inject.inject_xid(state, code=94, gpu=0)
    inject.inject_ecc(state, gpu=0, corrected=12)
    inject.inject_xid(state, code=43, gpu=1)
    inject.take_link_down(state, gpu=1, link=3)
    inject.add_link_errors(state, gpu=1, link=3, replay=40, crc=7)
    inject.add_pcie_replays(state, gpu=1, count=25)
    inject.make_hot(state, gpu=2)
    inject.throttle(state, gpu=2, reason="hw_power_brake_slowdown")
    inject.throttle(state, gpu=3, reason="sw_power_cap")
    inject.remap_row(state, gpu=3, failed=True)


def _and_its_fabric(state: Path) -> None:
    _bit_of_everything(state)
    inject.inject_sxid(state, code=12028)
    inject.stall_adapter(state)


def _memory_of_amd(state: Path) -> None:
    inject.inject_ecc(state, gpu=0, corrected=12)
    inject.inject_ecc(state, gpu=1, uncorrected=1)
    inject.make_hot(state, gpu=2)


def _hot(gpu: int) -> Fault:
    return lambda state: inject.make_hot(state, gpu=gpu)


def _lab(mode: str, scenario: str, fault: Fault, containers: str | None = "docker") -> Host:
    return Host(
        name=f"{mode.replace('.', '-')}-host",
        datacenter=MODES_DATACENTER,
        cluster=mode,
        mode=mode,
        scenario=scenario,
        fault=fault,
        is_ready=False,
        containers=containers,
    )


HOSTS: Final = (
    Host(name="gpu-node-001", datacenter="us-west", cluster="training", mode="dcgm-4.9", scenario="h100x8"),
    Host(
        name="gpu-node-002",
        datacenter="us-west",
        cluster="training",
        mode="dcgm-4.9",
        scenario="h100x8",
        fault=_falls_off_the_bus(3),
        is_ready=False,
    ),
    Host(name="gpu-node-003", datacenter="us-west", cluster="training", mode="dcgm-4.9", scenario="h100x8", fault=_hot(5)),
    Host(name="train-01", datacenter="eu-north", cluster="training", mode="dcgm-4.8", scenario="a100x8"),
    Host(name="train-02", datacenter="eu-north", cluster="training", mode="dcgm-4.8", scenario="a100x8", is_cut_off=True),
    Host(name="infer-01", datacenter="eu-north", cluster="inference", mode="smi-exec", scenario="l40sx2", containers="docker"),
    Host(
        name="infer-02",
        datacenter="eu-north",
        cluster="inference",
        mode="smi-exec",
        scenario="l40sx2",
        fault=_falls_off_the_bus(1),
        is_ready=False,
        containers="docker",
    ),
    _lab("dcgm-4.8", "a100x8", _and_its_fabric),
    _lab("dcgm-4.9", "h100x4-notebook", _bit_of_everything),
    _lab("smi-exec", "h100x4-notebook", _bit_of_everything),
    _lab("smi-nvml", "h100x4-notebook", _bit_of_everything),
    _lab("textfile-nvidia", "h100x4-notebook", _bit_of_everything, containers="podman"),
    _lab("amd-exporter", "mi300x4", _memory_of_amd),
    _lab("textfile-amd", "mi300x4", _memory_of_amd),
    _lab("kubernetes", "h100x4-notebook", _bit_of_everything, containers="pods"),
)
