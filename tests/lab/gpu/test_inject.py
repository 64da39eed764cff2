from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab import gpu
from lab.gpu import inject, kernel
from lab.gpu.__main__ import main
from lab.gpu.inject import CannotInject
from lab.gpu.machine import KERNEL_LOG, Machine, NoMachine

XID_LINE = re.compile(r"^\[ *\d+\.\d{6}\] NVRM: Xid \(PCI:0000:[0-9a-f]{2}:[0-9a-f]{2}\): (\d+), .+$")


def test_an_xid_is_one_kernel_line_and_the_recovery_action_that_the_driver_adds(machine) -> None:
    state = machine()
    lines = gpu.inject_xid(state, code=79, gpu=3)
    address = gpu.pci_address(state, 3)
    assert [line.split("] ")[1] for line in lines] == [
        f"NVRM: Xid (PCI:{address}): 79, GPU has fallen off the bus.",
        f"NVRM: GPU {address}.0: GPU has fallen off the bus.",
        f"NVRM: Xid (PCI:{address}): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    ]
    assert (state / KERNEL_LOG).read_text().splitlines() == lines
    assert Machine.load(state).gpu(3).lost


def test_the_same_recovery_action_is_not_announced_twice(machine) -> None:
    state = machine()
    assert len(gpu.inject_xid(state, code=48, gpu=0)) == 2
    assert len(gpu.inject_xid(state, code=48, gpu=0)) == 1


def test_a_driver_of_2020_adds_no_recovery_action(machine) -> None:
    first, second = gpu.inject_xid(machine("v100x4"), code=79, gpu=0)
    assert "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus." in first
    assert "154" not in second


@pytest.mark.parametrize(
    ("scenario", "line"),
    [
        ("h100x8", "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 06 (0x025001c6"),
        ("l40sx2", "149, NETIR_LINK_EVT Fatal XC0 i0 Link 06 (0x025001c6"),
    ],
)
def test_an_nvlink_5_error_is_in_columns_or_not_by_the_driver(scenario: str, line: str, machine) -> None:
    assert line in gpu.inject_xid(machine(scenario), code=149, gpu=0)[0]


@pytest.mark.parametrize(
    ("scenario", "process"),
    [("v100x4", "pid=20000, Ch"), ("a100x8", "pid=20000, name=python3, Ch"), ("h100x8", "pid=20000, name=python3, Ch")],
)
def test_an_xid_names_its_process_as_its_driver_does(scenario: str, process: str, machine) -> None:
    assert f": 43, {process} 00000008" in gpu.inject_xid(machine(scenario), code=43, gpu=0)[0]


@pytest.mark.parametrize("code", [13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119, 120, 144, 145, 146, 147, 148, 149, 150, 999])
def test_every_code_gives_a_line_that_a_parser_of_xids_takes(code: int, machine) -> None:
    assert XID_LINE.match(gpu.inject_xid(machine(), code=code, gpu=5)[0])[1] == str(code)


@pytest.mark.parametrize(
    ("code", "key", "value"),
    [
        (48, "ecc_uncorrected", 1),
        (63, "remap_pending", True),
        (64, "remap_failed", True),
        (74, "links_down", [6]),
        (94, "recovery_action", "Drain and Reset"),
        (119, "hang", True),
        (43, "recovery_action", "None"),
    ],
)
def test_an_xid_leaves_its_damage(code: int, key: str, value: object, machine) -> None:
    state = machine()
    gpu.inject_xid(state, code=code, gpu=1)
    assert Machine.load(state).gpu(1).faults[key] == value
    assert Machine.load(state).gpu(0).faults == Machine.load(state).gpu(2).faults, "other GPUs are untouched"


def test_an_nvswitch_error_is_three_lines_of_its_switch(machine) -> None:
    lines = inject.inject_sxid(machine(), code=22013, switch=2, link=44)
    assert all("nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 22013, " in line for line in lines)
    assert lines[0].endswith("Non-fatal, Link 44 Minion Link DLREQ interrupt")
    assert len(lines) == 3


def test_an_amd_gpu_with_memory_errors_speaks_as_amdgpu(machine) -> None:
    lines = inject.inject_ecc(machine("mi300x4"), gpu=1, corrected=5, uncorrected=1)
    assert [line.split("] ")[1] for line in lines] == [
        "amdgpu 0000:26:00.0: amdgpu: 5 correctable hardware errors detected in umc block",
        "amdgpu 0000:26:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block",
    ]


def test_uncorrected_errors_come_with_their_xid_and_are_counted_once(machine) -> None:
    state = machine()
    lines = inject.inject_ecc(state, gpu=0, uncorrected=3)
    assert XID_LINE.match(lines[0])[1] == "48"
    assert Machine.load(state).gpu(0).faults["ecc_uncorrected"] == 3


def test_clearing_repairs_everything_and_keeps_the_log(machine) -> None:
    state = machine()
    gpu.inject_xid(state, code=79, gpu=3)
    inject.make_hot(state, gpu=1)
    inject.clear(state)
    after = Machine.load(state)
    assert not after.xids
    assert not any(gpu.lost or gpu.faults["throttle"] for gpu in after.gpus)
    assert "79" in (state / KERNEL_LOG).read_text()


@pytest.mark.parametrize(
    ("scenario", "attempt", "said"),
    [
        ("h100x8", lambda state: gpu.inject_xid(state, code=79, gpu=8), "this machine has GPUs 0 to 7"),
        ("mi300x4", lambda state: gpu.inject_xid(state, code=79, gpu=0), "XIDs are NVIDIA's"),
        ("t4", lambda state: inject.inject_sxid(state, code=22013), "has no NVSwitch"),
        ("h100x8", lambda state: inject.inject_sxid(state, code=1), "the lab knows 12028"),
        ("t4", lambda state: inject.take_link_down(state, gpu=0, link=0), "has no NVLink"),
        ("h100x8", lambda state: inject.throttle(state, gpu=0, reason="tired"), "one of sw_power_cap"),
    ],
)
def test_what_the_machine_does_not_have_cannot_break(scenario: str, attempt, said: str, machine) -> None:
    state = machine(scenario)
    with pytest.raises((CannotInject, NoMachine), match=said):
        attempt(state)
    assert (state / KERNEL_LOG).read_text() == ""


def test_the_commands_for_people_print_the_kernel_lines_and_the_state(machine, capsys: pytest.CaptureFixture[str]) -> None:
    state = str(machine())
    assert main(["inject", "--state", state, "xid", "--code", "79", "--gpu", "3"]) == 0
    assert "fallen off the bus" in capsys.readouterr().out
    assert main(["inject", "--state", state, "hot", "--gpu", "1", "--temperature-c", "99"]) == 0
    assert main(["inject", "--state", state, "clear"]) == 0
    assert main(["status", "--state", state]) == 0
    assert capsys.readouterr().out.count("healthy") == 8


def test_a_command_without_a_machine_says_how_to_make_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--state", str(tmp_path)]) == 1
    assert "python -m lab.gpu init --state" in capsys.readouterr().err


def test_every_nvswitch_code_has_its_severity() -> None:
    for code in kernel.SXID_CODES:
        first = kernel.sxid_lines(code, switch=0, pci="0000:05:00.0", link=1)[0]
        assert re.search(r", (Fatal|Non-fatal), Link ", first)
