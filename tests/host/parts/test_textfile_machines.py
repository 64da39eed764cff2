"""The probes and the textfile collectors on simulated machines, from a T4 to eight H100."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_fleet.on_host.probe import Outcome
from lab import gpu as lab
from lab.gpu import inject, setup
from lab.gpu.amd.real import TOOLS, use_real_tool
from lab.gpu.nvml.real import GENERATIONS
from tests.host.parts.real_machine import RealMachine
from tests.host.parts.test_probes import NO_DRIVER, WRONG_COUNT, facts_of, probe
from tests.host.parts.textfiles import Samples, by_gpu, collect, samples, value

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
    found = facts_of(probe("driver", {"GPU_FLEET_TOOL_PATH": str(tools)}))
    assert found["GPU_COUNT"] == str(lab.count(tools.parent / "state"))
    assert "unknown" not in found["GPU_DRIVER_VERSION"]


@pytest.mark.parametrize("tools", [name for name in SCENARIOS if "mig" not in name], indirect=True)
def test_every_gpu_gives_the_six_metrics(tools: Path, tmp_path: Path) -> None:
    vendor = facts_of(probe("driver", {"GPU_FLEET_TOOL_PATH": str(tools)}))["GPU_VENDOR"]
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


# --- NVIDIA's own nvidia-smi of three driver branches, over the lab's NVML library --------------------------------------------


@pytest.fixture(params=GENERATIONS)
def real(request: pytest.FixtureRequest, tmp_path: Path) -> RealMachine:
    return RealMachine(tmp_path, request.param)


def collected(real: RealMachine, collector: str) -> Samples:
    facts = {"GPU_FLEET_EXPORTER_MODE": "textfile", "GPU_VENDOR": "nvidia"}
    return samples(collect(real.directory / "host", facts, real.tools) / f"gpu_{collector}.prom")


def checked(real: RealMachine, **facts: str) -> Outcome:
    return probe("driver", {"GPU_FLEET_TOOL_PATH": str(real.tools), **facts})


def test_every_gpu_is_read_from_the_real_nvidia_smi(real: RealMachine) -> None:
    inject.make_hot(real.boot(), gpu=1, temperature_c=88)
    found = collected(real, "nvidia")
    for name in SIX:
        assert set(by_gpu(found, f"node_gpu_{name}")) == set("0123"), name
    assert by_gpu(found, "node_gpu_temperature_celsius")["1"] == 88
    assert by_gpu(found, "node_gpu_temperature_limit_celsius") == dict.fromkeys("0123", 89), "87 and the margin of 2 of an H100"
    assert set(by_gpu(found, "node_gpu_memory_temperature_celsius")) == set("0123")
    assert value(found, "node_gpu_unreadable") == 0
    facts = facts_of(checked(real, GPU_FLEET_GPUS="4", GPU_FLEET_MIN_DRIVER=real.driver))
    assert facts["GPU_MODELS"] == "4 x NVIDIA H100 80GB HBM3" and facts["GPU_DRIVER_VERSION"] == real.driver
    assert facts["CUDA_VERSION"] == GENERATIONS[real.branch].cuda


def test_temperature_limits_are_read_where_they_are_no_margins(real: RealMachine) -> None:
    real.boot("v100x4")
    assert by_gpu(collected(real, "nvidia"), "node_gpu_temperature_limit_celsius") == dict.fromkeys("0123", 83)


@pytest.mark.parametrize(
    ("error", "said"),
    [(15, "GPU is lost"), (16, "A GPU reset must occur"), (999, "Unknown Error")],
    ids=["lost", "reset", "unknown"],
)
def test_gpus_without_a_handle_hide_no_other(error: int, said: str, real: RealMachine) -> None:
    """These drivers answer for no GPU then, unless only the others are asked for."""
    state = real.boot()
    for gpu in (0, 2):
        inject.answer(state, gpu=gpu, key="handle", value=f"!{error}")
    found = collected(real, "nvidia")
    for name in (*SIX, "temperature_limit_celsius"):
        assert set(by_gpu(found, f"node_gpu_{name}")) == {"1", "3"}, name
    assert value(found, "node_gpu_unreadable") == 2
    links = collected(real, "links")
    assert by_gpu(links, "node_gpu_nvlinks_active") == {"1": 18, "3": 18}
    for name in ("nvlink_transmit_bytes_total", "pcie_receive_bytes_per_second"):
        assert set(by_gpu(links, f"node_gpu_{name}")) == {"1", "3"}, name
    done = checked(real, GPU_FLEET_GPUS="4")
    assert done.code == WRONG_COUNT and "lists 2" in done.reason and said in done.reason
    facts = facts_of(checked(real, GPU_FLEET_MIN_DRIVER=real.driver))
    assert facts["GPU_DRIVER_VERSION"] == real.driver and facts["CUDA_VERSION"] == GENERATIONS[real.branch].cuda


def test_a_gpu_whose_every_reading_is_an_error_has_no_name_and_counts_as_unreadable(real: RealMachine) -> None:
    inject.answer(real.boot(), gpu=1, key="broken", value="!15")  # lost after it got a handle
    found = collected(real, "nvidia")
    for name in ("temperature_celsius", "temperature_limit_celsius"):
        assert set(by_gpu(found, f"node_gpu_{name}")) == set("023"), name
    assert set(by_gpu(found, "node_gpu_info")) == set("023"), "[GPU is lost] is the UUID of no GPU"
    assert value(found, "node_gpu_unreadable") == 1
    assert value(found, "node_gpu_collector_success", collector="nvidia") == 1


def test_what_a_gpu_does_not_report_is_absent(real: RealMachine) -> None:
    state = real.boot()
    for key in ("power.draw", "temperature.0"):
        inject.answer(state, gpu=1, key=key, value="!3")
    inject.answer(state, gpu=2, key="utilization.gpu", value="!999")
    found = collected(real, "nvidia")
    assert set(by_gpu(found, "node_gpu_power_draw_watts")) == set(by_gpu(found, "node_gpu_temperature_celsius")) == set("023")
    assert set(by_gpu(found, "node_gpu_utilization_percent")) == set("013")
    assert value(found, "node_gpu_unreadable") == 0


@pytest.mark.parametrize("scenario", ["a100-mig", "l40sx2"])
def test_a_gpu_without_nvlink_or_cut_by_mig_has_no_links(scenario: str, real: RealMachine) -> None:
    real.boot(scenario)
    links = collected(real, "links")
    assert by_gpu(links, "node_gpu_nvlinks_active") == ({"1": 12} if scenario == "a100-mig" else {})
    assert set(by_gpu(links, "node_gpu_pcie_receive_bytes_per_second")) == {"0", "1"}
    assert facts_of(checked(real))["GPU_COUNT"] == "2", "MIG instances are no GPUs"


def test_links_that_are_down_are_not_counted(real: RealMachine) -> None:
    state = real.boot()
    inject.take_link_down(state, gpu=1, link=4)
    for link in range(18):
        inject.take_link_down(state, gpu=2, link=link)
    assert by_gpu(collected(real, "links"), "node_gpu_nvlinks_active") == {"0": 18, "1": 17, "2": 0, "3": 18}


@pytest.mark.parametrize(
    ("problem", "said", "next_step"),
    [
        ("not-loaded", "couldn't communicate with the NVIDIA driver", "modprobe nvidia"),
        ("version-mismatch", "mismatch", "reboot"),
    ],
)
def test_a_driver_that_does_not_answer_is_no_gpu_and_says_why(problem: str, said: str, next_step: str, real: RealMachine) -> None:
    inject.break_driver(real.boot(), problem=problem)
    found = collected(real, "nvidia")
    assert value(found, "node_gpu_collector_success", collector="nvidia") == 0 and not by_gpu(found, "node_gpu_info")
    done = checked(real)
    assert done.code == NO_DRIVER and said in done.reason and next_step in done.reason


def test_a_driver_s_tool_without_its_library_says_what_to_install(real: RealMachine) -> None:
    """As in a container that got the tool alone, or after a driver was half removed."""
    real.boot()
    (real.tools / "nvidia-smi").unlink()
    (real.tools / "nvidia-smi").symlink_to(GENERATIONS[real.branch].program)
    done = checked(real)
    assert done.code == NO_DRIVER and "couldn't find libnvidia-ml.so" in done.reason
    assert "Next: libnvidia-ml.so.1 is missing" in done.reason


# --- AMD's own tools, over the sysfs of a machine -----------------------------------------------------------------------------


@pytest.fixture
def amd(tmp_path: Path) -> Callable[..., Path]:
    """Makes a machine with a real tool of AMD; returns where that is."""

    def make(tool: str, scenario: str = "mi300x4", *, driver: bool = True) -> Path:
        state, tools = tmp_path / "state", tmp_path / "tools"
        setup.init(state=state, scenario=scenario)
        tools.mkdir()
        use_real_tool(tool, state=state, bin_directory=tools, driver=driver)
        return tools

    return make


AMD_HOST = {"GPU_FLEET_EXPORTER_MODE": "textfile", "GPU_VENDOR": "amd"}


@pytest.mark.parametrize("tool", [tool for tool in TOOLS if tool.startswith("rocm-smi")])
@pytest.mark.parametrize(("scenario", "count", "limit_w"), [("mi300x4", 4, 750), ("mi210x2", 2, 300)])
def test_every_amd_gpu_is_read_from_the_real_rocm_smi(
    tool: str, scenario: str, count: int, limit_w: int, amd, tmp_path: Path
) -> None:
    tools = amd(tool, scenario)
    found = samples(collect(tmp_path / "host", AMD_HOST, tools) / "gpu_amd.prom")
    for name in SIX:
        assert len(by_gpu(found, f"node_gpu_{name}")) == count, name
    assert set(by_gpu(found, "node_gpu_power_limit_watts").values()) == {limit_w}
    assert len(by_gpu(found, "node_gpu_memory_temperature_celsius")) == count
    assert value(found, "node_gpu_collector_success", collector="amd") == 1
    # Beside the module of Linux itself, which has no version, the tool is asked.
    settings = {"GPU_FLEET_TOOL_PATH": str(tools), "GPU_FLEET_GPUS": str(count), "GPU_FLEET_VENDOR": "amd"}
    facts = facts_of(probe("driver", settings))
    assert facts["GPU_DRIVER_VERSION"] == "6.8.5", "the real one puts it in quotes"
    # Without the table of libdrm, as for a GPU that is newer than it, 6.1 prints 0x1002 and 7.2 prints N/A.
    assert facts["GPU_MODELS"] == f"{count} x AMD GPU"
    assert {dict(labels)["model"] for name, labels in found if name == "node_gpu_info"} == {""}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_real_tool_of_amd_without_a_driver_is_no_gpu(tool: str, amd, tmp_path: Path) -> None:
    """rocm-smi exits with 0, amd-smi with 255."""
    tools = amd(tool, driver=False)
    found = samples(collect(tmp_path / "host", AMD_HOST, tools) / "gpu_amd.prom")
    assert value(found, "node_gpu_collector_success", collector="amd") == 0
    done = probe("driver", {"GPU_FLEET_TOOL_PATH": str(tools), "GPU_FLEET_VENDOR": "amd"})
    assert done.code == NO_DRIVER and "amdgpu not found in modules" in done.reason and "modprobe amdgpu" in done.reason
