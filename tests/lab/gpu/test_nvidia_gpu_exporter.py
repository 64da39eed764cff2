from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.gpu import inject, setup
from lab.gpu.fixtures import load_exporter
from lab.ports import free_ports

SMI = f"{sys.executable} -I -S {setup.PROGRAMS / 'nvidia-smi'}"
PROGRAM = setup.PROGRAMS / "nvidia_gpu_exporter"


@pytest.fixture(scope="module")
def exporter():
    return load_exporter()


@pytest.fixture
def scrape(exporter) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        return exporter.Exporter(exporter.parse(["--nvidia-smi-command", SMI, *arguments])).scrape()

    return run


def value_of(body: str, series: str) -> float:
    found = [line.rsplit(" ", 1)[1] for line in body.splitlines() if line.startswith(series)]
    assert found, f"{series} is not in the body"
    return float(found[0])


def test_utilization_memory_and_power_of_every_gpu_are_served(machine, scrape) -> None:
    machine()
    body = scrape()
    for name in (
        "utilization_gpu_ratio",
        "memory_used_bytes",
        "memory_total_bytes",
        "power_draw_watts",
        "temperature_gpu",
        "gpu_info",
    ):
        assert len(re.findall(rf"^nvidia_smi_{name}\{{", body, re.MULTILINE)) == 8, name
    assert value_of(body, "nvidia_smi_memory_total_bytes") == 81559 * 1024 * 1024
    assert value_of(body, "nvidia_smi_command_exit_code") == 0
    assert 'uuid="GPU-' not in body, "the real one drops the prefix"


def test_only_the_fields_asked_for_and_the_identity_are_served(machine, scrape) -> None:
    machine("t4")
    body = scrape("--query-field-names", "temperature.gpu")
    assert "nvidia_smi_temperature_gpu{" in body
    assert "nvidia_smi_gpu_info{" in body
    assert "nvidia_smi_power_draw_watts" not in body


def test_excluded_fields_are_left_out(machine, scrape) -> None:
    machine("t4")
    assert "clocks_event_reasons" not in scrape("--query-field-names-exclude", "clocks_event_reasons*")


def test_one_lost_gpu_ends_the_series_of_all_as_with_the_real_one(machine, scrape) -> None:
    inject.inject_xid(machine(), code=79, gpu=3)
    body = scrape()
    assert value_of(body, "nvidia_smi_command_exit_code") == 15
    assert value_of(body, "nvidia_smi_last_collect_success") == 0
    assert value_of(body, "nvidia_smi_failed_scrapes_total") == 1
    assert "nvidia_smi_gpu_info" not in body


def test_without_nvidia_smi_it_serves_its_failure(machine, exporter) -> None:
    machine()
    body = exporter.Exporter(exporter.parse(["--nvidia-smi-command", "/nonexistent/nvidia-smi"])).scrape()
    assert value_of(body, "nvidia_smi_last_collect_success") == 0
    assert value_of(body, "nvidia_smi_command_exit_code") == -1


def test_xids_are_counted_by_the_nvml_backend_alone_and_from_its_start_on(machine, exporter, frozen_clock) -> None:
    state = machine()
    inject.inject_xid(state, code=13, gpu=1)
    frozen_clock(10)
    running = exporter.Exporter(exporter.parse(["--nvidia-smi-command", SMI, "--collect.backend=nvml"]))
    assert "xid_errors_total" not in running.scrape(), "history before the exporter's start is not replayed"
    frozen_clock(20)
    inject.inject_xid(state, code=43, gpu=1)
    inject.inject_xid(state, code=43, gpu=1)
    body = running.scrape()
    assert re.search(r'^nvidia_smi_xid_errors_total\{uuid="[0-9a-f-]{36}",xid="43"\} 2$', body, re.MULTILINE)
    assert re.search(r'^nvidia_smi_xid_last_timestamp_seconds\{[^}]*xid="43"\} 1\.78000002e\+09$', body, re.MULTILINE)
    assert "nvidia_smi_energy_joules_total{" in body


def test_xids_stay_visible_while_collections_fail(machine, scrape) -> None:
    inject.inject_xid(machine(), code=79, gpu=3)
    body = scrape("--collect.backend=nvml")
    assert 'xid="79"} 1' in body
    assert value_of(body, "nvidia_smi_nvml_return_code") == 15


def test_mig_instances_are_served_by_the_nvml_backend(machine, scrape) -> None:
    machine("a100-mig")
    body = scrape("--collect.backend", "nvml")
    assert len(re.findall(r"^nvidia_smi_mig_info\{", body, re.MULTILINE)) == 4
    assert 'gpu_instance_id="2"' in body
    assert len(re.findall(r"^nvidia_smi_utilization_gpu_ratio\{", body, re.MULTILINE)) == 1, "a GPU cut by MIG has none"


def test_processes_are_served_when_asked(machine, scrape) -> None:
    machine()
    body = scrape("--collect.compute-apps")
    assert len(re.findall(r"^nvidia_smi_compute_app_info\{", body, re.MULTILINE)) == 7
    assert len(re.findall(r"^nvidia_smi_compute_apps\{", body, re.MULTILINE)) == 8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--web.listen-adress=:1"], "unknown long flag '--web.listen-adress'"),
        (["--no-collect.backend"], "unknown long flag '--no-collect.backend'"),
        (["-x"], "unknown short flag '-x'"),
        (["--collect.interval"], "expected argument for flag '--collect.interval'"),
        (["--collect.backend=magic"], "enum value must be one of exec,nvml,demo, got 'magic'"),
        (["--collect.interval=often"], 'time: invalid duration \\"often\\"'),
        (["--collect.pcie-throughput"], "requires --collect.backend=nvml"),
        (["--web.telemetry-path=/"], "web.telemetry-path must"),
    ],
)
def test_wrong_flags_end_it_with_the_reason(arguments: list[str], said: str) -> None:
    done = subprocess.run([sys.executable, "-I", "-S", PROGRAM, *arguments], capture_output=True, text=True)
    assert done.returncode == 1
    assert said.replace("\\", "") in done.stderr.replace("\\", "")
    assert "Traceback" not in done.stderr


def test_it_names_itself_a_stand_in_and_its_version() -> None:
    version = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    assert version.startswith("nvidia_gpu_exporter, version 1.14.0 ")
    assert "Stand-in" in subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout


def test_a_copy_of_the_one_file_serves_metrics_and_health_and_ends_on_a_signal(machine, tmp_path: Path) -> None:
    machine("t4")
    alone = tmp_path / "host/bin/nvidia_gpu_exporter"
    alone.parent.mkdir(parents=True)
    alone.write_bytes(PROGRAM.read_bytes())
    alone.chmod(0o755)
    [port] = free_ports(1)
    server = subprocess.Popen(
        [alone, f"--web.listen-address=127.0.0.1:{port}", "--nvidia-smi-command", SMI], stderr=subprocess.DEVNULL
    )
    try:
        assert "nvidia_smi_gpu_info{" in _get(port, "/metrics")
        assert _get(port, "/-/healthy") == "Healthy\n"
        assert _get(port, "/-/ready") == "Ready\n"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            _get(port, "/elsewhere")
    finally:
        server.terminate()
        assert server.wait(timeout=120) == 0


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [PROGRAM, f"--web.listen-address={address}", "--nvidia-smi-command=false"], capture_output=True, text=True
        )
    assert done.returncode == 1
    assert f"listen tcp {address}: bind: address already in use" in done.stderr


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1, "1"),
        (4000, "4000"),
        (0.11, "0.11"),
        (2.619e9, "2.619e+09"),
        (1234567, "1.234567e+06"),
        (0.00001, "1e-05"),
        (-3.5, "-3.5"),
    ],
)
def test_numbers_look_as_go_prints_them(value: float, text: str, exporter) -> None:
    assert exporter.go_float(value) == text


def _get(port: int, path: str) -> str:
    deadline = time.monotonic() + 120
    while True:
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60).read().decode()
        except urllib.error.HTTPError:
            raise
        except OSError as error:
            assert time.monotonic() < deadline, f"nothing answers on port {port}: {error}"
            time.sleep(0.05)
