"""Simulated kernel lines against every recorded XID and SXid line: same wording, code by code."""

from __future__ import annotations

import csv
import re
from collections import defaultdict

import pytest

from lab.gpu import inject, kernel
from lab.gpu.machine import CLOCK_VARIABLE
from tests.samples.conftest import SAMPLES
from tests.samples.gpu_machines import NOON, make

KERNEL = SAMPLES / "kernel"


def wording(line: str) -> str:
    """From the code on, without numbers, addresses and the width of columns, and without the process: which of its parts are
    there depends on the driver's age and on whether it knew the process."""
    text = re.sub(r"^.*?(NVRM: Xid|SXid) \(.*?\): ", "", line)
    text = re.sub(r"pid=('?<unknown>'?|\w+), (name=(<unknown>|[^,]+), )?", "", text)
    text = re.sub(r"0x[0-9a-f_]+", "H", re.sub(r" +", " ", text))
    text = re.sub(r"(T1|GPC|CE|GPU)_?\d+", r"\1", text)
    text = re.sub(r"(, H){2,}", ", H", re.sub(r"( H){2,}", " H", text))
    return re.sub(r"\b[0-9a-f]*\d[0-9a-f]*\b", "9", text).rstrip(". ")


def recorded(name: str) -> dict[int, set[str]]:
    wordings: dict[int, set[str]] = defaultdict(set)
    with (KERNEL / name).open(newline="") as file:
        for row in csv.DictReader(file):
            wordings[int(row["code"])].add(wording(row["line"]))
    return wordings


XIDS, SXIDS = recorded("kernel_xid_lines.csv"), recorded("kernel_sxid_lines.csv")
# Only made up by a test author, or cut off, in the recordings: no line to compare with.
WITHOUT_A_LINE = {3, 8, 38, 46, 71, 102}
COMPARED = sorted(set(XIDS) - WITHOUT_A_LINE)


@pytest.mark.parametrize("code", COMPARED)
def test_an_xid_is_worded_as_recorded(code: int, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CLOCK_VARIABLE, str(NOON))
    state = make(tmp_path, "h100x8")
    lines = inject.inject_xid(state, code=48 if code == 154 else code, gpu=0)
    line = next(line for line in lines if f"): {code}, " in line)
    assert wording(line) in XIDS[code]


@pytest.mark.parametrize("code", kernel.SXID_CODES)
def test_an_nvswitch_error_is_worded_as_recorded(code: int) -> None:
    assert wording(kernel.sxid_lines(code, switch=0, pci="0000:05:00.0", link=28)[0]) in SXIDS[code]


def test_the_details_of_an_nvswitch_error_are_worded_as_recorded() -> None:
    everything = {wording for wordings in SXIDS.values() for wording in wordings}
    for line in kernel.sxid_lines(22013, switch=3, pci="0000:04:00.0", link=44):
        assert wording(line) in everything


def test_a_gpu_lost_without_an_xid_is_logged_as_recorded(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CLOCK_VARIABLE, str(NOON))
    lines = inject.lose(make(tmp_path, "h100x8"), gpu=0)
    theirs = (KERNEL / "fallen-off-bus-multiline.log").read_text().splitlines()[:3]
    strip = re.compile(r"^\[.*?\]\s*|^\s+|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d|10de:[0-9a-f]{4}")
    assert [strip.sub("", line) for line in lines] == [strip.sub("", line) for line in theirs]
