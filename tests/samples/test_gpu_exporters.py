"""The exporters' stand-ins against recorded /metrics bodies and counter lists of the real ones."""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.gpu import inject
from lab.gpu.amd import exporter as amd_exporter
from lab.gpu.dcgm import fields as dcgm_fields
from lab.gpu.dcgm.cli import SHIPPED, renderer
from lab.gpu.fixtures import load_exporter
from lab.gpu.machine import CLOCK_VARIABLE, Machine
from tests.samples.conftest import SAMPLES
from tests.samples.gpu_machines import NOON, SMI_COMMAND, make

SMI, NVIDIA, DCGM = SAMPLES / "nvidia-smi", SAMPLES / "nvidia_gpu_exporter/metrics", SAMPLES / "dcgm-exporter"

# What the exporter reports of itself, which the recordings leave out.
ITS_OWN = (
    "nvidia_gpu_exporter_build_info",
    "nvidia_smi_last_collect_duration_seconds",
    "nvidia_smi_last_collect_success_timestamp_seconds",
)


def samples(body: str) -> Iterator[tuple[str, dict[str, str], str]]:
    """(metric, labels, value as written)."""
    for line in body.splitlines():
        if line and not line.startswith("#"):
            name, labels, value = re.fullmatch(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)", line).groups()
            yield name, dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or "")), value


# ---- nvidia_gpu_exporter


def replay(directory: Path, capture: Path, busy: str) -> str:
    """A command that answers what a recorded nvidia-smi answered."""
    program = directory / "recorded-nvidia-smi"
    version = re.search(r"\d{3}\.[\d.]+$", capture.name)[0]
    (help_,) = list((SMI / "fields").glob(f"help-query-gpu-{version}.txt")) or [directory / "help.txt"]
    if not help_.exists():
        header = (capture / f"{busy}.query-gpu.csv").read_text().splitlines()[0]
        names = [column.partition(" [")[0] for column in header.split(", ")]
        help_.write_text("List:\n" + "".join(f'\n"{name}"\nx\n' for name in names))
    answers = {
        "--help-query-gpu": help_,
        "--version": capture / "version.txt",
        "--query-gpu=*": capture / f"{busy}.query-gpu.csv",
    }
    cases = "".join(f"  {flag}) cat {shlex.quote(str(path))} ;;\n" for flag, path in answers.items())
    apps = capture / f"{busy}.query-compute-apps.csv"
    columns = "awk -F ', ' -v OFS=', ' '{print $5, $6, $7, $8}'"
    program.write_text(f"#!/bin/sh\ncase $1 in\n{cases}  --query-compute-apps=*) {columns} {shlex.quote(str(apps))} ;;\nesac\n")
    program.chmod(0o755)
    return shlex.quote(str(program))


RECORDED_BODIES = sorted(path.stem for path in NVIDIA.glob("linux-*.prom"))
NAMES = {"h100-80gb-hbm3": "h100-80gb-hbm3", "h100-mig": "h100-mig", "h200": "h200", "h200-mig": "h200-mig", "l40s": "l40s",
         "geforce-rtx-2080-super": "rtx-2080-super"}  # fmt: skip


@pytest.mark.parametrize("recording", RECORDED_BODIES)
def test_with_a_recorded_nvidia_smi_it_serves_the_recorded_body(recording: str, tmp_path: Path) -> None:
    _, gpu, driver, busy = recording.split("__")
    capture = SMI / "captures" / f"{NAMES[gpu.removeprefix('nvidia-')]}-{driver}"
    exporter = load_exporter()
    arguments = ["--collect.compute-apps", "--nvidia-smi-command", replay(tmp_path, capture, busy)]
    ours = exporter.Exporter(exporter.parse(arguments)).scrape()
    theirs = (NVIDIA / f"{recording}.prom").read_text()

    def comparable(body: str) -> dict[tuple, float]:
        return {(name, *sorted(labels.items())): float(value) for name, labels, value in samples(body) if name not in ITS_OWN}

    assert comparable(ours) == pytest.approx(comparable(theirs))
    kinds = re.compile(r"^# TYPE (\S+) (\S+)$", re.MULTILINE)
    assert set(kinds.findall(theirs)) <= set(kinds.findall(ours))
    helps = re.compile(r"^# HELP (nvidia_smi_\S+) (.*\[.*\]|[a-z_.A-Z0-9]+)$", re.MULTILINE)  # those that name a field
    assert dict(helps.findall(theirs)).items() <= dict(helps.findall(ours)).items()


def test_over_a_simulated_h100_it_serves_the_recorded_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = body_of_simulated(make(tmp_path, "h100x8"), monkeypatch, "--collect.compute-apps")
    (recording,) = NVIDIA.glob("*h100-80gb*load.prom")
    theirs = {(name, *labels) for name, labels, _ in samples(recording.read_text())}
    assert {(name, *labels) for name, labels, _ in samples(ours) if name not in ITS_OWN} == theirs


def test_what_only_nvml_reports_has_the_labels_of_the_real_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {name: set(labels) for name, labels, _ in samples((NVIDIA / "demo__seeded.prom").read_text())}
    state = make(tmp_path, "a100-mig", gpus=2)
    monkeypatch.setenv(CLOCK_VARIABLE, str(NOON))
    inject.inject_xid(state, code=79, gpu=1)
    inject.clear(state)
    inject.inject_xid(state, code=43, gpu=1)
    ours = body_of_simulated(
        state,
        monkeypatch,
        "--collect.backend=nvml",
        "--collect.pcie-throughput",
        "--collect.compute-apps",
        "--collect.compute-apps-mig",
    )
    names = {name: set(labels) for name, labels, _ in samples(ours)}
    for name in theirs:
        if re.search("xid|energy|mig_info|mig_memory|pcie_throughput|nvml|compute_app", name):
            assert names[name] == theirs[name], name


def body_of_simulated(state: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setenv("GPU_FLEET_LAB_STATE", str(state))
    monkeypatch.setenv(CLOCK_VARIABLE, str(NOON))
    exporter = load_exporter()
    return exporter.Exporter(exporter.parse(["--nvidia-smi-command", SMI_COMMAND, *arguments])).scrape()


# ---- dcgm-exporter


def test_an_xid_carries_its_code_and_text_as_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CLOCK_VARIABLE, str(NOON))
    state = make(tmp_path, "h100x8", driver="535.129.03")
    inject.inject_xid(state, code=45, gpu=0)
    body = renderer(None, "4.8.2", started_s=NOON).render(Machine.load(state))
    (line,) = (line for line in body.splitlines() if line.startswith("DCGM_FI_DEV_XID_ERRORS{"))
    (theirs,) = samples((DCGM / "metrics/issue235-xid-err-code-msg.prom").read_text())
    (ours,) = samples(line)
    assert ours[1]["err_code"] == theirs[1]["err_code"] == ours[2]
    assert ours[1]["err_msg"].startswith(theirs[1]["err_msg"][:60])


def test_the_count_of_xids_has_the_recorded_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CLOCK_VARIABLE, str(NOON))
    state = make(tmp_path / "m", "h100x8")
    inject.inject_xid(state, code=43, gpu=0)
    path = tmp_path / "c.csv"
    path.write_text("DCGM_EXP_XID_ERRORS_COUNT, gauge, x\nDCGM_FI_DRIVER_VERSION, label, x")
    (ours,) = samples(renderer(path, "4.8.2", started_s=NOON).render(Machine.load(state)))
    (theirs,) = samples((DCGM / "metrics/pr239-xid-active.prom").read_text())
    assert set(ours[1]) - {"pci_bus_id"} == set(theirs[1])  # 3.3.5 of 2024 had no bus id


def active(path: Path) -> dict[str, str]:
    rows = csv.reader(line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#"))
    return {row[0].strip(): row[1].strip() for row in rows}


@pytest.mark.parametrize(
    ("recording", "generation"),
    [
        ("4.4.1-4.6.0-default-counters.csv", "4.8.2"),
        ("4.5.3-4.8.2-default-counters.csv", "4.8.2"),
        ("4.5.3-4.8.2-dcp-metrics-included.csv", "4.8.2"),
        ("4.5.3-4.8.2-integration-test-counters.csv", "4.8.2"),
        ("4.6.1-4.8.4-default-counters.csv", "4.8.4"),
        ("4.6.1-4.8.4-dcp-metrics-included.csv", "4.8.4"),
        ("deepops-dcgm-custom-metrics.csv", "4.8.2"),
        ("main-tests-host-dcp-counters.csv", "4.8.4"),
    ],
)
def test_a_counter_list_of_the_real_one_is_served(recording: str, generation: str, tmp_path: Path) -> None:
    path = DCGM / "counters" / recording
    body = renderer(path, generation, started_s=NOON).render(Machine.load(make(tmp_path, "h100x8")))
    served = {name for name, _, _ in samples(body)}
    # No XID happened; an H100 remaps rows and retires no pages.
    silent = {"DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_RETIRED_SBE", "DCGM_FI_DEV_RETIRED_DBE", "DCGM_FI_DEV_RETIRED_PENDING"}
    assert {name for name, kind in active(path).items() if kind != "label"} - served <= silent


def test_without_a_list_it_serves_what_the_real_one_ships() -> None:
    ours, theirs = active(SHIPPED / "default-counters-4.8.csv"), active(DCGM / "counters/4.6.1-4.8.4-default-counters.csv")
    assert ours == theirs
    new = active(SHIPPED / "default-counters-4.9.csv")
    assert len(new) == len(theirs) + 1, "4.9 adds the total memory"
    assert len(set(new) - set(theirs)) == 23 + 1, "the release notes of 4.9.0 count 23 renamed fields"
    assert set(new) <= set(dcgm_fields.known((4, 9, 0)))


# ---- AMD's device-metrics-exporter

AMD = SAMPLES / "amd-device-metrics-exporter"


def amd_body(directory: Path, scenario: str = "mi300x4") -> list[tuple[str, dict[str, str], str]]:
    return list(samples(amd_exporter.render(Machine.load(make(directory, scenario)), {"GPUConfig": {"Labels": ["GPU_UUID"]}})))


@pytest.mark.parametrize(("scenario", "family"), [("mi300x4", "MI3xx"), ("mi210x2", "MI2xx")])
def test_amd_metrics_are_those_of_the_support_matrix(scenario: str, family: str, tmp_path: Path) -> None:
    matrix = yaml.safe_load((AMD / "metrics-support-matrix.yaml").read_text())["metrics"]
    supported = {entry["name"].lower() for entry in matrix if entry["baremetal"] and family in entry["platforms"]}
    assert {name for name, _, _ in amd_body(tmp_path, scenario)} <= supported


def test_amd_labels_are_those_recorded(tmp_path: Path) -> None:
    ours = {name: set(labels) for name, labels, _ in amd_body(tmp_path)}
    ((_, full, _),) = samples((AMD / "pr316-mi300x-cpx.prom").read_text())
    assert ours["gpu_health"] == set(full) | {"deployment_mode", "gpu_uuid"}  # newer than the recorded 1.4, and asked for
    for name, labels, _ in samples((AMD / "metrics-documentation-samples.prom").read_text()):
        if name in ours:
            assert set(labels) <= ours[name], name
