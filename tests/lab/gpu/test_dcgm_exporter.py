from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab.gpu import inject, setup
from lab.gpu.dcgm.cli import renderer
from lab.gpu.machine import Machine

OLD, NEW = "4.8.2", "4.9.0"
NOON = 1_780_000_000.0


def body(state: Path, generation: str, collectors: Path | None = None) -> str:
    return renderer(collectors, generation, started_s=NOON).render(Machine.load(state))


def series(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"{name}{{")]


def counters(path: Path, *lines: str) -> Path:
    path.write_text("# field, type, help\n" + "\n".join(lines) + "\n")
    return path


def test_the_shipped_list_of_each_generation_has_its_names_units_and_labels(machine) -> None:
    state = machine()
    old, new = body(state, OLD), body(state, NEW)
    assert series(old, "DCGM_FI_DEV_GPU_UTIL")[0] == (
        'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-ef23f616-6408-c1dd-2ce7-e200a08cfdb6",pci_bus_id="00000000:18:00.0",device="nvidia0",'
        'modelName="NVIDIA H100 80GB HBM3",Hostname="gpu-lab-h100",DCGM_FI_DRIVER_VERSION="590.48.01"} 91'
    )
    assert series(new, "DCGM_FI_DEV_GPU_UTIL_RATIO")[0].endswith(
        'hostname="gpu-lab-h100",DCGM_FI_SYSTEM_DRIVER_VERSION="590.48.01"} 0.910000'
    )
    mib = [int(line.rsplit(" ", 1)[1]) for line in series(old, "DCGM_FI_DEV_FB_USED")]
    assert [int(line.rsplit(" ", 1)[1]) for line in series(new, "DCGM_FI_DEV_FB_USED_BYTES")] == [
        value * 1024 * 1024 for value in mib
    ]
    assert not series(new, "DCGM_FI_DEV_GPU_UTIL")
    assert series(new, "DCGM_FI_DEV_FB_CAPACITY_BYTES")


def test_exactly_the_fields_of_the_counter_file_are_served(machine, tmp_path: Path) -> None:
    path = counters(tmp_path / "my.csv", "DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature.", "DCGM_FI_DEV_SERIAL, label, serial")
    text = body(machine("t4"), OLD, path)
    assert [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")] == ["DCGM_FI_DEV_GPU_TEMP"]
    assert 'DCGM_FI_DEV_SERIAL="16' in text
    assert "# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature." in text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "DCGM_FI_DEV_GPU_TMP, gauge, typo",
            "could not find DCGM field; err: unknown ExporterCounter field 'DCGM_FI_DEV_GPU_TMP'",
        ),
        ("DCGM_FI_DEV_GPU_TEMP, meter, x", "could not find Prometheus metric type 'meter'"),
        ("DCGM_FI_DEV_GPU_TEMP, gauge", "expected 3 fields"),
        ("DCGM_FI_DEV_FB_USED_BYTES, gauge, of 4.9", "unknown ExporterCounter field"),
    ],
)
def test_a_wrong_counter_file_ends_the_exporter(line: str, said: str, machine, tmp_path: Path) -> None:
    machine()
    path = counters(tmp_path / "my.csv", line)
    done = subprocess.run([sys.executable, setup.PROGRAMS / "dcgm-exporter", "-f", path], capture_output=True, text=True)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_flag_ends_the_exporter(machine) -> None:
    machine()
    done = subprocess.run([sys.executable, setup.PROGRAMS / "dcgm-exporter", "--collectorz"], capture_output=True, text=True)
    assert (done.returncode, "flag provided but not defined: -collectorz" in done.stderr) == (1, True)


def test_a_remote_host_engine_has_to_be_there(machine) -> None:
    machine()
    command = [sys.executable, setup.PROGRAMS / "dcgm-exporter", "-r", "127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "Unable to connect to remote nv-hostengine at 127.0.0.1:1" in done.stderr) == (1, True)


def test_there_is_no_xid_series_before_the_first_xid_and_then_it_keeps_the_last(machine) -> None:
    state = machine()
    assert not series(body(state, OLD), "DCGM_FI_DEV_XID_ERRORS")
    inject.inject_xid(state, code=43, gpu=2)
    (line,) = series(body(state, OLD), "DCGM_FI_DEV_XID_ERRORS")
    assert line.endswith('err_code="43",err_msg="GPU stopped processing"} 43')


def test_a_lost_gpu_has_no_readings_left_but_its_xid(machine) -> None:
    state = machine()
    inject.inject_xid(state, code=79, gpu=3)
    text = body(state, NEW)
    assert len(series(text, "DCGM_FI_DEV_GPU_TEMP_CELSIUS")) == 7
    assert 'gpu="3"' in series(text, "DCGM_FI_DEV_XID_ERROR")[0]


def test_the_exporters_own_metrics_count_xids_clock_events_and_health(machine, tmp_path: Path, frozen_clock) -> None:
    state = machine("h100x4")
    path = counters(
        tmp_path / "own.csv",
        "DCGM_EXP_XID_ERRORS_COUNT, gauge, x",
        "DCGM_EXP_XID_ERRORS_TOTAL, counter, x",
        "DCGM_EXP_CLOCK_EVENTS_COUNT, gauge, x",
        "DCGM_EXP_GPU_HEALTH_STATUS, gauge, x",
    )
    inject.inject_xid(state, code=43, gpu=0)
    inject.make_hot(state, gpu=1)
    text = body(state, "4.8.4", path)
    assert [line.rsplit(" ", 1)[1] for line in series(text, "DCGM_EXP_XID_ERRORS_COUNT")] == ["1", "0", "0", "0"]
    assert 'window_size_in_ms="300000",xid="43"' in text
    assert len(series(text, "DCGM_EXP_XID_ERRORS_TOTAL")) == 1
    assert re.search(r'clock_event="hw_thermal",window_size_in_ms="300000"\} 1', text)
    assert re.search(r'gpu="1".*health_error_code="DCGM_FR_CLOCK_THROTTLE_THERMAL",health_watch="THERMAL"\} 10', text)
    frozen_clock(301)
    later = body(state, "4.8.4", path)
    assert 'xid="43"' not in "".join(series(later, "DCGM_EXP_XID_ERRORS_COUNT")), "outside the window"
    assert 'xid="43"' in "".join(series(later, "DCGM_EXP_XID_ERRORS_TOTAL"))


def test_a_gpu_cut_by_mig_has_a_line_per_instance(machine) -> None:
    lines = series(body(machine("a100-mig"), OLD), "DCGM_FI_DEV_FB_USED")
    assert len(lines) == 5
    assert 'GPU_I_PROFILE="3g.40gb",GPU_I_ID="2",Hostname=' in lines[0]
