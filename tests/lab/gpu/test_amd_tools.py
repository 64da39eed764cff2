from __future__ import annotations

import csv
import json
from collections.abc import Callable

import pytest

from lab.gpu import inject
from lab.gpu.amd import amd_smi, rocm_smi


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
