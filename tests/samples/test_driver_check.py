"""The driver check against recorded answers of nvidia-smi."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_fleet.on_host.probe.driver import cuda_version
from tests.host.parts.test_probes import NO_DRIVER, facts_of, probe
from tests.host.parts.textfiles import tool
from tests.samples.conftest import SAMPLES

NVIDIA_SMI = SAMPLES / "nvidia-smi"
MACHINES = sorted(NVIDIA_SMI.glob("captures/*/L.txt"))
NO_GPU = sorted(
    NVIDIA_SMI / f"errors/{name}.txt"
    for name in ("driver-not-loaded", "no-devices", "nvml-unknown-error", "nvml-version-mismatch", "gpu-lost-old")
)


@pytest.mark.parametrize("listing", MACHINES, ids=lambda path: path.parent.name)
def test_a_recorded_machine_has_one_gpu_and_reports_its_versions(tmp_path: Path, listing: Path) -> None:
    driver = listing.parent.name.rsplit("-", 1)[1]
    tool(tmp_path, "nvidia-smi", {"-L": listing.read_text(), "--version": (listing.parent / "version.txt").read_text()})
    found = facts_of(probe("driver", {"GPU_FLEET_TOOL_PATH": str(tmp_path), "GPU_FLEET_GPUS": "1"}))
    assert found["GPU_MODELS"] == "1 x " + re.match(r"GPU 0: (.*) \(UUID", listing.read_text())[1]
    assert found["GPU_DRIVER_VERSION"] == driver
    assert re.fullmatch(r"1\d\.\d", found["CUDA_VERSION"])


@pytest.mark.parametrize("table", sorted(NVIDIA_SMI.glob("table/*.txt")), ids=lambda path: path.stem)
def test_the_cuda_version_is_found_in_every_recorded_table(table: Path) -> None:
    text = table.read_text()
    assert cuda_version(text) == re.search(r"CUDA (?:UMD )?Version: ([\d.]+)", text)[1]


@pytest.mark.parametrize("recording", NO_GPU, ids=lambda path: path.stem)
def test_a_recorded_failure_is_no_driver_and_is_quoted(tmp_path: Path, recording: Path) -> None:
    tool(tmp_path, "nvidia-smi", {"-L": recording.read_text()}, code=9)
    done = probe("driver", {"GPU_FLEET_TOOL_PATH": str(tmp_path)})
    assert done.code == NO_DRIVER
    assert recording.read_text().splitlines()[0].strip() in done.reason
