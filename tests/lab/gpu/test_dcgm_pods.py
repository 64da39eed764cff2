"""dcgm-exporter on Kubernetes: the pod that holds a GPU in the labels, and a load test in the values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.gpu import work
from lab.gpu.dcgm import proftester
from lab.gpu.dcgm.cli import renderer
from lab.gpu.dcgm.pods import Pods
from lab.gpu.machine import Machine
from tests.lab.gpu.test_dcgm_exporter import NEW, NOON, OLD, counters, series

POD = {
    "gpu": 0,
    "namespace": "ml",
    "pod": "train-0",
    "container": "main",
    "uid": "8d1f",
    "labels": {"app.kubernetes.io/name": "train", "team": "vision"},
}
PROFILING = ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE")


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    file = tmp_path / "pods.json"
    file.write_text(json.dumps([POD]))
    return file


def temperatures(state: Path, pods: Pods | None, generation: str = OLD) -> list[str]:
    text = renderer(None, generation, started_s=NOON, pods=pods).render(Machine.load(state))
    return series(text, "DCGM_FI_DEV_GPU_TEMP" if generation == OLD else "DCGM_FI_DEV_GPU_TEMP_CELSIUS")


@pytest.mark.parametrize("generation", [OLD, NEW])
def test_the_pod_that_holds_a_gpu_is_named_and_no_other(generation: str, machine: Callable, pods: Path) -> None:
    held, *free = temperatures(machine(), Pods(pods), generation)
    assert held.partition("}")[0].endswith('DRIVER_VERSION="590.48.01",container="main",namespace="ml",pod="train-0"')
    assert len(free) == 7 and not any("pod=" in line for line in free)


def test_pod_labels_are_present_when_they_are_enabled_and_permitted(machine: Callable, pods: Path) -> None:
    state = machine()
    every = temperatures(state, Pods(pods, with_labels=True, with_uid=True))[0]
    assert 'app_kubernetes_io_name="train"' in every and 'team="vision"' in every and 'pod_uid="8d1f"' in every
    some = temperatures(state, Pods(pods, with_labels=True, allowed=["^team$"]))[0]
    assert "app_kubernetes_io_name" not in some and 'team="vision"' in some


def test_without_kubernetes_and_before_the_kubelet_has_answered_there_are_no_pods(machine: Callable, tmp_path: Path) -> None:
    state = machine()
    assert temperatures(state, None) == temperatures(state, Pods(tmp_path / "not-there"))


def profile(state: Path, tmp_path: Path, gpu: int) -> list[float]:
    file = counters(tmp_path / "profiling.csv", *(f"{name}, gauge, x" for name in PROFILING))
    text = renderer(file, OLD, started_s=NOON).render(Machine.load(state))
    return [float(series(text, name)[gpu].rsplit(" ", 1)[1]) for name in PROFILING]


def test_a_load_test_is_seen_while_it_runs_and_not_after(
    machine: Callable, tmp_path: Path, frozen_clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = machine("h100x4")
    monkeypatch.setattr(proftester.time, "sleep", lambda _: None)
    before = Machine.load(state).gpu(0).now()
    assert proftester.main(["--no-dcgm-validation", "-t", "1004", "-d", "45", "-i", "0"]) == 0
    assert profile(state, tmp_path, 0) == [0.98, 0.87, 0.21]
    assert profile(state, tmp_path, 1) != [0.98, 0.87, 0.21]
    frozen_clock(46)
    assert profile(state, tmp_path, 0) != [0.98, 0.87, 0.21]
    assert Machine.load(state).gpu(0).now().energy_j > before.energy_j, "a counter does not run backwards"


def test_another_test_drives_up_another_part(machine: Callable, tmp_path: Path) -> None:
    state = machine("h100x4")
    work.write(str(state), [{"gpu": 2, "test": 1005, "from_s": NOON, "until_s": NOON + 60}])
    assert profile(state, tmp_path, 2) == [0.98, work.IDLE_PART, 0.91]


@pytest.mark.parametrize(("arguments", "said"), [(["-t", "9"], "field 9 is not supported"), (["-i", "12"], "GPU 12")])
def test_an_impossible_load_test_is_reported(
    arguments: list[str], said: str, machine: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    machine()
    assert proftester.main(arguments) == 1
    assert said in capsys.readouterr().err
