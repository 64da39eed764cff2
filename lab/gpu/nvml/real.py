"""Getting the real nvidia-smi of three driver generations, and building the library that it talks to.

NVIDIA's programs and header are not free software: they are downloaded where tests run, and never part of this repository.
"""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpu_fleet.toolchain import Cache
from gpu_fleet.toolchain.progress import Progress
from lab.debian import NoPackages, Packages

_SOURCE = Path(__file__).parent / "nvml.c"
_HEADER = Packages(suite="experimental", component="non-free", names=("libnvidia-ml-dev",))


@dataclass(frozen=True, kw_only=True)
class Generation:
    """`cuda`: what a driver of this branch reports."""

    packages: Packages
    cuda: str

    @property
    def driver(self) -> str:
        return self.packages.version.partition("-")[0]

    @property
    def program(self) -> Path:
        return self.packages.root / "usr/lib/nvidia/current/nvidia-smi"


def _of(suite: str, cuda: str) -> Generation:
    return Generation(packages=Packages(suite=suite, component="non-free", names=("nvidia-smi",)), cuda=cuda)


# By driver branch. Debian had 535.261.03, 550.163.01 and 555.58.02 in November 2026.
GENERATIONS: Final = {"535": _of("bookworm", "12.2"), "550": _of("trixie", "12.4"), "555": _of("experimental", "12.5")}


def ensure(branch: str, progress: Progress | None = None) -> Generation:
    """Raises NoPackages."""
    generation = GENERATIONS[branch]
    generation.packages.ensure(progress)
    if not generation.driver.startswith(f"{branch}."):
        raise NoPackages(
            f"Debian {generation.packages.suite} has nvidia-smi {generation.driver} now, not {branch}: change {__file__}"
        )
    return generation


def lacks() -> str:
    """Gets all of it now; why it is not available here, or nothing."""
    try:
        for branch in GENERATIONS:
            ensure(branch)
        library()
    except NoPackages as error:
        return str(error)
    return ""


def library(progress: Progress | None = None) -> Path:
    """The directory with libnvidia-ml.so.1, built where this nvml.c was not yet. Raises NoPackages."""
    include = _HEADER.ensure(progress) / "usr/include"
    digest = hashlib.sha256(_SOURCE.read_bytes() + (include / "nvml.h").read_bytes()).hexdigest()[:16]
    directory = Cache().root / "debian" / f"lab-nvml-{digest}"
    with Cache().locked("lab-nvml", lambda _: None):
        if not directory.is_dir():
            with Cache().partial("lab-nvml") as partial:
                built = partial / "built"
                built.mkdir()
                command = [
                    "gcc",
                    "-O1",
                    "-Wall",
                    "-Wextra",
                    "-Werror",
                    "-shared",
                    "-fPIC",
                    "-DNVML_NO_UNVERSIONED_FUNC_DEFS",
                    f"-I{include}",
                ]
                target = ["-Wl,-soname,libnvidia-ml.so.1", "-o", str(built / "libnvidia-ml.so.1"), str(_SOURCE)]
                done = subprocess.run([*command, *target], capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    raise NoPackages(f"the lab's NVML library could not be built:\n{done.stderr.strip()[-2000:]}")
                built.rename(directory)
    return directory
