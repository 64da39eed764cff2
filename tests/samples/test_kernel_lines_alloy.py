"""A real Alloy with a host's configuration against every recorded kernel line: what it takes for an XID, and what it does not."""

from __future__ import annotations

import contextlib
import csv
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.host.parts.conftest import RunningAlloy, kernel_log_facts, running_alloy
from tests.host.parts.receiver import LogLine
from tests.samples.conftest import SAMPLES

KERNEL = SAMPLES / "kernel"
END = "NVRM: the end of all recordings"
# One line of three kinds of each NVSwitch event; these two add detail to an event that has its own line.
DETAIL = ("Data {", "Severity ")


def rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((KERNEL / name).open(newline="")))


XIDS = rows("kernel_xid_lines.csv")
SXIDS = rows("kernel_sxid_lines.csv")
# Collections of odd lines: some are whole and of an unknown code, some are broken.
MALFORMED = {line for path in KERNEL.glob("*-malformed.log") for line in path.read_text().splitlines()}
LINES = [
    line
    for recording in sorted(KERNEL.glob("*.log"))
    if "fabricmanager" not in recording.name  # a log of its own, not the kernel's
    for line in recording.read_text(errors="replace").splitlines()
    if line.strip()
]


@pytest.fixture(scope="module")
def alloy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAlloy]:
    prefix = tmp_path_factory.mktemp("host")
    log = prefix / "kern.log"
    log.touch()
    with running_alloy(prefix, kernel_log_facts(log)) as running:
        running.wait_until_read(log)
        with log.open("a") as kernel:
            kernel.write("".join(f"{line}\n" for line in [*(row["line"] for row in [*XIDS, *SXIDS]), *LINES, END]))
        running.receiver.wait_for(lambda: any(sent.line == END for sent in running.receiver.lines))
        # One push holds the lines of several streams, and the last line need not be in the last one that is read.
        events = {row["line"] for row in [*XIDS, *SXIDS]}
        with contextlib.suppress(AssertionError):  # a line that never comes fails its own test
            running.receiver.wait_for(lambda: events <= {sent.line for sent in running.receiver.lines}, within_s=60)
        yield running


@pytest.fixture(scope="module")
def sent(alloy: RunningAlloy) -> dict[str, LogLine]:
    return {line.line: line for line in alloy.receiver.lines}


@pytest.mark.parametrize("row", XIDS, ids=lambda row: row["line"][:60])
def test_every_recorded_xid_line_gives_its_code_and_address(sent: dict[str, LogLine], row: dict[str, str]) -> None:
    line = sent[row["line"]]
    assert line.labels.get("xid") == row["code"]
    # A GPU is function 0 of its device, which most drivers leave out.
    assert line.metadata.get("pci", "") == row["pci"].removesuffix(".0")


@pytest.mark.parametrize("row", SXIDS, ids=lambda row: row["line"][:60])
def test_every_recorded_sxid_line_gives_its_code_and_address(sent: dict[str, LogLine], row: dict[str, str]) -> None:
    line = sent[row["line"]]
    assert line.labels.get("sxid") == row["code"]
    assert line.metadata.get("pci") == row["pci"]
    assert "xid" not in line.labels, "SXid and Xid codes mean different things"


def test_no_other_recorded_line_is_taken_for_an_xid(sent: dict[str, LogLine]) -> None:
    known = {row["line"] for row in [*XIDS, *SXIDS]}
    wrong = [line for text, line in sent.items() if text not in known | MALFORMED and {"xid", "sxid"} & set(line.labels)]
    assert not wrong


@pytest.mark.parametrize("text", ["Xid (invalid)", "Xid error", "Xid : 32", "): abc", "SXid (invalid)", "): xyz"])
def test_a_malformed_line_is_kept_but_is_no_event(sent: dict[str, LogLine], text: str) -> None:
    lines = [line for recorded, line in sent.items() if text in recorded and recorded in MALFORMED]
    assert lines and not any({"xid", "sxid"} & set(line.labels) for line in lines), "rules need a number"


def test_a_process_is_named_only_where_the_driver_knew_it(sent: dict[str, LogLine]) -> None:
    for line in sent.values():
        assert "<" not in line.metadata.get("process", "") and line.metadata.get("pid", "0").isdigit(), line


def test_every_event_is_counted_once(alloy: RunningAlloy) -> None:
    lines = [line for line in alloy.receiver.lines if "xid" in line.labels]
    expected = Counter((line.labels["xid"], line.metadata["pci"]) for line in lines)

    def counted() -> Counter[tuple[str, str]]:
        """One code of a GPU may have several details, each with a series of its own."""
        found: Counter[tuple[str, str]] = Counter()
        for labels, number in alloy.receiver.of("gpu_fleet_xid_events_total"):
            found[labels["xid"], labels["pci"]] += int(number)
        return found

    alloy.receiver.wait_for(lambda: counted() == expected)


def test_the_detail_lines_of_a_switch_event_are_not_counted(alloy: RunningAlloy) -> None:
    lines = [line for line in alloy.receiver.lines if "sxid" in line.labels and not any(text in line.line for text in DETAIL)]

    def counted() -> float:
        return sum(number for _, number in alloy.receiver.of("gpu_fleet_sxid_events_total"))

    alloy.receiver.wait_for(lambda: counted() == len(lines))


@pytest.mark.parametrize("text", ["amdgpu", "fallen off the bus", "nvidia-peermem", "Out of memory: Killed process"])
def test_lines_about_what_breaks_gpus_are_kept(sent: dict[str, LogLine], text: str) -> None:
    recorded = [line for line in LINES if text in line]
    assert recorded and all(line in sent for line in recorded)


def test_network_chatter_is_dropped(sent: dict[str, LogLine]) -> None:
    assert not [text for text in sent if "ADDRCONF" in text]
