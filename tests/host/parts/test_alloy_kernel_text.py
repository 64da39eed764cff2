"""A real Alloy with a host's configuration: whose word a kernel line is.

The same driver's line is the same event in every format of a file and from a journal; a user's text is none, wherever the kernel
prints it.
"""

from __future__ import annotations

import json
import random
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.ports import free_ports
from tests.host.parts.conftest import RunningAlloy, kernel_log_facts, running_alloy
from tests.host.parts.receiver import LogLine

_GIVEN: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("kernel_text.yaml").read_text())
HEADERS = _GIVEN["HEADERS"]
XIDS, AMD, SXIDS = ({said: event and tuple(event) for said, event in _GIVEN[name].items()} for name in ("XIDS", "AMD", "SXIDS"))
# Program's lines in a file that a syslog daemon writes: not by the tag of the kernel.
OF_PROGRAMS = [
    f"{time_and_host}{tag}NVRM: Xid (PCI:f0f0:4b:00): 79, GPU has fallen off the bus."
    for time_and_host in (
        *("Jan 18 11:38:05 node ", "2026-01-18T11:38:05.123456+00:00 node ", "<4>1 2026-01-18T11:38:05Z node "),
        *("Jan 18 11:38:05 NODE ", "janv. 18 11:38:05 node ", " 1月 18 11:38:05 node ", "So 2026-01-18 11:38:05 CET node "),
        "1768732685.123456 node ",
    )
    for tag in ("ops: ", "kernel[99]: ", "kernel-x: ", "x kernel: ", "d[1]: kernel: [ 1.0] ", "ops - - - kernel: ", " kernel: ")
]

LIES = _GIVEN["LIES"]
_RECORD = 976  # bytes of text in one record of the kernel's log
EVENT_LABELS = {"xid", "sxid", "event", "nic_event"}
OF_EVENTS = {"pci", "detail", "nic", "nvlink_event", "booted", "loaded", "sxid_severity"}


def oom_records(cpuset: str, path: str, comm: str, broken_at: int) -> list[str]:
    """The records that the kernel makes of its line of an OOM, which it prints in pieces. A new one begins with the piece that no
    longer fits, cut to one record's length, and where another CPU has printed in between. Source: mm/oom_kill.c, mm/memcontrol.c,
    kernel/cgroup/cpuset.c and kernel/printk/printk.c of Linux 6.12, read 2026-11-28."""
    pieces = ["oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)", ",cpuset=", cpuset[:255], ",mems_allowed=0-1"]
    pieces += [",oom_memcg=", path, ",task_memcg=", path, f",task={comm},pid=7,uid=1000"]
    records = [""]
    for number, piece in enumerate(pieces):
        if number == broken_at or len(records[-1]) + len(piece) > _RECORD:
            records.append("")
        records[-1] += piece[:_RECORD]
    return records


def forgeries(seed: int, *, newlines: bool) -> list[str]:
    """Kernel messages with a user's text in them.

    The names of cgroups and files may have any length and contain what looks like the start of a line; that of a program has 15
    bytes. `newlines`: the record may contain some, as one message of a journal.
    """
    chance = random.Random(seed)
    found = []
    for number in range(500):
        lie = chance.choice(LIES)
        text = chance.choice(list(HEADERS.values())) + lie
        if chance.random() < 0.3:
            text = chance.choice(["<4>", "x kern: info: ", "\\x0a", "\\n", "\x01", "\t", "  ", "[drm] ", "NVRM: "]) + text
        before = "x" * chance.choice([0, 1, 7, 15, 200, 900, chance.randrange(1000)])
        name = before + text  # the lie at any offset
        path = "/user.slice/user-1000.slice/" + name.replace("/", "_")
        comm = text[:15]
        records = [
            f"{path}:",  # the memory controller continued its line in a new record
            f"/user.slice/{before} kern: info: {lie}",  # as Talos' header
            f"/{before} {chance.choice(['node', '- -', ''])} kernel: {lie}",
            f" {path}: cache:0KB rss:12KB",
            f"Memory cgroup stats for {path}:",
            f"Tasks in {path} are going to be killed due to memory.oom.group set",
            f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg={path},task_memcg={path},task={comm},pid=7,uid=1000",
            *oom_records(lie, path * chance.choice([1, 1, 4, 40]), comm, chance.randrange(10)),
            f"cgroup: fork rejected by pids controller in {path}",
            f"{comm} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
            f"{comm}[4711]: segfault at 0 ip 000055d0 sp 00007ffd error 4 in {name}[55d0,1000]",
            f" in {name}[55d0,1000] likely on CPU 3 (core 1, socket 0)",
            f"{comm}: renamed from {lie[:15]}",
            f"traps: {comm}[4711] trap invalid opcode ip:55d0 sp:7ffd error:0 in {name}[55d0,1000]",
            f"Out of memory: Killed process 4711 ({comm}) total-vm:1kB, anon-rss:1kB, UID:1000 pgtables:1kB oom_score_adj:0",
            f'audit: type=1400 audit(1.0:1): apparmor="DENIED" comm="{comm}" name="{name}"',
            f"overlayfs: failed to resolve '{name}': -2",
            f"usb 1-1: Product: {text}",
            f"EXT4-fs (loop0): mounted filesystem {text}",
            f"process '{path}' started with executable stack",
        ]
        record = chance.choice(records)
        if newlines and chance.random() < 0.4:
            record = f"{comm}[4711]: segfault at 0 ip 55d0 error 4 in a\n{name}\n{lie}[55d0,1000]"
        # The number makes each of them findable; one of a list of nodes where a record ends with it.
        found.append(f"{record},{seed}{number}" if record.endswith("mems_allowed=0-1") else f"{record} nvidia {seed}-{number}")
    return found


IN_A_JOURNAL = forgeries(28, newlines=True)
# Only formats that begin each line with something of the daemon's or the kernel's own.
IN_A_FILE = [
    header + record
    for header, record in zip(
        (header for _ in range(50) for header in HEADERS.values() if header), forgeries(29, newlines=False), strict=False
    )
]
TRUE_IN_A_FILE = [header + said for said in [*XIDS, *AMD, *SXIDS] for header in HEADERS.values()]
END = "NVRM: the last of these lines"
LOG = "var/log/gpu/kernel.log"


def push(url: str, lines: list[str]) -> None:
    """As loki.source.journal hands on what it read: with the level, and without the name of a file."""
    now = time.time_ns()
    values = [[str(now + number), line] for number, line in enumerate(lines)]
    body = json.dumps({"streams": [{"stream": {"level": "warning"}, "values": values}]}).encode()
    urllib.request.urlopen(
        urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"}), timeout=60
    ).close()


@pytest.fixture(scope="module")
def alloy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAlloy]:
    prefix = tmp_path_factory.mktemp("host")
    log = prefix / LOG
    log.parent.mkdir(parents=True)
    log.write_text("the boot\n")
    [port] = free_ports(1)
    journal = (
        'loki.source.api "journal" {\n'
        f'  http {{\n    listen_address = "127.0.0.1"\n    listen_port = {port}\n  }}\n'
        "  forward_to = [kernel_lines.counted.receiver, kernel_lines.sent.receiver]\n}\n"
    )
    with running_alloy(prefix, kernel_log_facts(log), config=journal) as running:
        running.wait_until_read(log)
        with log.open("a") as kernel:
            kernel.write("".join(f"{line}\n" for line in [*OF_PROGRAMS, *IN_A_FILE, *TRUE_IN_A_FILE, END]))
        push(f"http://127.0.0.1:{port}/loki/api/v1/push", [*IN_A_JOURNAL, *XIDS, *AMD, *SXIDS, f"{END} of a journal"])
        ends = {END, f"{END} of a journal"}
        expected = {*IN_A_FILE, *IN_A_JOURNAL, *TRUE_IN_A_FILE, *ends}
        running.receiver.wait_until(lambda: sorted(expected - {line.line for line in running.receiver.lines})[:3], [])
        read = time.time()
        running.receiver.wait_for(lambda: max(running.receiver.times, default=0) > read + 1)  # scrapes that saw all of them
        yield running


@pytest.fixture(scope="module")
def sent(alloy: RunningAlloy) -> dict[str, list[LogLine]]:
    by_text: dict[str, list[LogLine]] = {}
    for line in alloy.receiver.lines:
        by_text.setdefault(line.line, []).append(line)
    return by_text


@pytest.mark.parametrize("header", HEADERS)
def test_the_driver_s_word_is_the_same_behind_every_header(sent: dict[str, list[LogLine]], header: str) -> None:
    found, expected = {}, {}
    for said, event in XIDS.items():
        for line in sent[HEADERS[header] + said]:
            found[said] = (line.labels.get("xid"), line.metadata.get("pci"), line.metadata.get("detail"))
            expected[said] = event or (None, None, None)
    for said, amd in AMD.items():
        for line in sent[HEADERS[header] + said]:
            found[said] = (line.labels.get("event"), line.metadata.get("pci"), None)
            expected[said] = (*amd, None) if amd else (None, None, None)
            if not amd:
                found[said] = (line.labels.get("event"), None, None)
    for said, switch in SXIDS.items():
        for line in sent[HEADERS[header] + said]:
            found[said] = (line.labels.get("sxid"), line.metadata.get("pci"), line.metadata.get("sxid_severity"))
            expected[said] = switch
    assert found == expected


def test_a_lost_gpu_is_one_event_however_often_the_driver_says_so(alloy: RunningAlloy) -> None:
    """The incident is that of the series; lines without a code are not counted as XIDs."""
    lost = {said: event[1] for said, event in XIDS.items() if event and event[0] == "79"}
    found = alloy.receiver.of("gpu_fleet_xid_last_timestamp_seconds")
    series = [labels.get("pci") for labels, _ in found if labels["xid"] == "79"]
    assert sorted(series, key=str) == sorted(lost.values(), key=str)
    counted = {labels["pci"] for labels, _ in alloy.receiver.of("gpu_fleet_xid_events_total") if labels["xid"] == "79"}
    assert counted == {pci for said, pci in lost.items() if "Xid" in said}


def test_a_gpu_that_is_lost_while_the_driver_loads_is_lost_after_it(alloy: RunningAlloy) -> None:
    """The driver reports it a moment before the line that says that all GPUs are new (NVSentinel, issue 155)."""
    [(_, lost)] = [
        (labels, at)
        for labels, at in alloy.receiver.of("gpu_fleet_xid_last_timestamp_seconds")
        if labels.get("pci") == "0009:14:00"
    ]
    assert 0 < lost - max(alloy.receiver.times) < 60


def forged(lines: list[LogLine]) -> bool:
    return any(EVENT_LABELS & set(line.labels) or OF_EVENTS & set(line.metadata) for line in lines)


@pytest.mark.parametrize("source", ["journal", "file"])
def test_nothing_of_a_user_s_text_in_a_kernel_record_is_an_event(sent: dict[str, list[LogLine]], source: str) -> None:
    lines = IN_A_JOURNAL if source == "journal" else IN_A_FILE
    taken = [line for line in lines if forged(sent[line])]
    assert taken == [], f"{len(taken)} of {len(lines)}: a user would drain nodes, or end the incidents of real faults"


def test_no_forgery_is_counted_or_ends_an_incident(alloy: RunningAlloy) -> None:
    names = {
        dict(labels)["__name__"]
        for labels in list(alloy.receiver.series)
        if any("f0f0" in value for _, value in labels)
        or re.fullmatch("gpu_fleet_(booted|driver_loaded|nvlink_error_last)_timestamp_seconds", dict(labels)["__name__"])
    }
    assert names == set()


@pytest.mark.parametrize("text", OF_PROGRAMS)
def test_a_program_s_line_in_the_file_is_not_taken(sent: dict[str, list[LogLine]], text: str) -> None:
    assert text not in sent
