from __future__ import annotations

import csv
import json
from collections.abc import Callable

import pytest

from lab.gpu import inject
from lab.gpu.amd import amd_smi, exporter, rocm_smi
from lab.gpu.machine import Machine


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, int]]:
    def call(tool, *arguments: str) -> tuple[str, int]:
        capsys.readouterr()
        code = tool.main(list(arguments))
        return capsys.readouterr().out, code

    return call


def test_rocm_smi_answers_the_switches_of_a_collector_as_json_and_csv(machine, run) -> None:
    machine("mi300x4")
    switches = ("--showmeminfo", "vram", "--showtemp", "--showpower", "--showuse")
    document = json.loads(run(rocm_smi, *switches, "--json")[0])
    assert list(document) == ["card0", "card1", "card2", "card3"]
    assert document["card0"]["VRAM Total Memory (B)"] == "206141652992"
    rows = list(csv.DictReader(run(rocm_smi, *switches, "--csv")[0].splitlines()))
    assert [row["device"] for row in rows] == list(document)
    assert rows[0]["GPU use (%)"] == document["card0"]["GPU use (%)"]


def test_the_driver_version_is_a_part_of_its_own(machine, run) -> None:
    machine("mi300x4")
    assert json.loads(run(rocm_smi, "--showdriverversion", "--json")[0]) == {"system": {"Driver version": "6.8.5"}}


def test_an_unknown_switch_is_refused(machine, run) -> None:
    machine("mi300x4")
    assert run(rocm_smi, "--showmagic")[1] == 2
    assert run(amd_smi, "magic")[1] == 2
    assert run(amd_smi, "metric", "--magic")[1] == 1


def test_amd_smi_lists_every_gpu_with_its_address(machine, run) -> None:
    machine("mi300x4")
    records = json.loads(run(amd_smi, "list", "--json")[0])
    assert [(record["gpu"], record["bdf"]) for record in records][:2] == [(0, "0000:05:00.0"), (1, "0000:26:00.0")]
    text, _ = run(amd_smi, "list")
    assert text.splitlines()[1] == "    BDF: 0000:05:00.0"


def test_amd_smi_gives_values_with_their_units(machine, run) -> None:
    machine("mi300x4")
    (record,) = json.loads(run(amd_smi, "metric", "-g", "2", "--power", "--usage", "--json")[0])
    assert set(record) == {"gpu", "usage", "power"}
    assert record["power"]["socket_power"]["unit"] == "W"
    rows = list(csv.DictReader(run(amd_smi, "metric", "--power", "--csv")[0].splitlines()))
    assert int(rows[2]["socket_power"]) == record["power"]["socket_power"]["value"]


def test_a_lost_gpu_is_gone_and_errors_are_counted(machine, run) -> None:
    state = machine("mi300x4")
    inject.lose(state, gpu=1)
    inject.inject_ecc(state, gpu=2, corrected=4)
    records = json.loads(run(amd_smi, "metric", "--ecc", "--json")[0])
    assert [(record["gpu"], record["ecc"]["total_correctable_count"]) for record in records] == [(0, 0), (2, 4), (3, 0)]
    assert "card1" not in run(rocm_smi, "--showuse", "--csv")[0]


def test_a_machine_without_amd_gpus_left_says_so(machine, run) -> None:
    state = machine("mi300x4")
    for gpu in range(4):
        inject.lose(state, gpu=gpu)
    assert run(rocm_smi)[1] == 1
    assert "amdgpu" in run(amd_smi, "list")[0]


def test_the_exporter_serves_a_series_per_gpu_with_its_mandatory_labels(machine) -> None:
    body = exporter.render(Machine.load(machine("mi300x4")), {})
    lines = [line for line in body.splitlines() if line.startswith("gpu_package_power{")]
    assert len(lines) == 4
    for label in (
        "gpu_id",
        "card_model",
        "gpu_partition_id",
        "serial_number",
        "hostname",
        "pod",
        "namespace",
        "container",
        "job_id",
    ):
        assert f'{label}="' in lines[0]
    assert "gpu_uuid" not in body, "only where the config file asks for it"
    assert 'gpu_uuid="' in exporter.render(Machine.load(machine("mi300x4")), {"GPUConfig": {"Labels": ["GPU_UUID"]}})


def test_the_exporter_serves_the_fields_and_prefix_of_its_config(machine) -> None:
    config = {"GPUConfig": {"Fields": ["GPU_HEALTH"]}, "CommonConfig": {"MetricsFieldPrefix": "amd_"}}
    body = exporter.render(Machine.load(machine("mi300x4")), config)
    assert {line.split()[2] for line in body.splitlines() if line.startswith("# TYPE")} == {"amd_gpu_health"}


def test_an_uncorrected_error_makes_a_gpu_unhealthy_and_a_lost_one_is_gone(machine) -> None:
    state = machine("mi300x4")
    inject.inject_ecc(state, gpu=0, uncorrected=1)
    inject.lose(state, gpu=3)
    body = exporter.render(Machine.load(state), {})
    assert [line.rsplit(" ", 1)[1] for line in body.splitlines() if line.startswith("gpu_health{")] == ["0", "1", "1"]
    assert 'gpu_nodes_total{hostname="gpu-lab-mi300x"} 3' in body


def test_mi2xx_report_average_power_and_the_edge(machine, run) -> None:
    state = machine("mi210x2")
    body = exporter.render(Machine.load(state), {})
    assert "gpu_average_package_power{" in body
    assert "gpu_edge_temperature{" in body
    assert "gpu_package_power{" not in body
    assert "Average Graphics Package Power (W)" in run(rocm_smi, "--showpower", "--json")[0]


def test_the_exporter_on_a_machine_of_the_other_vendor_says_so(machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine("t4")
    assert exporter.main([]) == 1
    assert "no AMD GPU" in capsys.readouterr().err
