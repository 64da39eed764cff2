"""The simulated nvidia-smi against recorded outputs of the real one: same lines but for the values."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from lab.gpu import inject
from lab.gpu.nvidia.field_list import known
from tests.samples.conftest import SAMPLES
from tests.samples.gpu_machines import make, run, shape, shapes

RECORDED = SAMPLES / "nvidia-smi"
CAPTURES = RECORDED / "captures"

# Recording -> scenario of the same GPU, driver, CUDA.
MACHINES = {
    "h100-80gb-hbm3-590.48.01": ("h100x8", "590.48.01", "13.1"),
    "h100-mig-590.48.01": ("a100-mig", "590.48.01", "13.1"),
    "h200-590.48.01": ("h200x2", "590.48.01", "13.1"),
    "h200-mig-590.48.01": ("a100-mig", "590.48.01", "13.1"),
    "l40s-595.80": ("l40sx2", "595.80", "13.2"),
    "rtx-2080-super-610.57.04": ("t4", "610.57.04", "13.3"),
}
# Of these the lab has the very product, so the values can be compared cell by cell.
SAME_PRODUCT = ("h100-80gb-hbm3-590.48.01", "h200-590.48.01", "l40s-595.80")
STATES = {"idle": "idle", "load": "training"}


@pytest.fixture(params=MACHINES)
def recorded(request, tmp_path: Path) -> tuple[Path, Path]:
    """The folder of a recording, and the state of a machine like the recorded one."""
    scenario, driver, cuda = MACHINES[request.param]
    return CAPTURES / request.param, make(tmp_path, scenario, driver=driver, cuda=cuda)


def test_the_list_of_gpus_has_the_recorded_lines(recorded) -> None:
    folder, state = recorded
    name = re.compile(r"(?<=: ).*(?= \(UUID)|(?<=MIG )\S+ +")
    wanted = {shape(name.sub("NAME", line)) for line in (folder / "L.txt").read_text().splitlines()}
    assert {shape(name.sub("NAME", line)) for line in run(state, "nvidia-smi", "-L")[0].splitlines()} == wanted


def test_the_versions_are_printed_as_recorded(recorded) -> None:
    folder, state = recorded
    assert run(state, "nvidia-smi", "--version")[0] == (folder / "version.txt").read_text()


def test_a_query_of_all_fields_has_the_recorded_header(recorded) -> None:
    folder, state = recorded
    header = (folder / "idle.query-gpu.csv").read_text().splitlines()[0]
    names = [column.partition(" [")[0] for column in header.split(", ")]
    assert run(state, "nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv")[0].splitlines()[0] == header


@pytest.mark.parametrize("name", SAME_PRODUCT)
@pytest.mark.parametrize("busy", STATES)
def test_every_cell_of_the_same_product_looks_as_recorded(name: str, busy: str, tmp_path: Path) -> None:
    scenario, driver, cuda = MACHINES[name]
    state = make(tmp_path, scenario, driver=driver, cuda=cuda, load=STATES[busy])
    columns, values = csv.reader((CAPTURES / name / f"{busy}.query-gpu.csv").read_text().splitlines(), skipinitialspace=True)
    fields = [column.partition(" [")[0] for column in columns]
    ours = run(state, "nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")[0].rstrip("\n").split(", ")
    # Depends on the host or on what ran there, not on the product.
    host = {
        "clocks_event_reasons.gpu_idle",
        "persistence_mode",
        "addressing_mode",
        "accounting.mode",
        "pstate",
        "pci.bus_id",
        "inforom.img",
    }
    different = {
        field: (theirs, our)
        for field, theirs, our in zip(fields, values, ours, strict=True)
        if field not in host and shape(theirs) != shape(our)
    }
    assert not different


@pytest.mark.parametrize("name", ["h100-mig-590.48.01", "h200-mig-590.48.01"])
def test_a_gpu_cut_by_mig_lacks_the_recorded_values(name: str, recorded, tmp_path: Path) -> None:
    columns, values = csv.reader((CAPTURES / name / "load.query-gpu.csv").read_text().splitlines(), skipinitialspace=True)
    cells = {column.partition(" [")[0]: value for column, value in zip(columns, values, strict=True)}
    state = make(tmp_path / "mig", "a100-mig", driver="590.48.01")
    absent = [field for field, value in cells.items() if value == "[N/A]" and field.startswith(("utilization", "remapped_rows"))]
    assert absent
    assert set(run(state, "nvidia-smi", f"--query-gpu={','.join(absent)}", "--format=csv,noheader")[0].strip().split(", ")) == {
        "[N/A]"
    }


@pytest.mark.parametrize(
    ("listed", "driver_major"),
    [
        ("h100-80gb-hbm3-590.48.01", 590),
        ("h100-mig-590.48.01", 590),
        ("h200-590.48.01", 590),
        ("h200-mig-590.48.01", 590),
        ("l40s-595.80", 595),
        ("rtx-2080-super-595.71.05", 595),
        ("rtx-2080-super-610.57.04", 610),
    ],
)
def test_a_driver_knows_exactly_the_recorded_fields(listed: str, driver_major: int) -> None:
    assert list(known(driver_major)) == (RECORDED / "fields" / f"query-gpu-fields-{listed}.txt").read_text().split()


def test_an_old_driver_knows_the_fields_of_the_older_recorded_help() -> None:
    text = (SAMPLES / "nvidia_gpu_exporter/fields/help-query-gpu-testdata.txt").read_text()
    names = [name for name in re.findall(r'^"([^"]+)"', text, re.MULTILINE) if "." in name or name.islower()]
    assert list(known(450)) == names


@pytest.mark.parametrize(("recording", "driver"), [("mixed-dmon-s-t.txt", "590.48.01"), ("v100-dmon-s-t-c1.txt", "450.80.02")])
def test_pcie_traffic_looks_as_recorded(recording: str, driver: str, tmp_path: Path) -> None:
    theirs = (RECORDED / "dmon" / recording).read_text().splitlines()
    ours = run(make(tmp_path, "v100x4", driver=driver, load="idle"), "nvidia-smi", "dmon", "-s", "t", "-c", "1")[0].splitlines()
    assert ours[:2] == theirs[:2]
    assert len(ours[2]) == len(theirs[2])


@pytest.mark.parametrize("name", ["h100-80gb-hbm3-590.48.01", "h100-mig-590.48.01", "h200-590.48.01", "l40s-595.80"])
def test_the_state_of_the_links_is_printed_as_recorded(name: str, tmp_path: Path) -> None:
    scenario, driver, _ = MACHINES[name]
    theirs, ours = (
        (CAPTURES / name / "nvlink-s.txt").read_text(),
        run(make(tmp_path, scenario, driver=driver), "nvidia-smi", "nvlink", "-s")[0],
    )
    assert ours.splitlines()[1:] == theirs.splitlines()[1:]


@pytest.mark.parametrize(
    ("recording", "scenario", "driver", "arguments"),
    [
        ("v100-x4-g0.txt", "v100x4", "450.80.02", ["-g", "0"]),
        ("h800-gt-d-idle.txt", "h100x8", "535.161.08", ["-gt", "d"]),
        ("h800-gt-d-training.txt", "h100x8", "535.161.08", ["-gt", "d"]),
        ("h800-gt-r-training.txt", "h100x8", "535.161.08", ["-gt", "r"]),
        ("gpud-nvlink-status-a100.txt", "a100x8", "525.147.05", ["--status"]),
        ("azhpc-good_nvlink_status.txt", "a100x8", "525.147.05", ["-s"]),
        ("h100-e-partial.txt", "h100x8", "590.48.01", ["-e"]),
        ("gb200-s-partial.txt", "h100x8", "590.48.01", ["-s"]),
    ],
)
def test_counters_and_states_of_links_look_as_recorded(
    recording: str, scenario: str, driver: str, arguments: list[str], tmp_path: Path
) -> None:
    def kinds(text: str) -> set[str]:
        # Reporters' editors turned the tab into blanks; the product's name and fractions of its speed differ.
        lines = (re.sub(r"^GPU \d+: .* \(", "GPU 9: NAME (", line.replace("\t ", " " * 9)) for line in text.splitlines())
        return {shape(re.sub(r"\d+\.\d+", "9", line)) for line in lines if line.strip()}

    ours = run(make(tmp_path, scenario, driver=driver), "nvidia-smi", "nvlink", *arguments)[0]
    assert kinds(ours) == kinds(
        re.sub("GPU-abcdefab-cdef-abdc", "GPU-abcdefab-cdef-abda", (RECORDED / "nvlink" / recording).read_text())
    )


def test_links_that_are_all_down_are_reported_as_recorded(tmp_path: Path) -> None:
    for driver, recording in {
        "525.147.05": RECORDED / "nvlink/azhpc-bad_nvlink_status.txt",
        "610.57.04": CAPTURES / "rtx-2080-super-610.57.04/nvlink-s.txt",
    }.items():
        state = make(tmp_path / driver, "a100x8", driver=driver)
        for link in range(12):
            inject.take_link_down(state, gpu=0, link=link)
        assert run(state, "nvidia-smi", "nvlink", "-s")[0].splitlines()[1] == recording.read_text().splitlines()[1]


@pytest.mark.parametrize(
    ("recording", "driver", "arguments"),
    [
        ("gpu-lost-new.txt", "590.48.01", ["--query-gpu=index", "--format=csv,noheader"]),
        ("gpu-lost-csv-second-line.txt", "570.86.15", ["--query-gpu=index", "--format=csv,noheader"]),
        ("gpu-lost-old.txt", "450.80.02", []),
    ],
)
def test_a_lost_gpu_is_reported_as_recorded(recording: str, driver: str, arguments: list[str], tmp_path: Path) -> None:
    state = make(tmp_path, "a100x8", driver=driver, gpus=2)
    inject.lose(state, gpu=1)
    (theirs,) = (line for line in (RECORDED / "errors" / recording).read_text().splitlines() if line.startswith("Unable"))
    assert shape(theirs) in shapes(run(state, "nvidia-smi", *arguments)[0])


def test_no_device_is_reported_as_recorded(tmp_path: Path) -> None:
    state = make(tmp_path, "t4")
    assert run(state, "nvidia-smi", "-i", "7", "-L")[0].strip() == (RECORDED / "errors/no-devices.txt").read_text().strip()


@pytest.mark.parametrize(
    ("problem", "recording", "driver"),
    [("not-loaded", "driver-not-loaded.txt", "590.48.01"), ("version-mismatch", "nvml-version-mismatch.txt", "450.80.02")],
)
def test_a_broken_driver_is_reported_as_recorded(problem: str, recording: str, driver: str, tmp_path: Path) -> None:
    state = make(tmp_path, "t4", driver=driver)
    inject.break_driver(state, problem=problem)
    assert run(state, "nvidia-smi")[0].strip() == (RECORDED / "errors" / recording).read_text().strip()


@pytest.mark.parametrize(
    ("recording", "scenario", "driver"),
    [
        (CAPTURES / "h100-80gb-hbm3-590.48.01/idle.q.txt", "h100x8", "590.48.01"),
        (CAPTURES / "l40s-595.80/idle.q.txt", "l40sx2", "595.80"),
        (RECORDED / "q/h100-sxm-x8.txt", "h100x8", "565.57.01"),
        (RECORDED / "q/a100-sxm-x4.txt", "a100x8", "555.42.02"),
    ],
)
def test_temperatures_and_their_limits_look_as_recorded(recording: Path, scenario: str, driver: str, tmp_path: Path) -> None:
    def section(text: str) -> list[str]:
        return [
            re.sub(r"-?\d+ C", "9 C", line)
            for line in re.findall(r"^        (?:GPU|Memory) .*Temp.*: .*", text, re.MULTILINE)[:8]
        ]

    ours = section(run(make(tmp_path, scenario, driver=driver), "nvidia-smi", "-q", "-d", "TEMPERATURE")[0])
    theirs = section(recording.read_text())
    if scenario == "a100x8":  # the lab knows no limit of its memory
        theirs[-1] = theirs[-1].replace("9 C", "N/A")
    assert ours == theirs
