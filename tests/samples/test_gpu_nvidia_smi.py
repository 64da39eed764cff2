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
