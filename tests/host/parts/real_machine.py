"""A simulated machine whose nvidia-smi is NVIDIA's own program of a driver branch."""

from __future__ import annotations

from pathlib import Path

from lab import gpu as lab
from lab.gpu import setup


class RealMachine:
    """Four H100, unless `boot` is given another scenario. `lab.gpu.inject.answer` takes errors by their number in nvml.h."""

    def __init__(self, directory: Path, branch: str) -> None:
        self.directory, self.branch = directory, branch
        self.state, self.tools = directory / "state", directory / "tools"
        self.driver = ""

    def boot(self, scenario: str = "h100x4") -> Path:
        lab.ensure(state=self.state, bin_directory=self.tools, scenario=scenario)
        self.driver = setup.use_real_nvidia_smi(self.branch, state=self.state, bin_directory=self.tools)
        return self.state
