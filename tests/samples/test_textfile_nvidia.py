"""The NVIDIA textfile collectors against recorded answers of nvidia-smi."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from gpu_fleet.on_host.collect.nvidia import FIELDS
from tests.host.parts.textfiles import Samples, by_gpu, collect, samples, tool, value
from tests.samples.conftest import SAMPLES

NVIDIA_SMI = SAMPLES / "nvidia-smi"
FACTS = {"GPU_FLEET_EXPORTER_MODE": "textfile", "GPU_VENDOR": "nvidia"}
CAPTURES = sorted(NVIDIA_SMI.glob("captures/*/*.query-gpu.csv"))
NVLINK_DATA = sorted([*NVIDIA_SMI.glob("nvlink/*-gt-d-*.txt"), *NVIDIA_SMI.glob("nvlink/*-g0.txt")])
NO_NVLINK_DATA = sorted(set(NVIDIA_SMI.glob("nvlink/*.txt")) - set(NVLINK_DATA))
NOTHING_READ = ("driver-not-loaded", "no-devices", "nvml-unknown-error", "nvml-version-mismatch", "gpu-lost-old")


def answer(capture: Path) -> str:
    """The answer of nvidia-smi to the collector's query, from a capture of all fields: the queried cells, without units."""
    header, *rows = csv.reader(capture.open(newline=""), skipinitialspace=True)
    column = {name.split(" [")[0]: number for number, name in enumerate(header)}
    return "".join(", ".join(re.sub(r"^([\d.]+) \S+$", r"\1", row[column[field]]) for field in FIELDS) + "\n" for row in rows)


def gpu_metrics(tmp_path: Path, text: str, code: int = 0) -> Samples:
    tool(tmp_path / "bin", "nvidia-smi", {"--query-gpu=": text}, code=code)
    return samples(collect(tmp_path, FACTS, tmp_path / "bin") / "gpu_nvidia.prom")


def link_metrics(tmp_path: Path, answers: dict[str, str]) -> Samples:
    tool(tmp_path / "bin", "nvidia-smi", answers)
    return samples(collect(tmp_path, FACTS, tmp_path / "bin") / "gpu_links.prom")


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_recorded_machine_has_memory_temperature_and_power_limit(tmp_path: Path, capture: Path) -> None:
    found = gpu_metrics(tmp_path, answer(capture))
    [memory] = by_gpu(found, "node_gpu_memory_total_bytes").values()
    assert 2**30 < memory < 2**38
    assert 20 < by_gpu(found, "node_gpu_temperature_celsius")["0"] < 100
    assert 50 < by_gpu(found, "node_gpu_power_limit_watts")["0"] < 1500
    assert value(found, "node_gpu_collector_success", collector="nvidia") == 1


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_utilization_is_present_except_in_mig_mode(tmp_path: Path, capture: Path) -> None:
    found = by_gpu(gpu_metrics(tmp_path, answer(capture)), "node_gpu_utilization_percent")
    assert bool(found) == ("-mig-" not in capture.parent.name), "a GPU in MIG mode has no utilization, which is not 0"


def test_the_nvlink_domain_of_a_gpu_is_reported_unless_its_fabric_is_one_host_or_unknown(tmp_path: Path) -> None:
    rows = (
        "0, 32766, 7a4f0e2c-8b1d-4e35-9c60-2f1d3b5a7c90\n"
        "1, 0, 00000000-0000-0000-0000-000000000000\n"
        "2, N/A, N/A\n"
        "3, [Not Supported], [Not Supported]\n"
    )
    found = link_metrics(tmp_path, {"nvlink -s": "", "nvlink": "", "--query-gpu=": rows})
    domains = [dict(labels) for (name, labels) in found if name == "node_gpu_fabric_info"]
    assert domains == [{"gpu": "0", "cluster_uuid": "7a4f0e2c-8b1d-4e35-9c60-2f1d3b5a7c90", "clique": "32766"}]


def test_a_registration_with_the_fabric_that_is_complete_may_have_failed(tmp_path: Path) -> None:
    """NVIDIA/NVSentinel issues 883 and 889: for 20 days nobody saw either of the two."""
    uuid = "00000000-0000-0000-0000-000000000000"
    rows = (
        f"0, 0, {uuid}, Completed, Success\n"
        f"1, 0, {uuid}, Completed, Unknown Error\n"
        f"2, 0, {uuid}, In Progress, N/A\n"
        f"3, 0, {uuid}, Not Started, Success\n"
        "4, N/A, N/A, N/A, N/A\n"
        f"5, 0, {uuid}, Not Supported, Success\n"
        "6, [GPU requires reset], [GPU requires reset], [GPU requires reset], [GPU requires reset]\n"
    )
    found = link_metrics(tmp_path, {"nvlink -s": "", "nvlink": "", "--query-gpu=": rows})
    assert by_gpu(found, "node_gpu_fabric_state") == {"0": 3, "1": 4, "2": 2, "3": 1}


def test_a_gpu_that_left_its_fabric_says_so_and_one_in_mig_mode_does_not(tmp_path: Path) -> None:
    """leptonai/gpud pull request 1108: a GB200 whose state is Not Supported, though its tray belongs to a rack."""
    rows = (
        "0, N/A, N/A, N/A, N/A, Disabled\n"
        "1, 0, 00000000-0000-0000-0000-000000000000, Not Supported, Success, Disabled\n"
        "2, N/A, N/A, N/A, N/A, Enabled\n"
        "3, 4026, 7a4f0e2c-8b1d-4e35-9c60-2f1d3b5a7c90, Completed, Success, Disabled\n"
        "4, [Not Supported], [Not Supported], [Not Supported], [Not Supported], [N/A]\n"
        "5, N/A, N/A, N/A, N/A, Disabled\n"
        "6, [GPU requires reset], [GPU requires reset], [GPU requires reset], [GPU requires reset], [GPU requires reset]\n"
    )
    links = "".join(f"GPU {gpu}: NVIDIA GB200 (UUID: GPU-{gpu})\n\t Link 0: <inactive>\n" for gpu in (0, 1, 2, 3, 4, 6))
    found = link_metrics(tmp_path, {"nvlink -s": links, "nvlink": "", "--query-gpu=": rows})
    assert by_gpu(found, "node_gpu_fabric_state") == {"0": 0, "1": 0, "3": 3, "4": 0}, "5 has no NVLinks, 2 cannot have a fabric"


@pytest.mark.parametrize("listing", sorted(NVIDIA_SMI.glob("fields/help-query-gpu-*.txt")), ids=lambda path: path.stem)
def test_recorded_drivers_know_every_queried_field(listing: Path) -> None:
    known = set(re.findall(r'"([\w.]+)"', listing.read_text()))
    assert set(FIELDS) <= known, "one unknown field makes nvidia-smi refuse the whole query"


def test_the_cells_of_one_failed_sensor_do_not_hide_the_others(tmp_path: Path) -> None:
    rows = []
    for line in (NVIDIA_SMI / "errors/unknown-error-cells-a6000.csv").read_text().splitlines():
        index, name, uuid, temperature, utilization, *more = (re.sub(r"^([\d.]+) \S+$", r"\1", cell) for cell in line.split(", "))
        draw, limit, used, total = more
        who = f"{index}, {uuid}, {name}, 00000000:01:00.0, 550.54.14"
        rows.append(f"{who}, {total}, {used}, {utilization}, {temperature}, {draw}, {limit}, 0, 0\n")
    found = gpu_metrics(tmp_path, "".join(rows))
    assert by_gpu(found, "node_gpu_temperature_celsius") == {"1": 32}
    assert by_gpu(found, "node_gpu_power_limit_watts") == {"0": 300, "1": 300}


@pytest.mark.parametrize("name", ["unknown-error-csv-rows.csv", "gpu-lost-new.txt", "gpu-lost-csv-second-line.txt"])
def test_a_recorded_failed_gpu_among_good_ones_is_counted(tmp_path: Path, name: str) -> None:
    lines = (NVIDIA_SMI / "errors" / name).read_text().splitlines()
    rows = []
    for line in lines:
        index = line.split(",")[0]
        good = f"{index}, GPU-{index}, A GPU, 00000000:0{index}:00.0, 550.54.14, 8192, 1, 2, 3, 4.0, 5.0, 0, 0"
        rows.append(good if index.isdigit() else line)
    found = gpu_metrics(tmp_path, "\n".join(rows) + "\n", code=15)
    assert value(found, "node_gpu_unreadable") >= 1
    assert set(by_gpu(found, "node_gpu_info")) == {line.split(",")[0] for line in lines if line[0].isdigit()}


@pytest.mark.parametrize("name", NOTHING_READ)
def test_a_recorded_failure_is_a_failed_collection(tmp_path: Path, name: str) -> None:
    found = gpu_metrics(tmp_path, (NVIDIA_SMI / f"errors/{name}.txt").read_text(), code=9)
    assert value(found, "node_gpu_collector_success", collector="nvidia") == 0
    assert not by_gpu(found, "node_gpu_info")


@pytest.mark.parametrize("recording", NVLINK_DATA, ids=lambda path: path.stem)
def test_every_link_of_a_recording_is_counted_in_both_directions(tmp_path: Path, recording: Path) -> None:
    text = recording.read_text()
    command = "nvlink -g 0" if "-g0" in recording.name else "nvlink -gt d"
    found = link_metrics(tmp_path, {command: text})
    links = len(re.findall(r"Link \d+: (?:Rx0|Data Tx): ", text))
    for direction in ("transmit", "receive"):
        counted = [labels for name, labels in found if name == f"node_gpu_nvlink_{direction}_bytes_total"]
        assert len(counted) == links


def test_the_counters_of_the_recorded_v100_are_those_of_the_link_that_was_busy(tmp_path: Path) -> None:
    found = link_metrics(tmp_path, {"nvlink -g 0": (NVIDIA_SMI / "nvlink/v100-x4-g0.txt").read_text()})
    assert value(found, "node_gpu_nvlink_receive_bytes_total", gpu="0", link="1") == 100_000
    assert value(found, "node_gpu_nvlink_receive_bytes_total", gpu="1", link="2") == 50_000


@pytest.mark.parametrize("recording", NO_NVLINK_DATA, ids=lambda path: path.stem)
def test_another_answer_about_nvlink_is_not_taken_for_traffic(tmp_path: Path, recording: Path) -> None:
    found = link_metrics(tmp_path, {"nvlink": recording.read_text()})
    assert not [name for name, _ in found if "transmit" in name or "receive" in name]


@pytest.mark.parametrize("recording", NO_NVLINK_DATA, ids=lambda path: path.stem)
def test_the_links_that_are_up_are_those_with_a_speed(tmp_path: Path, recording: Path) -> None:
    text = recording.read_text()
    found = link_metrics(tmp_path, {"nvlink -s": text, "nvlink": ""})
    active = [value for (name, _), value in found.items() if name == "node_gpu_nvlinks_active"]
    assert sum(active) == len(re.findall(r"Link \d+: [\d.]+ GB/s", text))


@pytest.mark.parametrize("recording", sorted(NVIDIA_SMI.glob("dmon/*.txt")), ids=lambda path: path.stem)
def test_recorded_pcie_traffic_is_read_by_the_name_of_its_column(tmp_path: Path, recording: Path) -> None:
    rows = [line.split() for line in recording.read_text().splitlines() if line and not line.startswith("#")]
    found = link_metrics(tmp_path, {"dmon -s t -c 1": recording.read_text()})
    assert by_gpu(found, "node_gpu_pcie_receive_bytes_per_second") == {gpu: int(rx) * 1e6 for gpu, rx, _ in rows}
    assert by_gpu(found, "node_gpu_pcie_transmit_bytes_per_second") == {gpu: int(tx) * 1e6 for gpu, _, tx in rows}
