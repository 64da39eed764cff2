"""NVIDIA's own nvidia-smi of three driver branches over the lab's NVML library, and the simulated one beside it.

What collectors and exporters ask of the simulated nvidia-smi is answered as by the real one over the same machine. The simulated
one stands in where nothing may be downloaded (`make dev`), and for branches that Debian does not have.
"""

from __future__ import annotations

import json
import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.gpu import inject, setup
from lab.gpu.machine import CLOCK_VARIABLE, MACHINE_FILE
from lab.gpu.nvidia.field_list import known
from lab.gpu.nvml.real import GENERATIONS

FIELDS = (
    "index,uuid,name,pci.bus_id,driver_version,memory.total,memory.used,utilization.gpu,temperature.gpu,power.draw,power.limit,"
    "ecc.errors.corrected.volatile.total,ecc.errors.uncorrected.volatile.total"
)
QUESTIONS = (
    ["-L"],
    [f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"],
    ["-q", "-d", "TEMPERATURE"],
    ["nvlink", "-s"],
    ["nvlink", "-gt", "d"],
    ["nvlink", "-e"],
    ["dmon", "-s", "t", "-c", "1"],
    ["--version"],
    ["--query-gpu=index,fabric.cliqueId,fabric.clusterUuid", "--format=csv,noheader"],
    ["--query-gpu=index,nope", "--format=csv"],
    ["--query-gpu=index"],
    ["--frobnicate"],
)
STATES: dict[str, Callable[[Path], object]] = {
    "healthy": lambda state: None,
    "hot": lambda state: inject.make_hot(state, gpu=1),
    "lost": lambda state: inject.inject_xid(state, code=79, gpu=1),
    "link down": lambda state: inject.take_link_down(state, gpu=1, link=4),
    "links down": lambda state: [inject.take_link_down(state, gpu=1, link=link) for link in range(18)],
    "no driver": lambda state: inject.break_driver(state, problem="not-loaded"),
    "version mismatch": lambda state: inject.break_driver(state, problem="version-mismatch"),
}

Ask = Callable[..., tuple[str, int]]


@pytest.fixture(autouse=True)
def _frozen_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters grow with time, and two programs are asked one after the other."""
    monkeypatch.setenv(CLOCK_VARIABLE, "1780000000")


@pytest.fixture(params=GENERATIONS)
def branch(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def real(tmp_path: Path, branch: str) -> Callable[..., tuple[Path, Ask]]:
    """Makes a machine whose nvidia-smi is the real one: its state directory, and how to ask the tool."""

    def make(scenario: str) -> tuple[Path, Ask]:
        state, tools = tmp_path / "real", tmp_path / "bin"
        setup.ensure(state=state, bin_directory=tools, scenario=scenario)
        setup.use_real_nvidia_smi(branch, state=state, bin_directory=tools)
        return state, lambda *arguments: asked(tools / "nvidia-smi", *arguments)

    return make


def asked(tool: Path, *arguments: str) -> tuple[str, int]:
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr, done.returncode


def same(answer: tuple[str, int]) -> tuple[list[str], int]:
    """Without the clock, which only the simulated one takes from the test, and trailing blanks."""
    text, code = answer
    return [line.rstrip() for line in re.sub(r"(?m)^(Timestamp +: ).*", r"\1", text).rstrip().splitlines()], code


@pytest.mark.parametrize(
    ("scenario", "fault"),
    [*(("h100x4", fault) for fault in STATES), ("a100-mig", "healthy"), ("l40sx2", "healthy"), ("v100x4", "healthy")],
)
def test_the_simulated_one_answers_collectors_as_the_real_one_does(
    scenario: str, fault: str, branch: str, real, tmp_path
) -> None:
    state, ask = real(scenario)
    simulated = tmp_path / "simulated"
    setup.ensure(state=simulated, bin_directory=tmp_path / "other", scenario=scenario)
    (simulated / MACHINE_FILE).write_text((state / MACHINE_FILE).read_text())
    for directory in (state, simulated):
        STATES[fault](directory)
    different = {
        " ".join(question): (ours, theirs)
        for question in QUESTIONS
        if (ours := same(asked(tmp_path / "other/nvidia-smi", *question))) != (theirs := same(ask(*question)))
    }
    assert not different


def test_the_simulated_one_has_the_fields_of_the_real_one(branch: str, real) -> None:
    listed = re.findall(r'(?m)^"([a-zA-Z0-9_.]+)"', real("h100x4")[1]("--help-query-gpu")[0])
    assert list(known(int(branch))) == listed


def test_every_field_of_the_real_one_is_answered_by_the_library(real) -> None:
    _, ask = real("h100x4")
    listed = re.findall(r'(?m)^"([a-zA-Z0-9_.]+)"', ask("--help-query-gpu")[0])
    answer, code = ask(f"--query-gpu={','.join(listed)}", "--format=csv,noheader")
    assert code == 0 and len(answer.splitlines()) == 4
    assert not re.findall(r"\[(?!N/A)[^]]*\]|ERR", answer), "[Function Not Found] and the like, which no driver prints"


def test_the_real_one_prints_its_table_and_its_xml(branch: str, real) -> None:
    state, ask = real("h100x4")
    driver = json.loads((state / MACHINE_FILE).read_text())["driver"]
    table = ask()[0]
    assert f"NVIDIA-SMI {driver}" in table and table.count("NVIDIA H100 80GB HBM3") == 4
    gpus = ET.fromstring(ask("-q", "-x")[0].split("\n", 2)[2]).findall("gpu")
    assert [gpu.findtext("pci/pci_bus_id") for gpu in gpus] == [f"00000000:{bus}:00.0" for bus in ("18", "2A", "3A", "5D")]
    assert {gpu.findtext("remapped_rows/remapped_row_failure") for gpu in gpus} == {"No"}


def test_the_real_one_shows_faults_of_the_memory(real) -> None:
    state, ask = real("h100x4")
    inject.inject_ecc(state, gpu=1, corrected=5, uncorrected=2)
    inject.remap_row(state, gpu=2)
    inject.remap_row(state, gpu=3, failed=True)
    ecc = "--query-gpu=ecc.errors.corrected.volatile.total,ecc.errors.uncorrected.aggregate.dram"
    assert ask(ecc, "--format=csv,noheader")[0].splitlines()[1] == "5, 2"
    rows = ask(
        "--query-remapped-rows=remapped_rows.uncorrectable,remapped_rows.pending,remapped_rows.failure", "--format=csv,noheader"
    )
    assert rows[0].splitlines() == ["0, 0, 0", "0, 0, 0", "1, 1, 0", "0, 0, 1"]
