"""The simulated rocm-smi and amd-smi against recorded outputs of the real ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.samples.conftest import SAMPLES
from tests.samples.gpu_machines import make, run, shape

AMD = SAMPLES / "amd-smi"
_SHOWN = "id uniqueid vbios temp clocks maxpower power use memuse serial bus meminfo productname driverversion"
EVERYTHING = [f"--show{what}" for what in _SHOWN.split()]


@pytest.fixture
def mi300x(tmp_path: Path) -> Path:
    return make(tmp_path, "mi300x4", gpus=4, load="idle")


def test_rocm_smi_uses_only_recorded_keys(mi300x: Path) -> None:
    recorded = {
        key
        for path in AMD.glob("rocm-smi-*.json")
        for card in json.loads(path.read_text()).values()
        if isinstance(card, dict)
        for key in card
    } | {line.split(": ")[1] for line in (AMD / "rocm-smi-a-mi300x-x4.txt").read_text().splitlines() if line.startswith("GPU[")}
    recorded |= {column for path in AMD.glob("rocm-smi-a-*.csv") for column in path.read_text().splitlines()[0].split(",")}
    document = json.loads(run(mi300x, "rocm-smi", *EVERYTHING, "--json")[0])
    assert {key for card in document.values() for key in card} <= recorded
    assert document["system"].keys() == json.loads((AMD / "rocm-smi-mi250-rocm6-short.json").read_text())["system"].keys()


def test_amd_smi_lists_gpus_as_recorded(mi300x: Path) -> None:
    uuid = re.compile(r"[0-9a-f]{4}74a1-0000-1000-80[0-9a-f]{2}-[0-9a-f]{12}")
    theirs = {
        shape(uuid.sub("UUID", line))
        for line in (AMD / "amd-smi-mi300x-list.txt").read_text().splitlines()[1:]
        if "truncated" not in line
    }
    ours = {shape(uuid.sub("UUID", line)) for line in run(mi300x, "amd-smi", "list")[0].splitlines()}
    assert {line.strip() for line in ours} == {line.strip() for line in theirs}


def sections(text: str) -> set[str]:
    """Names with the names above them; instances of the same thing are one."""
    found, path = set(), []
    for line in text.splitlines():
        entry = re.match(r"^( *)([A-Z][A-Z0-9_]*):", line)
        if entry and not line.startswith("GPU:"):
            depth = len(entry[1]) // 4
            path[depth - 1 :] = [re.sub(r"_\d+$", "", entry[2])]
            found.add("/".join(path))
    return found


def test_amd_smi_metric_has_the_recorded_sections(mi300x: Path) -> None:
    names = ("mi300x-metric", "metric-power", "metric-clock", "metric-usage-partitions", "metric-pcie", "metric-ecc-and-blocks")
    theirs = {section for name in names for section in sections((AMD / f"amd-smi-{name}.txt").read_text())}
    ours = sections(run(mi300x, "amd-smi", "metric", "--usage", "--power", "--pcie", "--ecc")[0])
    assert ours <= theirs


def test_amd_smi_static_has_the_recorded_sections_and_json_keys(mi300x: Path) -> None:
    theirs = sections((AMD / "amd-smi-static-mi300a-x4.txt").read_text()) | sections(
        (AMD / "amd-smi-mi300x-static.txt").read_text()
    )
    assert sections(run(mi300x, "amd-smi", "static", "--asic", "--bus", "--limit", "--driver")[0]) <= theirs
    recorded = json.loads((AMD / "amd-smi-static-mi210.json").read_text())["gpu_data"][0]
    (record,) = json.loads(run(mi300x, "amd-smi", "static", "-g", "0", "--limit", "--json")[0])
    assert record["limit"].keys() <= recorded["limit"].keys()
    assert record["limit"]["max_power"].keys() == recorded["limit"]["max_power"].keys()


def test_amd_smi_power_has_the_recorded_json(mi300x: Path) -> None:
    (recorded,) = json.loads((AMD / "amd-smi-metric-p.json").read_text())
    (record,) = json.loads(run(mi300x, "amd-smi", "metric", "-g", "0", "--power", "--json")[0])
    assert record.keys() == recorded.keys()
    assert record["power"].keys() == recorded["power"].keys()
    assert record["power"]["socket_power"].keys() == recorded["power"]["socket_power"].keys()
