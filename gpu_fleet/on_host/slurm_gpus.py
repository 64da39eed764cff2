"""Which GPU is meant by a number of Slurm.

Slurm numbers the devices of a node in the order of its gres.conf (SLURM_JOB_GPUS, and IDX in `scontrol show job -d`), which
is neither the driver's order nor that of CUDA_VISIBLE_DEVICES in the job. `slurmd -G` prints them in Slurm's order, with their
device files; the driver says which GPU a device file is, by its minor number.
Where jobs are not confined to their devices (ConstrainDevices in cgroup.conf), what they use is their own affair.
Source: Slurm 22.05 to 26.05, gres_common.c (common_gres_set_env) and slurmd -G, read and run 2026-11-27; NVIDIA's driver,
/proc/driver/nvidia/gpus/*/information and /proc/driver/nvidia-caps/mig-minors.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Iterator, NamedTuple, Sequence

from .files import text_of
from .slurm_tools import expanded

_GRES = re.compile(r"\bGres Name=gpu\b.*?\bCount=(\d+)\b.*?\bFile=(\S+)")


class Gpu(NamedTuple):
    """`gpu`: the index as in the GPU's other metrics. `gpu_instance`: of MIG. Each is empty where it is not known."""

    uuid: str
    gpu: str
    gpu_instance: str = ""


def files(said: str) -> list[list[str]]:
    """The names of the files of each device that `slurmd -G` has printed, in Slurm's order."""
    found: list[list[str]] = []
    for count, listed in _GRES.findall(said):
        names = [Path(name).name for name in expanded(listed)]
        # One device may have several files: a MIG instance has those of its GPU and of its capabilities.
        found += [names] if count == "1" else [[name] for name in names]
    return found


def known(devices: Sequence[Sequence[str]], root: Path = Path("/"), before: Sequence[Gpu] = ()) -> list[Gpu]:
    """The GPU of each device, by its files, as the driver says now.

    slurmd may have started before the driver did, and without persistence mode a GPU has no uuid until something has opened it.
    `before`: a GPU that the driver has lost since keeps its uuid. `root`: where the file system begins.
    """
    by_minor = dict(_of_nvidia(root))
    instances = dict(_of_mig(root))
    renders = sorted((root / "sys/class/drm").glob("renderD*"), key=lambda path: path.joinpath("device").resolve().name)
    of_amd = [path for path in renders if text_of(path / "device/vendor").strip() == "0x1002"]
    amd = {path.name: str(index) for index, path in enumerate(of_amd)}
    now = [_device(names, by_minor, instances, amd) for names in devices]
    old = [*before, *[Gpu("", "")] * len(now)]
    return [was if was.uuid and not gpu.uuid else gpu for gpu, was in zip(now, old)]


def _device(names: Sequence[str], by_minor: dict[str, Gpu], instances: dict[str, str], amd: dict[str, str]) -> Gpu:
    minor = next((found[1] for name in names if (found := re.fullmatch(r"nvidia(\d+)", name))), "")
    capabilities = [found[1] for name in names if (found := re.fullmatch(r"nvidia-cap(\d+)", name))]
    instance = next((instances[number] for number in capabilities if number in instances), "")
    if instance:
        of_gpu, _, number = instance.partition("/")
        gpu = by_minor.get(minor or of_gpu, Gpu("", ""))
        return gpu._replace(gpu_instance=number)
    return by_minor.get(minor) or Gpu("", next((amd[name] for name in names if name in amd), ""))


def _of_nvidia(root: Path) -> Iterator[tuple[str, Gpu]]:
    """The driver numbers GPUs by PCI address; a GPU that is off the bus has no uuid any more."""
    files = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    for index, file in enumerate(files):
        text = text_of(file)
        minor = re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE)
        uuid = re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]{36})\s*$", text, re.MULTILINE)
        if minor:
            yield minor[1], Gpu(uuid[1] if uuid else "", str(index))


def _of_mig(root: Path) -> Iterator[tuple[str, str]]:
    """Capability -> minor of the GPU/GPU instance. That of a compute instance within it does not say more."""
    for line in text_of(root / "proc/driver/nvidia-caps/mig-minors").splitlines():
        found = re.fullmatch(r"gpu(\d+)/gi(\d+)/access (\d+)", line.strip())
        if found:
            yield found[3], f"{found[1]}/{found[2]}"
