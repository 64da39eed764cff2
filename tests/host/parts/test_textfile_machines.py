"""The probes and the textfile collectors on simulated machines, from a T4 to eight H100."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import gpu as lab
from tests.host.parts.test_probes import WRONG_COUNT, facts_of, probe
from tests.host.parts.textfiles import by_gpu, collect, samples, value

SCENARIOS = sorted(path.stem for path in (Path(lab.__file__).parent / "scenarios").glob("*.yaml"))
SIX = (
    "memory_total_bytes",
    "memory_used_bytes",
    "utilization_percent",
    "temperature_celsius",
    "power_draw_watts",
    "power_limit_watts",
)


@pytest.fixture
def tools(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    lab.ensure(state=tmp_path / "state", bin_directory=tmp_path / "tools", scenario=request.param)
    return tmp_path / "tools"


@pytest.mark.parametrize("tools", SCENARIOS, indirect=True)
def test_the_check_counts_what_is_built_in(tools: Path) -> None:
    found = facts_of(probe("check-driver", {"GPU_FLEET_TOOL_PATH": str(tools)}))
    assert found["GPU_COUNT"] == str(lab.count(tools.parent / "state"))
    assert "unknown" not in found["GPU_DRIVER_VERSION"]


@pytest.mark.parametrize("tools", [name for name in SCENARIOS if "mig" not in name], indirect=True)
def test_every_gpu_gives_the_six_metrics(tools: Path, tmp_path: Path) -> None:
    vendor = facts_of(probe("check-driver", {"GPU_FLEET_TOOL_PATH": str(tools)}))["GPU_VENDOR"]
    directory = collect(tmp_path / "host", {"GPU_FLEET_EXPORTER_MODE": "textfile", "GPU_VENDOR": vendor}, tools)
    found = samples(directory / f"gpu_{vendor}.prom")
    gpus = {str(index) for index in range(lab.count(tmp_path / "state"))}
    for name in SIX:
        assert set(by_gpu(found, f"node_gpu_{name}")) == gpus, name


@pytest.mark.parametrize("tools", ["a100-mig"], indirect=True)
def test_a_gpu_in_mig_mode_has_no_utilization(tools: Path, tmp_path: Path) -> None:
    directory = collect(tmp_path / "host", {"GPU_FLEET_EXPORTER_MODE": "textfile", "GPU_VENDOR": "nvidia"}, tools)
    found = samples(directory / "gpu_nvidia.prom")
    assert len(by_gpu(found, "node_gpu_utilization_percent")) < len(by_gpu(found, "node_gpu_temperature_celsius"))


@pytest.mark.parametrize("tools", ["h100x8", "v100x4"], indirect=True)
def test_links_are_counted_in_the_old_and_in_the_present_format(tools: Path, tmp_path: Path) -> None:
    directory = collect(tmp_path / "host", {"GPU_FLEET_EXPORTER_MODE": "dcgm-exporter", "GPU_VENDOR": "nvidia"}, tools)
    found = samples(directory / "gpu_links.prom")
    gpus = {str(index) for index in range(lab.count(tmp_path / "state"))}
    assert set(by_gpu(found, "node_gpu_nvlink_transmit_bytes_total")) == gpus
    assert set(by_gpu(found, "node_gpu_pcie_receive_bytes_per_second")) == gpus


@pytest.mark.parametrize("tools", ["h100x8"], indirect=True)
def test_a_gpu_that_falls_off_the_bus_is_missed_by_the_check_and_by_the_metrics(tools: Path, tmp_path: Path) -> None:
    lab.inject_xid(tmp_path / "state", code=79, gpu=3)
    done = probe("check-driver", {"GPU_FLEET_TOOL_PATH": str(tools), "GPU_FLEET_GPUS": "8"})
    assert done.returncode == WRONG_COUNT and "GPU is lost" in done.stderr
    directory = collect(tmp_path / "host", {"GPU_FLEET_EXPORTER_MODE": "textfile", "GPU_VENDOR": "nvidia"}, tools)
    found = samples(directory / "gpu_nvidia.prom")
    assert value(found, "node_gpu_unreadable") == 1
    assert set(by_gpu(found, "node_gpu_temperature_celsius")) == set("01234567") - {"3"}
