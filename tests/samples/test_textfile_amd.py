"""The AMD textfile collector against recorded answers of rocm-smi and amd-smi."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.host.parts.textfiles import Samples, by_gpu, collect, samples, tool
from tests.samples.conftest import SAMPLES

FACTS = {"GPU_FLEET_EXPORTER_MODE": "textfile", "GPU_VENDOR": "amd"}
ROCM_SMI = sorted((SAMPLES / "amd-smi").glob("rocm-smi-*.json"))
PARTIAL = {
    "rocm-smi-mi250-rocm5-short",
    "rocm-smi-mi250-rocm6-short",
}  # cut by their author: no core temperature


def metrics(tmp_path: Path, name: str, answers: dict[str, str]) -> Samples:
    tool(tmp_path / "bin", name, answers)
    return samples(collect(tmp_path, FACTS, tmp_path / "bin") / "gpu_amd.prom")


def cards(recording: Path) -> dict[str, dict[str, str]]:
    return {
        name.removeprefix("card"): card for name, card in json.loads(recording.read_text()).items() if name.startswith("card")
    }


@pytest.mark.parametrize("recording", ROCM_SMI, ids=lambda path: path.stem)
def test_every_recorded_card_is_reported_by_name(tmp_path: Path, recording: Path) -> None:
    found = metrics(tmp_path, "rocm-smi", {"--showproductname": recording.read_text()})
    assert set(by_gpu(found, "node_gpu_info")) == set(cards(recording))


@pytest.mark.parametrize("recording", ROCM_SMI, ids=lambda path: path.stem)
def test_the_values_are_those_of_the_recording(tmp_path: Path, recording: Path) -> None:
    found = metrics(tmp_path, "rocm-smi", {"--showproductname": recording.read_text()})
    expected: dict[str, dict[str, float]] = {"utilization_percent": {}, "memory_total_bytes": {}, "memory_used_bytes": {}}
    for gpu, card in cards(recording).items():
        lower = {key.lower(): text for key, text in card.items()}
        for name, key in (
            ("utilization_percent", "gpu use (%)"),
            ("memory_total_bytes", "vram total memory (b)"),
            ("memory_used_bytes", "vram total used memory (b)"),
        ):
            if key in lower:
                expected[name][gpu] = float(lower[key])
    for name, values in expected.items():
        assert by_gpu(found, f"node_gpu_{name}") == values
    assert set(by_gpu(found, "node_gpu_power_draw_watts")) == set(cards(recording))


@pytest.mark.parametrize("recording", [path for path in ROCM_SMI if path.stem not in PARTIAL], ids=lambda path: path.stem)
def test_every_complete_recording_has_a_temperature(tmp_path: Path, recording: Path) -> None:
    found = by_gpu(metrics(tmp_path, "rocm-smi", {"--showproductname": recording.read_text()}), "node_gpu_temperature_celsius")
    assert set(found) == set(cards(recording))


def test_memory_temperature_alone_is_not_taken_for_the_core(tmp_path: Path) -> None:
    recording = SAMPLES / "amd-smi/rocm-smi-mi250-rocm6-short.json"
    found = metrics(tmp_path, "rocm-smi", {"--showproductname": recording.read_text()})
    assert not by_gpu(found, "node_gpu_temperature_celsius")


def test_recorded_amd_smi_gives_power_and_its_limit(tmp_path: Path) -> None:
    answers = {
        "metric": (SAMPLES / "amd-smi/amd-smi-metric-p.json").read_text(),
        "static": (SAMPLES / "amd-smi/amd-smi-static-mi210.json").read_text(),
    }
    found = metrics(tmp_path, "amd-smi", answers)
    assert by_gpu(found, "node_gpu_power_draw_watts") == {"0": 10}
    assert by_gpu(found, "node_gpu_power_limit_watts") == {"0": 300}
    [who] = [dict(labels) for name, labels in found if name == "node_gpu_info"]
    assert (who["model"], who["driver_version"]) == ("AMD Instinct MI210", "")
