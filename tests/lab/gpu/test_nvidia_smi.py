from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lab import gpu
from lab.gpu import inject, setup
from lab.gpu.nvidia.field_list import known


def test_the_wrapper_works_for_a_service_with_an_empty_environment(tmp_path: Path) -> None:
    gpu.ensure(state=tmp_path / "st ate", bin_directory=tmp_path / "bin")
    done = subprocess.run([tmp_path / "bin/nvidia-smi", "-L"], env={}, cwd="/", capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 8
    assert done.stdout.startswith("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-")


def test_without_a_machine_it_prints_what_a_host_without_a_driver_prints(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, smi
) -> None:
    monkeypatch.setenv("GPU_FLEET_LAB_STATE", str(tmp_path / "nothing"))
    text, code = smi("-L")
    assert code == 9
    assert "couldn't communicate with the NVIDIA driver" in text


def test_a_query_prints_units_unless_nounits_is_given(machine, smi) -> None:
    machine("t4")
    text, _ = smi("--query-gpu=index,memory.total,power.limit", "--format=csv")
    assert text.splitlines() == ["index, memory.total [MiB], power.limit [W]", "0, 15360 MiB, 70.00 W"]
    text, _ = smi("--query-gpu=index,memory.total,power.limit", "--format=csv,nounits")
    assert text.splitlines() == ["index, memory.total [MiB], power.limit [W]", "0, 15360, 70.00"]
    text, _ = smi("--query-gpu", "index,memory.total", "--format", "csv,noheader")
    assert text.splitlines() == ["0, 15360 MiB"]


def test_other_spellings_of_a_field_are_answered_under_its_own_name(machine, smi) -> None:
    machine("t4")
    text, _ = smi("--query-gpu=gpu_name,clocks.sm,clocks_throttle_reasons.active", "--format=csv")
    assert text.splitlines()[0] == "name, clocks.current.sm [MHz], clocks_event_reasons.active"


def test_a_driver_before_535_knows_throttle_reasons_and_no_event_reasons(machine, smi) -> None:
    machine("v100x4")
    assert smi("--query-gpu=clocks_throttle_reasons.active", "--format=csv")[1] == 0
    text, code = smi("--query-gpu=clocks_event_reasons.active", "--format=csv")
    assert (text.strip(), code) == ('Field "clocks_event_reasons.active" is not a valid field to query.', 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--query-gpu=index,nope", "--format=csv"], 'Field "nope" is not a valid field to query.'),
        (["--query-gpu=index"], "\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help."),
        (["nvlink", "-g", "0"], "ERROR: Option -g is not recognized. Please run 'nvidia-smi nvlink -h' for help."),
    ],
)
def test_unknown_arguments_are_refused_in_the_words_of_the_real_one(arguments: list[str], said: str, machine, smi) -> None:
    machine()
    text, code = smi(*arguments)
    assert (text.strip(), code) == (said, 2)


@pytest.mark.parametrize("name", ["3", "0000:5d:00.0", "00000000:5D:00.0"])
def test_a_gpu_is_chosen_by_index_or_bus_id(name: str, machine, smi) -> None:
    machine()
    text, code = smi("-i", name, "--query-gpu=index", "--format=csv,noheader")
    assert (text.strip(), code) == ("3", 0)


def test_a_gpu_that_does_not_exist_is_no_device(machine, smi) -> None:
    machine()
    assert smi("-i", "8", "-L") == ("No devices were found\n\n", 6)


@pytest.mark.parametrize("scenario", ["h100x8", "a100x8", "a100-mig", "t4", "v100x4", "h200x2"])
def test_every_field_that_the_help_names_can_be_queried(scenario: str, machine, smi) -> None:
    machine(scenario)
    text, _ = smi("--help-query-gpu")
    named = [line.split('"')[1] for line in text.splitlines() if line.startswith('"')]
    answer, code = smi(f"--query-gpu={','.join(named)}", "--format=csv,noheader")
    assert code == 0
    for row in answer.splitlines():
        assert len(row.split(", ")) == len(named), "the real exporter reads rows by position"


def test_a_lost_gpu_is_a_message_among_the_rows_and_an_exit_code(machine, smi) -> None:
    inject.inject_xid(machine(), code=79, gpu=3)
    text, code = smi("--query-gpu=index", "--format=csv,noheader")
    lost = "Unable to determine the device handle for GPU3: 0000:5D:00.0: GPU is lost.  Reboot the system to recover this GPU"
    assert text.splitlines() == ["0", "1", "2", lost, "4", "5", "6", "7"]
    assert code == 15
    assert smi("-i", "4", "--query-gpu=index", "--format=csv,noheader") == ("4\n", 0), "the others still answer"


def test_an_old_driver_names_a_lost_gpu_by_its_address_alone(machine, smi) -> None:
    inject.lose(machine("v100x4"), gpu=1)
    assert smi()[0].startswith("Unable to determine the device handle for GPU 0000:16:00.0: GPU is lost.")


def test_mig_instances_are_listed_and_the_whole_gpu_has_no_utilization(machine, smi, query) -> None:
    machine("a100-mig")
    text, _ = smi("-L")
    assert [line.split()[1] for line in text.splitlines() if "MIG" in line] == ["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]
    assert query("utilization.gpu", "mig.mode.current")[0] == ["[N/A]", "Enabled"]
    assert "Nvlink queries are not supported for Devices in MIG mode" in smi("nvlink", "-s", "-i", "0")[0]


def test_counters_of_links_grow_and_old_drivers_count_them_in_kbytes(machine, smi, frozen_clock) -> None:
    machine()
    before = smi("nvlink", "-gt", "d", "-i", "0")[0]
    frozen_clock(60)
    after = smi("nvlink", "-gt", "d", "-i", "0")[0]
    assert before.splitlines()[1].startswith("\t Link 0: Data Tx: ")
    first, second = (int(text.splitlines()[1].split()[4]) for text in (before, after))
    assert first < second
    machine("v100x4")
    assert smi("nvlink", "-g", "0", "-i", "0")[0].splitlines()[1].startswith("\t Link 0: Rx0: ")
    assert smi("nvlink", "-gt", "d")[1] == 2, "the collectors must notice that this driver counts in another unit"


def test_a_link_that_is_down_is_inactive(machine, smi) -> None:
    inject.take_link_down(machine(), gpu=2, link=7)
    text, _ = smi("nvlink", "-s", "-i", "2")
    assert "\t Link 7: <inactive>" in text.splitlines()


def test_a_gpu_without_nvlink_says_so(machine, smi) -> None:
    machine("t4")
    assert smi("nvlink", "-s")[0].splitlines()[1] == "Device does not have or support Nvlink"


@pytest.mark.parametrize(("scenario", "width"), [("h100x8", 91), ("a100-mig", 91), ("t4", 91), ("a100x8", 79), ("v100x4", 79)])
def test_every_line_of_the_table_has_its_full_width(scenario: str, width: int, machine, smi) -> None:
    machine(scenario)
    lines = smi()[0].splitlines()[1:]
    assert {len(line) for line in lines if line.strip()} == {width}


def test_the_fields_of_a_faulty_gpu_show_its_fault(machine, query) -> None:
    state = machine()
    inject.make_hot(state, gpu=1, temperature_c=95)
    inject.inject_ecc(state, gpu=2, corrected=7, uncorrected=2)
    inject.remap_row(state, gpu=3, failed=True)
    inject.hang(state, gpu=7)
    assert query("temperature.gpu", "clocks_event_reasons.hw_thermal_slowdown", "clocks_event_reasons.active")[1] == [
        "95",
        "Active",
        "0x0000000000000048",
    ]
    ecc = query("ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.dram", "gpu_recovery_action")
    assert ecc[2] == ["7", "2", "Drain and Reset"]
    assert query("remapped_rows.failure", "remapped_rows.histogram.none")[3] == ["Yes", "1"]
    assert query("utilization.gpu")[7] == ["100"]
    assert float(query("power.draw")[7][0]) < 200


def test_throttling_counts_its_time(machine, query, frozen_clock) -> None:
    inject.throttle(machine(), gpu=0, reason="hw_power_brake_slowdown")
    frozen_clock(30)
    assert query("clocks_event_reasons_counters.hw_power_brake_slowdown")[0] == ["30000000"]


def test_dmon_prints_a_header_in_the_spacing_of_its_driver(machine, smi) -> None:
    machine()
    assert smi("dmon", "-s", "t", "-c", "1")[0].splitlines()[:2] == ["# gpu  rxpci  txpci ", "# Idx   MB/s   MB/s "]
    machine("v100x4")
    assert smi("dmon", "-s", "t", "-c", "1")[0].splitlines()[:2] == ["# gpu rxpci txpci", "# Idx  MB/s  MB/s"]


def test_all_processes_are_listed_with_the_memory_they_hold(machine, smi) -> None:
    machine("a100x8")
    text, _ = smi("--query-compute-apps=gpu_uuid,pid,process_name,used_gpu_memory", "--format=csv")
    assert text.splitlines()[0] == "gpu_uuid, pid, process_name, used_gpu_memory [MiB]"
    assert len(text.splitlines()) == 9


def test_newer_drivers_know_more_fields() -> None:
    assert len(known(450)) < len(known(590)) < len(known(610))
    assert "kmd_version" in known(595)
    assert "kmd_version" not in known(590)


def test_the_programs_are_executable_files_of_the_repository() -> None:
    for program in filter(Path.is_file, setup.PROGRAMS.iterdir()):  # a test that imports a program leaves __pycache__
        assert program.stat().st_mode & 0o111, program
        assert program.read_text().startswith("#!/usr/bin/env python3\n"), program


def test_a_broken_driver_answers_every_question_with_its_problem(machine, smi) -> None:
    state = machine()
    inject.break_driver(state, problem="not-loaded")
    assert smi("-L") == (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
        "Make sure that the latest NVIDIA driver is installed and running.\n\n",
        9,
    )
    inject.break_driver(state, problem="version-mismatch")
    assert smi("--query-gpu=index", "--format=csv")[0].startswith("Failed to initialize NVML: Driver/library version mismatch")
    inject.clear(state)
    assert smi("-L")[1] == 0


def test_a_stalled_driver_answers_late(machine, smi, monkeypatch: pytest.MonkeyPatch) -> None:
    inject.stall(machine(), seconds=30)
    waited: list[float] = []
    monkeypatch.setattr("lab.gpu.nvidia.cli.time.sleep", waited.append)
    assert smi("-L")[1] == 0
    assert waited == [30]


def test_counted_faults_of_the_links_show(machine, smi) -> None:
    state = machine()
    inject.add_link_errors(state, gpu=0, link=2, replay=5, crc=7)
    errors = smi("nvlink", "-e", "-i", "0")[0].splitlines()
    assert "\t Link 2: Replay Errors: 5" in errors
    assert "\t Link 2: CRC Errors: 7" in errors


def test_faults_of_an_older_lab_are_read(machine, smi) -> None:
    (machine("t4") / "faults.json").write_text('{"gpus": {"0": {"lost": true}}, "xids": []}')
    assert smi("-L")[1] == 15
