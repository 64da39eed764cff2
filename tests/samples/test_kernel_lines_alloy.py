"""A real Alloy with a host's configuration, and the rules, against every recorded kernel line: what the line means.

A meaning is the event (code, address), what opens an incident with which severity and action, what ends one, or nothing. The
expected ones come from NVIDIA's catalogue beside the recordings and from the documents named below, not from our tables.
"""

from __future__ import annotations

import contextlib
import csv
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import alerts
from alerts.sxid import CATALOGUE as SXID_CATALOGUE
from gpu_fleet import toolchain
from tests.host.parts.conftest import RunningAlloy, kernel_log_facts, running_alloy
from tests.host.parts.receiver import LogLine
from tests.samples.conftest import SAMPLES

KERNEL = SAMPLES / "kernel"
FIELD = SAMPLES.parent / "field" / "signals"
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
    for recording in sorted([*KERNEL.glob("*.log"), *FIELD.glob("*.log")])
    if "fabricmanager" not in recording.name  # a log of its own, not the kernel's
    for line in recording.read_text(errors="replace").splitlines()
    if line.strip()
]

# NVIDIA's catalogue: severity and action of each code. An immediate action of IGNORE (none) raises no alert.
CATALOGUE = {
    int(row["code"]): (row["severity"], row["immediate_action"])
    for row in csv.DictReader(line for line in (SAMPLES.parent / "xid.csv").read_text().splitlines() if not line.startswith("#"))
}
# Its decode table of 144 to 150: Fatal is RESET_GPU, Nonfatal IGNORE. And its text on 154 ("Analyzing Xid Errors with the Xid
# Catalog"): Drain and Reset lets running work end first.
NVLINK_5 = {"fatal": ("critical", "reset_gpu"), "nonfatal": ("info", "none")}
RECOVERY = {"0x0": "info", "0x1": "critical", "0x2": "critical", "0x4": "warning"}
# What else than XIDs and SXids means something; the first that matches. AMD: amd_events.csv names the sources.
OTHERS = [
    (r"NVRM: The NVIDIA GPU 0000:b3:00\.0$", ("xid", "79", "0000:b3:00")),  # has "fallen off the bus", says the next line but one
    (r"no uncorrectable", None),
    (r"uncorrectable hardware error", ("event", "uncorrectable", "")),
    (r"\d correctable hardware errors detected", ("event", "correctable", "")),
    (r"retry page fault \(src_id", ("event", "page_fault", "")),
    (r"poison is consumed by client", ("event", "poison_consumed", "")),
    (r"Poison is created", ("event", "poison_created", "")),
    (r"bad pages \d+ reaches threshold", ("event", "bad_page_threshold", "")),
    (r"Linux version 5", ("booted", "Linux version", "")),
    (r"NVRM: loading NVIDIA UNIX", ("loaded", "NVRM: loading NVIDIA UNIX", "")),
    (r"amdgpu kernel modesetting enabled", ("loaded", "amdgpu kernel modesetting enabled", "")),
    (r"ring sdma0 timeout|qcm fence wait|The cp might|MES might|Ring gfx_0.0.0 reset failed", ("event", "ring_timeout", "")),
    (r"GPU recovery disabled", ("event", "reset_failed", "")),
    (r"PSP resume failed", ("event", "init_failed", "")),
]
AMD_VERDICTS = {
    "uncorrectable": ("critical", "reset_gpu"),
    "correctable": None,
    "page_fault": ("warning", "restart_app"),
    "poison_consumed": ("critical", "reset_gpu"),
    "poison_created": ("warning", "none"),
    "bad_page_threshold": ("critical", "plan_replacement"),
    "ring_timeout": ("warning", "restart_app"),
    "reset_failed": ("critical", "reboot_node"),
    "init_failed": ("critical", "contact_support"),
}
# Whole lines of odd collections: an unknown code, and one that is cut off.
ODD = {
    "NVRM: Xid (PCI:0000:66:00): 999": ("xid", "999", "0000:66:00"),
    "NVRM: Xid (PCI:0000:05:00): 79, pid=": ("xid", "79", "0000:05:00"),
    "NVRM: Xid (0000:03:00): 14": ("xid", "14", "0000:03:00"),
    "12028, Non-fatal, Link 32": ("sxid", "12028", "0000:05:00.0"),
    "11111, Data {": ("sxid", "11111", "0000:a9:00.0"),
    "99999, Some error": ("sxid", "99999", "0000:05:00.0"),
    "20009, Non-fatal, Li": ("sxid", "20009", "0000:06:00.0"),
}
KNOWN = {row["line"]: ("xid", row["code"], row["pci"].removesuffix(".0")) for row in XIDS} | {
    row["line"]: ("sxid", row["code"], row["pci"]) for row in SXIDS
}


def meaning(line: str) -> tuple[str, str, str] | None:
    """What the line is, its code or name, and the address of which GPU or switch."""
    if line in KNOWN:
        return KNOWN[line]
    if line in MALFORMED and (odd := next((event for text, event in ODD.items() if text in line), None)):
        return odd
    if xid := re.search(r"NVRM: Xid \(PCI:([0-9a-f:]+)\): (\d+), (?:NETIR|RLW)", line):
        return "xid", xid[2], xid[1]  # cases from the field
    kind, name, pci = next((event for text, event in OTHERS if re.search(text, line) and event), None) or ("", "", "")
    if not kind or re.search("no uncorrectable", line):
        return None
    address = re.search(r"amdgpu ([0-9a-f:]+)\.\d: ", line)
    return kind, name, address[1] if address and kind == "event" else pci


def verdict(kind: str, name: str, line: str) -> tuple[str, str] | None:
    """Severity and action of the alert that the event raises, or None."""
    if kind == "event":
        return AMD_VERDICTS[name]
    if kind == "sxid":
        if any(text in line for text in DETAIL):
            return None
        severity = re.search(r", (Fatal|Non-fatal)\b", line)
        row = SXID_CATALOGUE.get(int(name))
        if severity and severity[1] == "Fatal":
            return "critical", ""
        if row and row.severity == "info":
            return None
        return (row.severity.value if row and not severity else "warning"), ""
    code = int(name)
    if 144 <= code <= 150:
        found = NVLINK_5[re.search(r"(?i)\b(fatal|nonfatal)\b", line)[1].lower()]
    elif code == 154:
        found = RECOVERY[re.search(r" to (0x\d)", line)[1]], ""
    else:
        if code not in CATALOGUE:
            return "warning", "none"
        found = CATALOGUE[code]
    return found if found[0] in ("critical", "warning") and found[1] != "none" else None


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


def found_meaning(line: LogLine) -> tuple[str, str, str] | None:
    named = {name: line.labels[name] for name in ("xid", "sxid", "event") if name in line.labels}
    named |= {name: line.metadata[name] for name in ("booted", "loaded") if name in line.metadata}
    assert len(named) <= 1, f"two events in one line: {line}"
    return next(((kind, name, line.metadata.get("pci", "")) for kind, name in named.items()), None)


def test_every_recorded_line_means_what_its_driver_says(sent: dict[str, LogLine]) -> None:
    lines = sorted({*(row["line"] for row in [*XIDS, *SXIDS]), *LINES})
    expected = {line: meaning(line) for line in lines}
    found = {line: found_meaning(sent[line]) if line in sent else None for line in lines}
    assert {line: found[line] for line in lines if found[line] != expected[line]} == {}
    assert sum(event is not None for event in expected.values()) > 280


def test_every_recorded_event_has_the_severity_and_action_that_its_documents_give(
    alloy: RunningAlloy, sent: dict[str, LogLine], tmp_path: Path
) -> None:
    """By the rules, each event on a host of its own."""
    series, expected = [], []
    for number, line in enumerate(sorted(sent)):
        event = found_meaning(sent[line])
        if event is None or event[0] not in ("xid", "sxid", "event") or (event[0] == "sxid" and any(d in line for d in DETAIL)):
            continue
        kind, name, pci = event
        metadata = {key: sent[line].metadata.get(key, "") for key in ("detail", "sxid_severity")}
        host = {"datacenter": "d", "cluster": "c", "instance": f"host-{number}", "job": "alloy"}
        metric = {"xid": "xid", "sxid": "sxid", "event": "amd_event"}[kind]
        labels = host | {kind: name, "pci": pci} | (metadata if kind != "event" else {})
        pairs = ", ".join(f"{key}={json.dumps(value)}" for key, value in labels.items() if value)
        series.append({"series": f"gpu_fleet_{metric}_last_timestamp_seconds{{{pairs}}}", "values": "_x10 600x5"})
        series.append(
            {"series": f'up{{datacenter="d", cluster="c", instance="{host["instance"]}", job="alloy"}}', "values": "1x15"}
        )
        if alert := verdict(kind, name, line):
            severity, action = alert
            about = f', action="{action}"' if action else ""
            expected.append({"labels": f'{{instance="{host["instance"]}", severity="{severity}"{about}}}', "value": 1})
    assert len(expected) > 150
    switches = 'label_replace(ALERTS{alertname=~"NvswitchSxid|GpuDriverAsksForAction"}, "action", "", "", "")'
    raised = f'ALERTS{{alertname=~"GpuXid|GpuXidUnknown|GpuAmdEvent"}} or {switches}'
    case = {
        "rule_files": [str(file) for file in alerts.rule_files("mimir")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [
                    {"expr": f"group by (instance, severity, action) ({raised})", "eval_time": "12m", "exp_samples": expected}
                ],
            }
        ],
    }
    file = tmp_path / "recorded.test.yaml"
    file.write_text(json.dumps(case))
    tested = subprocess.run(
        [toolchain.find("promtool"), "test", "rules", file], capture_output=True, text=True, check=False, timeout=300
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("text", ["Xid (invalid)", "Xid error", "Xid : 32", "): abc", "SXid (invalid)", "): xyz"])
def test_a_malformed_line_is_kept_but_is_no_event(sent: dict[str, LogLine], text: str) -> None:
    lines = [line for recorded, line in sent.items() if text in recorded and recorded in MALFORMED]
    assert lines and not any({"xid", "sxid"} & set(line.labels) for line in lines), "rules need a number"


def test_a_process_is_named_only_where_the_driver_knew_it(sent: dict[str, LogLine]) -> None:
    for line in sent.values():
        assert "<" not in line.metadata.get("process", "") and line.metadata.get("pid", "0").isdigit(), line


def test_every_event_is_counted_once(alloy: RunningAlloy) -> None:
    lines = [line for line in alloy.receiver.lines if "xid" in line.labels and "Xid" in line.line]
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
