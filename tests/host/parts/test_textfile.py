"""The textfile collectors on a host: what they write, and what they write when the tools fail."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_fleet.on_host.collect.nvidia import parse_query
from gpu_fleet.toolchain import find
from lab.powercut import disks
from tests.host.parts.textfiles import PYTHON, bound_to_guests, by_gpu, collect, samples, tool, value

NVIDIA = {"GPU_FLEET_EXPORTER_MODE": "textfile", "GPU_VENDOR": "nvidia"}
AMD = {"GPU_FLEET_EXPORTER_MODE": "textfile", "GPU_VENDOR": "amd"}

# Rows in the order of the collector's query, made for these tests; cells and error lines in the forms that nvidia-smi prints.
GPU_0 = "0, GPU-aaaa, NVIDIA H100 80GB HBM3, 00000000:4B:00.0, 590.48.01, 81559, 1024, 93, 61, 651.42, 700.00, 12, 1\n"
GPU_1 = "1, GPU-bbbb, NVIDIA H100 NVL, 00000000:5D:00.0, 590.48.01, 81559, 0, [N/A], 33, [Not Supported], 700.00, [N/A], [N/A]\n"
LINKS = "GPU 0: NVIDIA H100 (UUID: GPU-aaaa)\n\t Link 0: Data Tx: 2 KiB\n\t Link 0: Data Rx: 3 KiB\n"
OLD_LINKS = "GPU 0: Tesla V100 (UUID: GPU-aaaa)\n\t Link 2: Rx0: 100 KBytes, Tx0: 50 KBytes\n"
PCIE = "# gpu  rxpci  txpci \n# Idx   MB/s   MB/s \n    0     51     14 \n    1      -      - \n"


def test_the_six_metrics_of_the_textfile_guide_keep_their_names_and_label(tmp_path: Path) -> None:
    tool(tmp_path / "bin", "nvidia-smi", {"--query-gpu=": GPU_0})
    found = samples(collect(tmp_path, NVIDIA, tmp_path / "bin") / "gpu_nvidia.prom")
    assert value(found, "node_gpu_memory_total_bytes", gpu="0") == 81559 * 2**20
    assert value(found, "node_gpu_memory_used_bytes", gpu="0") == 1024 * 2**20
    assert value(found, "node_gpu_utilization_percent", gpu="0") == 93
    assert value(found, "node_gpu_temperature_celsius", gpu="0") == 61
    assert value(found, "node_gpu_power_draw_watts", gpu="0") == 651.42
    assert value(found, "node_gpu_power_limit_watts", gpu="0") == 700


@pytest.mark.parametrize(
    ("facts", "name", "answers", "takes_s"),
    [
        (NVIDIA, "nvidia-smi", {"--query-gpu=": GPU_0}, 12),
        (AMD, "rocm-smi", {"--showproductname": '{"card0": {"GPU use (%)": "7"}}'}, 15),
    ],
)
def test_a_slow_tool_is_no_failure(
    tmp_path: Path, facts: dict[str, str], name: str, answers: dict[str, str], takes_s: int
) -> None:
    """A driver without persistence mode, and ROCm with 16 GPUs."""
    script = tool(tmp_path / "bin", name, answers)
    script.write_text(script.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\ncase $1 in --*) sleep {takes_s} ;; esac\n"))
    vendor = facts["GPU_VENDOR"]
    found = samples(collect(tmp_path, facts, tmp_path / "bin") / f"gpu_{vendor}.prom")
    assert value(found, "node_gpu_collector_success", collector=vendor) == 1
    assert by_gpu(found, "node_gpu_utilization_percent")


# What the drivers of three generations know of the optional fields, and what a GPU that must be reset answers.
NEW = ("gpu_recovery_action", "remapped_rows.failure", "remapped_rows.pending")
SIGNALS = {
    "new": (NEW, ["None, No, No", "Reset, No, Yes", "[N/A], [N/A], [N/A]"]),
    "R565": (NEW[:1], ["None", "GPU Reset", "[N/A]"]),
    "R550": (("reset_status.reset_required",), ["No", "Yes", "[N/A]"]),
    "R470": ((), ["", "", ""]),
}


@pytest.mark.parametrize("driver", SIGNALS)
def test_the_signals_of_a_failure_are_read_where_the_driver_has_them(tmp_path: Path, driver: str) -> None:
    known, cells = SIGNALS[driver]
    gpu = "{0}, GPU-{0}, NVIDIA H100, 00000000:0{0}:00.0, 590.48.01, 81559, 1, 2, 30, 60.0, 700.0, 0, 0"
    rows = "".join(", ".join(filter(None, (gpu.format(number), cell))) + "\n" for number, cell in enumerate(cells))
    script = tool(tmp_path / "bin", "nvidia-smi", {"--query-gpu=": rows})
    refused = [name for name in (*NEW, "reset_status.reset_required") if name not in known]
    refuse = "".join(
        f"case $1 in *{name}*) echo 'Field \"{name}\" is not a valid field to query.'; exit 2 ;; esac\n" for name in refused
    )
    script.write_text(script.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{refuse}"))
    found = samples(collect(tmp_path, NVIDIA, tmp_path / "bin") / "gpu_nvidia.prom")
    assert by_gpu(found, "node_gpu_recovery_action") == ({"0": 0, "1": 1} if known else {})
    remaps = len(known) > 1
    assert by_gpu(found, "node_gpu_row_remap_failed") == ({"0": 0, "1": 0} if remaps else {})
    assert by_gpu(found, "node_gpu_row_remap_pending") == ({"0": 0, "1": 1} if remaps else {})
    assert by_gpu(found, "node_gpu_temperature_celsius") == {"0": 30, "1": 30, "2": 30}
    assert value(found, "node_gpu_unreadable") == 0


# Of the numbers from 5 on only NVML's names are public; the words of the driver may differ.
ACTIONS = {
    **{"None": 0, "Reset": 1, "GPU Reset": 1, "[GPU requires reset]": 1, "Reboot": 2, "Node Reboot": 2, "Drain P2P": 3},
    **{"Drain and Reset": 4, "Recover IMEX Domain": 5, "Bus Reset": 6, "GPU Reset Bus": 6, "System Reboot": 7},
    **dict.fromkeys(("[N/A]", "[GPU is lost]", "[Unknown Error]", "[Not Supported]", ""), None),
}


def test_every_word_for_a_recovery_action_has_its_number() -> None:
    gpu = ["0", "GPU-0", "NVIDIA H100", "00000000:18:00.0", "615.10", "81559", "1", "2", "30", "60.0", "700.0", "0", "0"]
    found = {word: parse_query(", ".join([*gpu, word]), ["gpu_recovery_action"]).gpus[0].values for word in ACTIONS}
    assert {word: values.get("recovery_action") for word, values in found.items()} == ACTIONS


@pytest.mark.parametrize("ports", [{"mlx5_0": 1, "mlx5_1": 1, "mlx4_0": 2}, {}])
def test_rdma_ports_of_the_host_are_counted_where_there_are_some(tmp_path: Path, ports: dict[str, int]) -> None:
    for device, number in ports.items():
        for port in range(1, number + 1):
            (tmp_path / f"sys/class/infiniband/{device}/ports/{port}").mkdir(parents=True)
    tool(tmp_path / "bin", "nvidia-smi", {"nvlink -gt d": LINKS})
    found = samples(collect(tmp_path, NVIDIA, tmp_path / "bin") / "gpu_links.prom")
    assert [counted for (name, _), counted in found.items() if name == "node_gpu_rdma_ports"] == ([4] if ports else [])


def test_gpus_of_guests_are_named_and_adapters_virtual_functions_and_gpus_of_others_are_not(tmp_path: Path) -> None:
    bound_to_guests(tmp_path, "0000:41:00.0")
    bound_to_guests(tmp_path, "0009:01:00.0", driver="nvgrace-gpu-vfio-pci")
    bound_to_guests(tmp_path, "0000:42:00.0", device_class="0x020700")
    bound_to_guests(tmp_path, "0000:41:00.1", device_class="0x040300")
    bound_to_guests(tmp_path, "0000:43:00.0", vendor="0x1002")
    (bound_to_guests(tmp_path, "0000:44:00.4") / "physfn").mkdir()
    bound_to_guests(tmp_path, "0000:45:00.0", driver="nvidia")
    tool(tmp_path / "bin", "nvidia-smi", {"nvlink -gt d": LINKS})
    found = samples(collect(tmp_path, NVIDIA, tmp_path / "bin") / "gpu_links.prom")
    given = {dict(labels)["pci"] for name, labels in found if name == "node_gpu_passed_through"}
    assert given == {"0000:41:00", "0009:01:00"}
    assert any(name == "node_gpu_nvlink_transmit_bytes_total" for name, _ in found), "of the GPUs of the host"


def test_a_host_all_of_whose_gpus_are_of_guests_says_so_without_a_driver(tmp_path: Path) -> None:
    bound_to_guests(tmp_path, "0000:41:00.0")
    tool(tmp_path / "bin", "nvidia-smi", {}, code=9)
    found = samples(collect(tmp_path, NVIDIA, tmp_path / "bin") / "gpu_links.prom")
    assert value(found, "node_gpu_passed_through", pci="0000:41:00") == 1
    assert value(found, "node_gpu_collector_success", collector="links") == 1


def test_the_gpu_info_has_the_pci_address_of_the_kernel_log(tmp_path: Path) -> None:
    tool(tmp_path / "bin", "nvidia-smi", {"--query-gpu=": GPU_0})
    found = samples(collect(tmp_path, NVIDIA, tmp_path / "bin") / "gpu_nvidia.prom")
    who = {"gpu": "0", "uuid": "GPU-aaaa", "model": "NVIDIA H100 80GB HBM3", "pci": "0000:4b:00", "driver_version": "590.48.01"}
    assert value(found, "node_gpu_info", **who) == 1


# The two forms of `nvidia-smi -q -d TEMPERATURE`: temperatures, and margins since Hopper.
TEMPERATURES = """
GPU 00000000:4B:00.0
    Temperature
        GPU Current Temp                  : 25 C
        GPU T.Limit Temp                  : N/A
        GPU Shutdown Temp                 : 92 C
        GPU Slowdown Temp                 : 89 C
        Memory Current Temp               : 43 C
        Memory Max Operating Temp         : 95 C
GPU 00000000:5D:00.0
    Temperature
        GPU Current Temp                  : 30 C
        GPU T.Limit Temp                  : 57 C
        GPU Shutdown T.Limit Temp         : -8 C
        GPU Slowdown T.Limit Temp         : -2 C
        Memory Current Temp               : N/A
        Memory Max Operating T.Limit Temp : 0 C
GPU 00000000:CB:00.0
    Temperature
        GPU Slowdown Temp                 : 89 C
"""


@pytest.mark.parametrize("margin", ["GPU T.Limit Temp", "GPU Current T.Limit Temp"], ids=["595", "610"])
def test_the_limits_of_a_gpu_are_temperatures_also_where_nvidia_smi_prints_margins(margin: str, tmp_path: Path) -> None:
    temperatures = TEMPERATURES.replace("GPU T.Limit Temp", margin)
    tool(tmp_path / "bin", "nvidia-smi", {"--query-gpu=": GPU_0 + GPU_1, "-q -d TEMPERATURE": temperatures})
    found = samples(collect(tmp_path, NVIDIA, tmp_path / "bin") / "gpu_nvidia.prom")
    assert by_gpu(found, "node_gpu_temperature_limit_celsius") == {"0": 89, "1": 89}, "and none of a GPU without a row"
    assert by_gpu(found, "node_gpu_memory_temperature_celsius") == {"0": 43}
    assert by_gpu(found, "node_gpu_memory_temperature_limit_celsius") == {"0": 95}


def test_memory_errors_of_an_nvidia_gpu_are_read_and_none_of_one_without_ecc(tmp_path: Path) -> None:
    tool(tmp_path / "bin", "nvidia-smi", {"--query-gpu=": GPU_0 + GPU_1})
    found = samples(collect(tmp_path, NVIDIA, tmp_path / "bin") / "gpu_nvidia.prom")
    assert by_gpu(found, "node_gpu_ecc_corrected_total") == {"0": 12}
    assert by_gpu(found, "node_gpu_ecc_uncorrected_total") == {"0": 1}


@pytest.mark.parametrize(
    "answer",
    [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
        "No devices were found\n",
        "Failed to initialize NVML: Driver/library version mismatch\n",
        "",
    ],
)
def test_a_driver_that_fails_leaves_no_old_values_behind(tmp_path: Path, answer: str) -> None:
    tool(tmp_path / "bin", "nvidia-smi", {"--query-gpu=": GPU_0})
    collect(tmp_path, NVIDIA, tmp_path / "bin")
    tool(tmp_path / "bin", "nvidia-smi", {"--query-gpu=": answer}, code=9)
    file = collect(tmp_path, NVIDIA, tmp_path / "bin") / "gpu_nvidia.prom"
    found = samples(file)
    assert not by_gpu(found, "node_gpu_temperature_celsius"), "values that no driver gave look like a healthy GPU"
    assert value(found, "node_gpu_collector_success", collector="nvidia") == 0
    said = answer.strip() or "no answer within 16 s"
    assert file.read_text().endswith(f"# says: nvidia-smi reported no GPU: {said}\n"), "an apply shows it when the check fails"


def test_a_tool_that_is_gone_is_a_failed_collection(tmp_path: Path) -> None:
    found = samples(collect(tmp_path, {**NVIDIA, "PATH": "/usr/bin:/bin"}, tmp_path / "bin") / "gpu_nvidia.prom")
    assert value(found, "node_gpu_collector_success", collector="nvidia") == 0


def test_a_driver_that_hangs_is_a_failed_collection_and_not_silence(tmp_path: Path) -> None:
    tool(tmp_path / "bin", "nvidia-smi", {"--query-gpu=": GPU_0})
    (tmp_path / "bin/nvidia-smi").write_text("#!/bin/sh\nsleep 1000\n")
    found = samples(collect(tmp_path, NVIDIA, tmp_path / "bin", patience_s=1) / "gpu_nvidia.prom")
    assert value(found, "node_gpu_collector_success", collector="nvidia") == 0
    assert value(found, "node_gpu_collector_timestamp_seconds", collector="nvidia") > 1_700_000_000


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Path]:
    """A directory of which every write waits in the kernel, where nothing can kill the writer, as a driver that hangs does it."""
    image, at = tmp_path / "image", tmp_path / "frozen"
    with image.open("wb") as file:
        file.truncate(8 << 20)
    disks.run("mkfs.ext4", "-q", "-F", image)
    with disks.mounted(image, "ext4", at):
        disks.run("fsfreeze", "--freeze", at)
        try:
            yield at
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", at], capture_output=True, check=False)


def test_a_tool_that_nothing_can_kill_is_a_failed_collection_and_is_not_started_again(tmp_path: Path, frozen: Path) -> None:
    bin, places = tmp_path / "bin", tmp_path / "host"
    smi = tool(bin, "nvidia-smi", {"--query-gpu=": GPU_0, "nvlink -gt d": LINKS, "dmon -s t -c 1": PCIE})
    working = smi.read_text()
    started = tmp_path / "started"
    smi.write_text(f"#!/bin/sh\necho $$ >>{started}\nexec 3>{frozen}/file\n")
    for _ in range(2):
        directory = collect(places, NVIDIA, bin, patience_s=1)
        for name in ("links", "nvidia"):
            file = directory / f"gpu_{name}.prom"
            assert value(samples(file), "node_gpu_collector_success", collector=name) == 0
            [pid] = started.read_text().split()
            assert f"# says: nvidia-smi (process {pid}) cannot be killed, and has not ended for " in file.read_text()
    subprocess.run(["fsfreeze", "--unfreeze", frozen], check=True)
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.05)
    smi.write_text(working)
    found = samples(collect(places, NVIDIA, bin) / "gpu_nvidia.prom")
    assert value(found, "node_gpu_collector_success", collector="nvidia") == 1
    assert by_gpu(found, "node_gpu_temperature_celsius") == {"0": 61}
    assert sorted(file.name for file in directory.iterdir()) == ["gpu_links.prom", "gpu_nvidia.prom"]


def test_a_loop_that_is_stopped_leaves_no_collector_behind(tmp_path: Path) -> None:
    bin, places = tmp_path / "bin", tmp_path / "host"
    smi = tool(bin, "nvidia-smi", {"--query-gpu=": GPU_0, "nvlink -gt d": LINKS, "dmon -s t -c 1": PCIE})
    collect(places, NVIDIA, bin)
    begun, done = tmp_path / "begun", tmp_path / "done"
    smi.write_text(f"#!/bin/sh\necho >>{begun}\nsleep 1\necho >>{done}\n")
    environment = {
        "PATH": os.environ["PATH"],
        "GPU_FLEET_PREFIX": str(places),
        "GPU_FLEET_TOOL_PATH": str(bin),
        **PYTHON,
        **NVIDIA,
    }
    loop = subprocess.Popen([places / "opt/gpu-fleet/libexec/run", "textfile", "loop"], env=environment, start_new_session=True)
    while not begun.exists():
        time.sleep(0.01)
    os.killpg(loop.pid, signal.SIGTERM)  # as supervisor does it
    loop.wait(timeout=120)
    lines = begun.read_text()
    assert done.read_text() == lines, "each tool that was started has ended"
    time.sleep(2)
    assert begun.read_text() == lines, "and no other is started"


def test_a_collector_without_a_result_is_ended_and_started_again_by_the_next_run(tmp_path: Path) -> None:
    bin, places = tmp_path / "bin", tmp_path / "host"
    working = tool(bin, "nvidia-smi", {"--query-gpu=": GPU_0, "nvlink -gt d": LINKS, "dmon -s t -c 1": PCIE}).read_text()
    (bin / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 1000\n")
    file = collect(places, NVIDIA, bin, patience_s=1) / "gpu_nvidia.prom"
    assert value(samples(file), "node_gpu_collector_success", collector="nvidia") == 0
    assert "# says: nvidia-smi reported no GPU: no answer within 1 s" in file.read_text()
    (bin / "nvidia-smi").write_text(working)
    found = samples(collect(places, NVIDIA, bin) / "gpu_nvidia.prom")
    assert value(found, "node_gpu_collector_success", collector="nvidia") == 1


def test_each_link_has_its_own_counters_in_bytes(tmp_path: Path) -> None:
    tool(tmp_path / "bin", "nvidia-smi", {"nvlink -gt d": LINKS, "dmon -s t -c 1": PCIE})
    found = samples(collect(tmp_path, NVIDIA, tmp_path / "bin") / "gpu_links.prom")
    assert value(found, "node_gpu_nvlink_transmit_bytes_total", gpu="0", link="0") == 2 * 1024
    assert value(found, "node_gpu_nvlink_receive_bytes_total", gpu="0", link="0") == 3 * 1024


def test_old_drivers_are_queried_for_counter_zero(tmp_path: Path) -> None:
    refusal = "ERROR: Option -gt is not recognized. Please run 'nvidia-smi nvlink -h'.\n"
    tool(tmp_path / "bin", "nvidia-smi", {"nvlink -gt d": refusal, "nvlink -g 0": OLD_LINKS, "dmon -s t -c 1": PCIE})
    found = samples(collect(tmp_path, NVIDIA, tmp_path / "bin") / "gpu_links.prom")
    assert value(found, "node_gpu_nvlink_transmit_bytes_total", gpu="0", link="2") == 50_000
    assert value(found, "node_gpu_nvlink_receive_bytes_total", gpu="0", link="2") == 100_000


def test_pcie_traffic_is_in_bytes_and_absent_where_the_driver_has_none(tmp_path: Path) -> None:
    tool(tmp_path / "bin", "nvidia-smi", {"dmon -s t -c 1": PCIE})
    found = samples(collect(tmp_path, NVIDIA, tmp_path / "bin") / "gpu_links.prom")
    assert by_gpu(found, "node_gpu_pcie_receive_bytes_per_second") == {"0": 51e6}
    assert by_gpu(found, "node_gpu_pcie_transmit_bytes_per_second") == {"0": 14e6}
    assert value(found, "node_gpu_collector_success", collector="links") == 1


def test_a_host_with_another_exporter_gets_link_traffic_only(tmp_path: Path) -> None:
    tool(tmp_path / "bin", "nvidia-smi", {"nvlink -gt d": LINKS, "dmon -s t -c 1": PCIE})
    facts = {"GPU_FLEET_EXPORTER_MODE": "nvidia_gpu_exporter", "GPU_VENDOR": "nvidia"}
    directory = collect(tmp_path, facts, tmp_path / "bin")
    assert [file.name for file in directory.iterdir()] == ["gpu_links.prom"]


def test_a_collector_that_went_away_takes_its_metrics_along(tmp_path: Path) -> None:
    tool(tmp_path / "bin", "nvidia-smi", {"--query-gpu=": GPU_0})
    directory = collect(tmp_path, NVIDIA, tmp_path / "bin")
    (directory / "drift.prom").write_text("of_somebody_else 1\n")
    (tmp_path / "opt/gpu-fleet/lib/python/on_host/collect/nvidia.py").unlink()
    facts = {"GPU_FLEET_EXPORTER_MODE": "nvidia_gpu_exporter", "GPU_VENDOR": "nvidia"}
    collect(tmp_path, facts, tmp_path / "bin")
    assert sorted(file.name for file in directory.iterdir()) == ["drift.prom", "gpu_links.prom"]


def test_rocm_smi_yields_the_same_names(tmp_path: Path) -> None:
    answer = (
        '{"card0": {"Unique ID": "0xabc", "Temperature (Sensor edge) (C)": "N/A", "Temperature (Sensor junction) (C)": "44.0",'
        ' "Max Graphics Package Power (W)": "750.0", "Current Socket Graphics Package Power (W)": "132.0", "GPU use (%)": "7",'
        ' "VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "297000960", "PCI Bus": "0000:05:00.0",'
        ' "Card Series": "AMD Instinct MI300X", "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]"},'
        ' "system": {"Driver version": "6.8.5"}}\n'
    )
    tool(tmp_path / "bin", "rocm-smi", {"--showproductname": "WARNING: low-power state\n" + answer})
    found = samples(collect(tmp_path, AMD, tmp_path / "bin") / "gpu_amd.prom")
    assert by_gpu(found, "node_gpu_memory_total_bytes") == {"0": 206141652992}
    assert by_gpu(found, "node_gpu_memory_used_bytes") == {"0": 297000960}
    assert by_gpu(found, "node_gpu_utilization_percent") == {"0": 7}
    assert by_gpu(found, "node_gpu_temperature_celsius") == {"0": 44}
    assert by_gpu(found, "node_gpu_power_draw_watts") == {"0": 132}
    assert by_gpu(found, "node_gpu_power_limit_watts") == {"0": 750}
    who = {"gpu": "0", "uuid": "0xabc", "model": "AMD Instinct MI300X", "pci": "0000:05:00", "driver_version": "6.8.5"}
    assert value(found, "node_gpu_info", **who) == 1


def test_memory_errors_and_limits_of_an_amd_gpu_come_from_the_driver_where_rocm_smi_has_none(tmp_path: Path) -> None:
    cards = ", ".join(
        f'"card{gpu}": {{"PCI Bus": "0000:{bus}:00.0", "Card Series": "MI300X", "Temperature (Sensor memory) (C)": "51.0"}}'
        for gpu, bus in enumerate(("05", "26"))
    )
    device = tmp_path / "sys/bus/pci/drivers/amdgpu/0000:05:00.0"
    files = {
        "ras/umc_err_count": "ue: 1\nce: 12\n",
        "ras/gfx_err_count": "ue: 2\nce: 0\n",
        "hwmon/hwmon3/temp1_label": "edge\n",
        "hwmon/hwmon3/temp2_label": "junction\n",
        "hwmon/hwmon3/temp2_crit": "100000\n",
        "hwmon/hwmon3/temp3_label": "mem\n",
        "hwmon/hwmon3/temp3_crit": "105000\n",
    }
    for name, text in files.items():
        (device / name).parent.mkdir(parents=True, exist_ok=True)
        (device / name).write_text(text)
    tool(tmp_path / "bin", "rocm-smi", {"--showproductname": f"{{{cards}}}"})
    found = samples(collect(tmp_path, AMD, tmp_path / "bin") / "gpu_amd.prom")
    assert by_gpu(found, "node_gpu_ecc_uncorrected_total") == {"0": 3}, "of all blocks; none of a GPU without RAS"
    assert by_gpu(found, "node_gpu_ecc_corrected_total") == {"0": 12}
    assert by_gpu(found, "node_gpu_temperature_limit_celsius") == {"0": 100}
    assert by_gpu(found, "node_gpu_memory_temperature_limit_celsius") == {"0": 105}
    assert by_gpu(found, "node_gpu_memory_temperature_celsius") == {"0": 51, "1": 51}


@pytest.mark.parametrize("wrapped", [False, True])
def test_amd_smi_yields_the_same_names_in_both_its_formats(tmp_path: Path, wrapped: bool) -> None:
    metric = (
        '[{"gpu": 3, "usage": {"gfx_activity": {"value": 94, "unit": "%"}, "mm_activity": "N/A"},'
        ' "power": {"socket_power": 612}, "temperature": {"edge": "N/A", "hotspot": {"value": 61, "unit": "C"},'
        ' "mem": {"value": 55, "unit": "C"}}, "ecc": {"total_correctable_count": 7, "total_uncorrectable_count": 0},'
        ' "mem_usage": {"total_vram": {"value": 196592, "unit": "MB"}, "used_vram": {"value": 284, "unit": "MB"}}}]'
    )
    static = (
        '[{"gpu": 3, "asic": {"market_name": "AMD Instinct MI300X", "asic_serial": "0xdef"}, "bus": {"bdf": "0000:26:00.0"},'
        ' "limit": {"max_power": {"value": 750, "unit": "W"}, "socket_power": {"value": 700, "unit": "W"},'
        ' "slowdown_hotspot_temperature": {"value": 100, "unit": "C"}, "slowdown_vram_temperature": "N/A"},'
        ' "driver": {"name": "amdgpu", "version": "6.12.12"}}]'
    )
    if wrapped:
        metric, static = (f'{{"gpu_data": {answer}}}' for answer in (metric, static))
    tool(tmp_path / "bin", "amd-smi", {"metric": metric, "static": static})
    found = samples(collect(tmp_path, AMD, tmp_path / "bin") / "gpu_amd.prom")
    assert by_gpu(found, "node_gpu_memory_total_bytes") == {"3": 196592 * 2**20}
    assert by_gpu(found, "node_gpu_utilization_percent") == {"3": 94}
    assert by_gpu(found, "node_gpu_temperature_celsius") == {"3": 61}
    assert by_gpu(found, "node_gpu_power_draw_watts") == {"3": 612}
    assert by_gpu(found, "node_gpu_power_limit_watts") == {"3": 700}
    assert by_gpu(found, "node_gpu_ecc_corrected_total") == {"3": 7}
    assert by_gpu(found, "node_gpu_ecc_uncorrected_total") == {"3": 0}
    assert by_gpu(found, "node_gpu_memory_temperature_celsius") == {"3": 55}
    assert by_gpu(found, "node_gpu_temperature_limit_celsius") == {"3": 100}
    assert not by_gpu(found, "node_gpu_memory_temperature_limit_celsius")
    who = {"gpu": "3", "uuid": "0xdef", "model": "AMD Instinct MI300X", "pci": "0000:26:00", "driver_version": "6.12.12"}
    assert value(found, "node_gpu_info", **who) == 1


AMD_METRIC = (
    '[{{"gpu": {gpu}, "usage": {{"gfx_activity": {{"value": 94, "unit": "%"}}}}, "power": {{"socket_power": 612}},'
    ' "temperature": {{"hotspot": {{"value": 61, "unit": "C"}}}}, "mem_usage": {{"used_vram": {{"value": 284, "unit": "MB"}}}}}}]'
)
AMD_STATIC = (
    '[{{"gpu": {gpu}, "asic": {{"market_name": "MI300X", "asic_serial": "{uuid}"}}, "bus": {{"bdf": "{bdf}"}},'
    ' "limit": {{"socket_power": {{"value": 700, "unit": "W"}}}}}}]'
)
# PR 4931 of rocm-systems.
TRACEBACK = """Traceback (most recent call last):
  File "/opt/rocm/bin/amd-smi", line 127, in <module>
    args.func(args)
TypeError: 'bool' object is not subscriptable
"""
UNREAD = '[{"gpu": 0, "usage": "N/A", "power": {"socket_power": "N/A"}, "temperature": {"hotspot": "N/A", "edge": "N/A"}}]'
NO_SENSE = (
    '[{"gpu": 0, "usage": {"gfx_activity": {"value": 65535, "unit": "%"}}, "power": {"socket_power": 65535},'
    ' "temperature": {"hotspot": {"value": 511, "unit": "C"}}}]'
)


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (TRACEBACK, "TypeError: 'bool' object is not subscriptable"),
        ("Unable to get GPU metrics: AMDSMI_STATUS_BUSY\n", "AMDSMI_STATUS_BUSY"),
        ("", "none of their values"),
        (UNREAD, "none of their values"),
        (NO_SENSE, "none of their values"),
    ],
    ids=["crash", "an error and exit status 0", "nothing", "words for values", "values that no GPU has"],
)
def test_gpus_that_are_listed_without_readings_are_a_part_that_failed(tmp_path: Path, metric: str, said: str) -> None:
    static = AMD_STATIC.format(gpu=0, uuid="0xabc", bdf="0000:05:00.0")
    tool(tmp_path / "bin", "amd-smi", {"metric": metric, "static": static})
    file = collect(tmp_path, AMD, tmp_path / "bin") / "gpu_amd.prom"
    found = samples(file)
    assert by_gpu(found, "node_gpu_power_limit_watts") == {"0": 700}, "what could be read is reported"
    assert value(found, "node_gpu_collector_success", collector="amd") == 1, "not a reason to reboot the host"
    assert value(found, "node_gpu_collector_part_success", collector="amd", part="readings") == 0
    assert not {name for name, _ in found} & {"node_gpu_temperature_celsius", "node_gpu_utilization_percent"}, (
        "nothing is made up"
    )
    assert said in "".join(line for line in file.read_text().splitlines() if line.startswith("# says: ")), (
        "apply and check show it"
    )


def test_a_gpu_without_readings_beside_others_is_unreadable(tmp_path: Path) -> None:
    """An answer that was cut, and a GPU whose cells are errors."""
    static = "".join(AMD_STATIC.format(gpu=gpu, uuid=f"0x{gpu}", bdf=f"0000:0{gpu}:00.0") for gpu in (1, 2))
    tool(
        tmp_path / "amd", "amd-smi", {"metric": AMD_METRIC.format(gpu=1)[:-1] + ', {"gpu": 2, "usage": {"gfx_', "static": static}
    )
    errors = "1, GPU-bbbb, NVIDIA H100 80GB HBM3, 00000000:5D:00.0, 590.48.01" + ", [Unknown Error]" * 8 + "\n"
    tool(tmp_path / "nvidia", "nvidia-smi", {"--query-gpu=": GPU_0 + errors})
    for facts, place, count in ((AMD, "amd", {"1", "2"}), (NVIDIA, "nvidia", {"0", "1"})):
        found = samples(collect(tmp_path / place / "host", facts, tmp_path / place) / f"gpu_{place}.prom")
        assert set(by_gpu(found, "node_gpu_info")) == count
        assert value(found, "node_gpu_unreadable") == 1
        assert value(found, "node_gpu_collector_part_success", collector=place, part="readings") == 1


@pytest.mark.parametrize("cell", ["[Unknown Error]", "[GPU requires reset]", "ERR!", "[Insufficient Permissions]", "[N/A]"])
def test_an_nvidia_gpu_whose_cells_are_words_is_listed_by_its_address_and_not_measured(tmp_path: Path, cell: str) -> None:
    row = f"0, {cell}, {cell}, 00000000:4B:00.0, 590.48.01" + f", {cell}" * 8 + "\n"
    tool(tmp_path / "bin", "nvidia-smi", {"--query-gpu=": row})
    found = samples(collect(tmp_path, NVIDIA, tmp_path / "bin") / "gpu_nvidia.prom")
    who = {"gpu": "0", "uuid": "0000:4b:00", "model": "", "pci": "0000:4b:00", "driver_version": "590.48.01"}
    assert value(found, "node_gpu_info", **who) == 1
    assert value(found, "node_gpu_collector_part_success", collector="nvidia", part="readings") == 0
    assert not by_gpu(found, "node_gpu_memory_total_bytes")


@pytest.mark.parametrize(
    "warning",
    [
        "WARNING: User is missing the following required groups: render, video. Please add user to these groups.",
        "[WARNING] AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status",
        "{not json",
    ],
)
def test_a_warning_before_the_json_hides_nothing(tmp_path: Path, warning: str) -> None:
    static = AMD_STATIC.format(gpu=0, uuid="N/A", bdf="0000:05:00.0")
    tool(tmp_path / "bin", "amd-smi", {"metric": f"{warning}\n\n{AMD_METRIC.format(gpu=0)}\n", "static": f"{warning}\n{static}"})
    found = samples(collect(tmp_path, AMD, tmp_path / "bin") / "gpu_amd.prom")
    assert by_gpu(found, "node_gpu_temperature_celsius") == {"0": 61}
    who = {"gpu": "0", "uuid": "0000:05:00", "model": "MI300X", "pci": "0000:05:00", "driver_version": ""}
    assert value(found, "node_gpu_info", **who) == 1, "without a serial number it is known by its address"


def test_a_partitioned_gpu_counts_once(tmp_path: Path) -> None:
    """Two MI300X, one in CPX mode: its partitions are functions of one PCI address, and share the serial number."""
    functions = [(gpu, f"0000:07:00.{gpu}", "0xaaa") for gpu in range(8)] + [(8, "0000:27:00.0", "0xbbb")]
    static = "".join(AMD_STATIC.format(gpu=gpu, uuid=uuid, bdf=bdf) for gpu, bdf, uuid in functions)
    tool(tmp_path / "bin", "amd-smi", {"metric": AMD_METRIC.format(gpu=0) + AMD_METRIC.format(gpu=8), "static": static})
    found = samples(collect(tmp_path, AMD, tmp_path / "bin") / "gpu_amd.prom")
    assert set(by_gpu(found, "node_gpu_info")) == {"0", "8"}
    assert by_gpu(found, "node_gpu_partitions") == {"0": 8}
    assert by_gpu(found, "node_gpu_temperature_celsius") == {"0": 61, "8": 61}
    assert value(found, "node_gpu_unreadable") == 0
    assert set(by_gpu(found, "node_gpu_memory_used_bytes")) == {"8"}, "whether it is the GPU's, or a share, nobody can know"

    device = tmp_path / "sys/bus/pci/drivers/amdgpu/0000:07:00.0"
    device.mkdir(parents=True)
    (device / "mem_info_vram_total").write_text("206141652992\n")
    (device / "mem_info_vram_used").write_text("51535413248\n")
    found = samples(collect(tmp_path, AMD, tmp_path / "bin") / "gpu_amd.prom")
    assert by_gpu(found, "node_gpu_memory_used_bytes")["0"] == 51535413248
    assert by_gpu(found, "node_gpu_memory_total_bytes")["0"] == 206141652992


def test_amd_smi_is_asked_for_what_is_reported_and_an_old_one_for_all(tmp_path: Path) -> None:
    script = tool(tmp_path / "bin", "amd-smi", {"metric --json": AMD_METRIC.format(gpu=0), "static": "[]"})
    asked = tmp_path / "asked"
    script.write_text(script.read_text().replace("#!/bin/sh\n", f'#!/bin/sh\necho "$*" >>{asked}\n'))
    found = samples(collect(tmp_path, AMD, tmp_path / "bin") / "gpu_amd.prom")
    assert by_gpu(found, "node_gpu_temperature_celsius") == {"0": 61}
    commands = asked.read_text().splitlines()
    assert commands[:2] == ["metric --usage --power --temperature --ecc --mem-usage --json", "metric --json"]


def test_prometheus_reads_what_is_written(tmp_path: Path) -> None:
    odd = GPU_0.replace("NVIDIA H100", 'NVIDIA "H\\100"')
    tool(tmp_path / "bin", "nvidia-smi", {"--query-gpu=": odd, "nvlink -gt d": LINKS, "dmon -s t -c 1": PCIE})
    for file in collect(tmp_path, NVIDIA, tmp_path / "bin").iterdir():
        with file.open() as text:
            done = subprocess.run([find("promtool"), "check", "metrics"], stdin=text, capture_output=True, text=True)
        assert (done.returncode, done.stdout + done.stderr) == (0, ""), file.name


def test_a_reader_never_sees_half_a_file_or_a_leftover(tmp_path: Path) -> None:
    tool(tmp_path / "bin", "nvidia-smi", {"--query-gpu=": GPU_0})
    directory = collect(tmp_path, NVIDIA, tmp_path / "bin")
    assert sorted(file.name for file in directory.iterdir()) == ["gpu_links.prom", "gpu_nvidia.prom"]
    assert all(file.stat().st_mode & 0o777 == 0o644 for file in directory.iterdir()), "node_exporter runs as another user"
