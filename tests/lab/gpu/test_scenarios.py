from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lab import gpu
from lab.gpu import setup
from lab.gpu.machine import Machine
from lab.gpu.scenario import SCENARIOS, ScenarioError, available, compile_scenario
from lab.gpu.status import render


@pytest.mark.parametrize("scenario", available())
def test_every_scenario_becomes_a_machine_whose_status_can_be_read(scenario: str, tmp_path: Path) -> None:
    setup.init(state=tmp_path, scenario=scenario)
    text = render(tmp_path)
    assert scenario in text
    assert text.count("healthy") == len(Machine.load(tmp_path).gpus)


def test_two_machines_of_a_scenario_have_other_gpus() -> None:
    one, other = compile_scenario("h100x8"), compile_scenario("h100x8", hostname="gpu-node-002")
    assert not {gpu["uuid"] for gpu in one["gpus"]} & {gpu["uuid"] for gpu in other["gpus"]}
    assert one == compile_scenario("h100x8"), "the same scenario is the same machine, on every computer"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vendor": "intel"}, "vendor: 'intel'; expected one of nvidia, amd"),
        ({"gpus": [{"product": "h100", "load": "idle"}]}, "gpus[].product: 'h100'; expected one of h100-sxm"),
        ({"gpus": [{"product": "t4", "load": "busy"}]}, "gpus[].load: 'busy'; expected one of training, inference, ramp, idle"),
        ({"gpus": [{"product": "t4", "load": "idle", "count": 99}]}, "count: 99 is not a number from 1 to 16"),
        ({"pci": ["18:00"]}, "pci: 1 slots for 8 GPUs"),
        ({"pci": [1, 2, 3, 4, 5, 6, 7, 8]}, "keep the quotes"),
        ({"colour": "green"}, "colour: unknown key; expected one of cuda, driver"),
        ({"driver": None}, "driver: missing"),
    ],
)
def test_an_invalid_scenario_is_reported_with_the_place_and_what_is_expected(change: dict, said: str, tmp_path: Path) -> None:
    text = yaml.safe_load((SCENARIOS / "h100x8.yaml").read_text()) | change
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in text.items() if value is not None}))
    with pytest.raises(ScenarioError) as refused:
        compile_scenario(str(path))
    assert said in str(refused.value)
    assert str(path) in str(refused.value)


def test_an_unknown_scenario_is_answered_with_the_ones_there_are() -> None:
    with pytest.raises(ScenarioError, match="mi300x4"):
        compile_scenario("h100x9")


def test_ensuring_a_machine_again_repairs_it_and_keeps_its_log(tmp_path: Path) -> None:
    state, tools = tmp_path / "state", tmp_path / "bin"
    gpu.ensure(state=state, bin_directory=tools)
    before = Machine.load(state).gpu(3)
    gpu.inject_xid(state, code=79, gpu=3)
    gpu.ensure(state=state, bin_directory=tools)
    after = Machine.load(state).gpu(3)
    assert (after.uuid, after.lost) == (before.uuid, False)
    assert "fallen off the bus" in (state / "kernel.log").read_text()
    written = (state / "kernel.log").read_text()
    gpu.ensure(state=state, bin_directory=tools)
    assert (state / "kernel.log").read_text() == written, "a healthy machine is left alone"


def test_ensuring_another_scenario_recreates_the_machine(tmp_path: Path) -> None:
    state, tools = tmp_path / "state", tmp_path / "bin"
    gpu.ensure(state=state, bin_directory=tools)
    gpu.inject_xid(state, code=79, gpu=3)
    gpu.ensure(state=state, bin_directory=tools, scenario="t4")
    assert gpu.count(state) == 1
    assert (state / "kernel.log").read_text() == ""


def test_the_tools_of_the_other_vendor_go_away(tmp_path: Path) -> None:
    gpu.ensure(state=tmp_path / "state", bin_directory=tmp_path / "bin")
    gpu.ensure(state=tmp_path / "state", bin_directory=tmp_path / "bin", scenario="mi300x4")
    assert {path.name for path in (tmp_path / "bin").iterdir()} == {"rocm-smi", "amd-smi", "amd-metrics-exporter"}
