"""A real Alloy with a host's configuration: what it makes of kernel lines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.host.parts.conftest import RunningAlloy, kernel_log_facts, running_alloy
from tests.host.parts.receiver import LogLine

# Made for this test after the forms documented in facts: with and without a process, MIG, the old form without "PCI:".
XID_79 = "[ 1843.308145] NVRM: Xid (PCI:0000:4b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_31 = "[ 1850.000001] NVRM: Xid (PCI:0000:4b:00): 31, pid=4711, name=KMS thread, Ch 00000008, intr 00000000. MMU Fault"
XID_94_MIG = "[ 1851.000001] NVRM: Xid (PCI:0000:07:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No"
XID_3_OLD = "Jan 18 11:38:05 node kernel: [  269.517039] NVRM: Xid (0000:01:00): 3, C 00000005 SC 00000007 M 00001ffc"
XID_149 = "[ 1852.000001] NVRM: Xid (PCI:0000:05:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 09 (0x00000004 0x00000000)"
XID_154 = (
    "[ 1853.000001] NVRM: Xid (PCI:0000:05:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
)
# Forms of one address: the domain with eight digits, capitals, the function 0. And the change of 154 without words.
XID_79_LONG = "[ 1853.000002] NVRM: Xid (PCI:00000000:3B:00.0): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_154_BARE = "[ 1853.000003] NVRM: Xid (PCI:0000:3b:00): 154, pid='<unknown>', GPU recovery action changed from 0x0 to 0x2"
XID_UNKNOWN = "[ 1854.000001] NVRM: Xid (PCI:0000:05:00): 899, pid=7, name=python3, Unit 7 reports status 0xdead0001"
XID_95_OLD = "[99999.000001] NVRM: Xid (PCI:0000:05:00): 95, pid=7, name=python3, not sent before a crash"
BOOTED = "Jan 18 11:38:01 node kernel: [    0.000000] Linux version 6.8.0-60-generic (buildd@lcy02-amd64-054) #63-Ubuntu SMP"
LOADED = "[ 1855.000001] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"
SXID_FATAL = "[ 38.178720] nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
SXID_DETAIL = "[ 38.178721] nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 20034, Data {0x50610002, 0x10100030}"
_GIVEN: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("kernel_log.yaml").read_text())
NIC_EVENTS = {text: tuple(event) for text, event in _GIVEN["NIC_EVENTS"].items()}
NO_NIC_EVENTS = _GIVEN["NO_NIC_EVENTS"]
PCIE_ERRORS = _GIVEN["PCIE_ERRORS"]
NO_PCIE_ERRORS = _GIVEN["NO_PCIE_ERRORS"]
LOST_BY_GUESTS = _GIVEN["LOST_BY_GUESTS"]
NOT_LOST_BY_GUESTS = _GIVEN["NOT_LOST_BY_GUESTS"]
NVLINK_ERRORS = _GIVEN["NVLINK_ERRORS"]
NO_NVLINK_ERRORS = _GIVEN["NO_NVLINK_ERRORS"]
NOISE = {
    "[ 40.000000] IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
    "[ 40.000001] gim info:(mailbox_msg_rcv:882) read mmMAILBOX_MSGBUF_RCV_DW0: 0x1",  # ten in a second
}
AMD = "[ 41.000000] amdgpu 0000:83:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block"
AMD_EVENTS = _GIVEN["AMD_EVENTS"]
NO_AMD_EVENTS = _GIVEN["NO_AMD_EVENTS"]
FORGED_IN_KERNEL_LINES = _GIVEN["FORGED_IN_KERNEL_LINES"]
FORGED_BY_PROGRAMS = _GIVEN["FORGED_BY_PROGRAMS"]
LAST = "[ 99.000000] NVRM: the last line of this log"
FLOODED = "0000:f7:00"  # a GPU of which only the flood speaks
EVENTS = [
    XID_95_OLD,
    BOOTED,
    XID_79,
    XID_79,
    XID_31,
    XID_94_MIG,
    XID_3_OLD,
    XID_149,
    XID_154,
    XID_79_LONG,
    XID_154_BARE,
    XID_UNKNOWN,
    LOADED,
    SXID_FATAL,
    SXID_DETAIL,
]
LINES = [
    *EVENTS,
    *NIC_EVENTS,
    *NO_NIC_EVENTS,
    *PCIE_ERRORS,
    *NO_PCIE_ERRORS,
    *LOST_BY_GUESTS,
    *NOT_LOST_BY_GUESTS,
    *NVLINK_ERRORS,
    *NO_NVLINK_ERRORS,
    *NOISE,
    *AMD_EVENTS,
    *NO_AMD_EVENTS,
    *FORGED_IN_KERNEL_LINES,
    *FORGED_BY_PROGRAMS,
    LAST,
]
SENT = set(LINES) - {*NOISE, *FORGED_BY_PROGRAMS}
# Code and detail.
XIDS: set[tuple[str | None, ...]] = {
    ("79", None),
    ("31", None),
    ("94", None),
    ("3", None),
    ("95", None),
    ("149", "NETIR_BER_EVENT Nonfatal"),
    ("154", "0x1 (GPU Reset Required)"),
    ("154", "0x2"),
    ("899", "Unit # reports status #"),
}


@pytest.fixture(scope="module")
def alloy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAlloy]:
    prefix = tmp_path_factory.mktemp("host")
    log = prefix / "kern.log"
    log.write_text("[ 1.0] NVRM: Xid (PCI:0000:4b:00): 48, from before Alloy was here\n")
    with running_alloy(prefix, kernel_log_facts(log)) as running:
        running.wait_until_read(log)
        with log.open("a") as kernel:
            kernel.write("".join(f"{line}\n" for line in LINES))
        running.receiver.wait_until(lambda: sorted(SENT - {line.line for line in running.receiver.lines}), [])
        read = time.time()
        running.receiver.wait_for(lambda: max(running.receiver.times, default=0) > read + 1)  # scrapes that saw all of them
        yield running


def values(alloy: RunningAlloy, name: str, *labels: str) -> dict[tuple[str | None, ...], float]:
    """Of a metric's series by these labels, but for those of the flood."""
    return {
        tuple(found.get(label) for label in labels): value
        for found, value in alloy.receiver.of(name)
        if found.get("pci") != FLOODED
    }


def times_of(alloy: RunningAlloy, name: str, *labels: str, expected: set[tuple[str | None, ...]]) -> dict[str | None, float]:
    """The time of the last event by the first of these labels, once each of the expected ones has arrived."""
    alloy.receiver.wait_until(lambda: set(values(alloy, name, *labels)), expected)
    times = {key[0]: value for key, value in values(alloy, name, *labels).items()}
    assert all(time.time() - 3600 < at <= time.time() for at in times.values()), times
    return times


def line(alloy: RunningAlloy, text: str) -> LogLine:
    return next(line for line in alloy.receiver.lines if line.line == text)


def test_a_kernel_line_carries_the_labels_of_its_host(alloy: RunningAlloy) -> None:
    assert line(alloy, AMD).labels == {
        "job": "kernel",
        "instance": "gpu-node-001",
        "datacenter": "us-west",
        "cluster": "training",
        "exporter_mode": "nvidia_gpu_exporter",
        "event": "uncorrectable",
    }


@pytest.mark.parametrize(("text", "event"), AMD_EVENTS.items(), ids=lambda text: text[40:90])
def test_a_line_of_amd_s_driver_has_its_event_and_its_gpu(alloy: RunningAlloy, text: str, event: str) -> None:
    sent = line(alloy, text)
    pci = "0000:68:00" if "0000:68" in text else "0000:83:00"
    assert (sent.labels.get("event"), sent.metadata.get("pci")) == (event, pci)
    assert not {"xid", "sxid"} & set(sent.labels)


@pytest.mark.parametrize("text", NO_AMD_EVENTS, ids=lambda text: text[15:80])
def test_other_lines_about_amd_gpus_and_user_text_in_them_are_no_events(alloy: RunningAlloy, text: str) -> None:
    assert "event" not in line(alloy, text).labels, "it would drain a node"


def test_events_of_amd_s_driver_are_counted_and_have_a_time(alloy: RunningAlloy) -> None:
    expected = Counter((event, "0000:68:00" if "0000:68" in text else "0000:83:00") for text, event in AMD_EVENTS.items())
    alloy.receiver.wait_until(lambda: values(alloy, "gpu_fleet_amd_events_total", "event", "pci"), expected)
    times_of(alloy, "gpu_fleet_amd_event_last_timestamp_seconds", "event", "pci", expected=set(expected))


@pytest.mark.parametrize(
    ("text", "xid", "metadata"),
    [
        (XID_79, "79", {"pci": "0000:4b:00"}),
        (XID_31, "31", {"pci": "0000:4b:00", "pid": "4711", "process": "KMS thread"}),
        (XID_94_MIG, "94", {"pci": "0000:07:00", "pid": "7194"}),
        (XID_3_OLD, "3", {"pci": "0000:01:00"}),
        (XID_95_OLD, "95", {"pci": "0000:05:00", "pid": "7", "process": "python3"}),
        (XID_149, "149", {"pci": "0000:05:00", "detail": "NETIR_BER_EVENT Nonfatal"}),
        (XID_154, "154", {"pci": "0000:05:00", "detail": "0x1 (GPU Reset Required)"}),
        (XID_79_LONG, "79", {"pci": "0000:3b:00"}),
        (XID_154_BARE, "154", {"pci": "0000:3b:00", "detail": "0x2"}),
        (XID_UNKNOWN, "899", {"pci": "0000:05:00", "pid": "7", "process": "python3", "detail": "Unit # reports status #"}),
    ],
)
def test_an_xid_line_has_its_code_its_gpu_and_the_process(
    alloy: RunningAlloy, text: str, xid: str, metadata: dict[str, str]
) -> None:
    assert line(alloy, text).labels["xid"] == xid
    assert line(alloy, text).metadata == metadata, "an unknown process must not look like one called <unknown>"


@pytest.mark.parametrize("text", FORGED_IN_KERNEL_LINES, ids=lambda text: text[15:60])
def test_user_text_in_a_kernel_line_is_no_event(alloy: RunningAlloy, text: str) -> None:
    sent = line(alloy, text)
    assert not {"xid", "sxid", "event"} & set(sent.labels) and not {"pci", "pid", "process"} & set(sent.metadata), (
        "it would drain a node"
    )


@pytest.mark.parametrize("text", FORGED_BY_PROGRAMS, ids=lambda text: text[16:60])
def test_what_programs_log_beside_the_kernel_is_not_taken(alloy: RunningAlloy, text: str) -> None:
    assert text not in {sent.line for sent in alloy.receiver.lines}


def test_an_nvswitch_line_is_labelled_with_its_sxid(alloy: RunningAlloy) -> None:
    assert line(alloy, SXID_FATAL).labels["sxid"] == "20034"
    assert line(alloy, SXID_FATAL).metadata == {
        "pci": "0000:04:00.0",
        "sxid_severity": "Fatal",
        "detail": "Link # LTSSM Fault Up",
    }


@pytest.mark.parametrize("text", NIC_EVENTS, ids=lambda text: text[12:60])
def test_a_failure_of_a_network_adapter_is_labelled_with_its_kind_and_the_adapter(alloy: RunningAlloy, text: str) -> None:
    kind, nic = NIC_EVENTS[text]
    assert line(alloy, text).labels["nic_event"] == kind
    assert line(alloy, text).metadata == {"nic": nic}


@pytest.mark.parametrize("text", NO_NIC_EVENTS, ids=lambda text: text[12:60])
def test_what_an_adapter_logs_at_every_boot_and_text_of_users_are_no_events(alloy: RunningAlloy, text: str) -> None:
    sent = line(alloy, text)
    assert "nic_event" not in sent.labels and "nic" not in sent.metadata, "it would page for a host that works"


def test_failures_of_network_adapters_are_counted_with_the_time_of_the_last(alloy: RunningAlloy) -> None:
    expected = set(NIC_EVENTS.values())
    counted = dict.fromkeys(expected, 1.0)
    alloy.receiver.wait_until(lambda: values(alloy, "gpu_fleet_nic_events_total", "nic_event", "nic"), counted)
    times_of(alloy, "gpu_fleet_nic_last_timestamp_seconds", "nic_event", "nic", expected=expected)


@pytest.mark.parametrize(
    ("kind", "events", "others"),
    [("pcie_error_last", PCIE_ERRORS, NO_PCIE_ERRORS), ("passed_through_lost", LOST_BY_GUESTS, NOT_LOST_BY_GUESTS)],
)
def test_what_the_kernel_says_of_a_device_has_the_time_of_the_last(
    alloy: RunningAlloy, kind: str, events: dict[str, str], others: list[str]
) -> None:
    times_of(alloy, f"gpu_fleet_{kind}_timestamp_seconds", "pci", expected={(pci,) for pci in events.values()})
    assert {text: line(alloy, text).metadata.get("pci") for text in events} == events
    assert [text for text in others if "pci" in line(alloy, text).metadata] == []


def test_what_the_driver_says_about_nvlinks_without_an_xid_has_the_time_of_the_last(alloy: RunningAlloy) -> None:
    kinds: set[tuple[str | None, ...]] = {(kind,) for kind in NVLINK_ERRORS.values()}
    times_of(alloy, "gpu_fleet_nvlink_error_last_timestamp_seconds", "nvlink_event", expected=kinds)
    assert {text: line(alloy, text).metadata.get("nvlink_event") for text in NVLINK_ERRORS} == NVLINK_ERRORS
    assert [text for text in NO_NVLINK_ERRORS if "nvlink_event" in line(alloy, text).metadata] == []


def test_a_line_that_is_not_about_gpus_stays_on_the_host(alloy: RunningAlloy) -> None:
    assert not [sent for sent in alloy.receiver.lines if sent.line in NOISE], "Loki is paid by volume"


def test_lines_from_before_the_first_start_are_not_sent(alloy: RunningAlloy) -> None:
    assert not [sent for sent in alloy.receiver.lines if "from before Alloy" in sent.line]
    assert not [labels for labels, _ in alloy.receiver.of("gpu_fleet_xid_events_total") if labels["xid"] == "48"]


def test_xids_are_counted_per_code_and_gpu(alloy: RunningAlloy) -> None:
    expected = {
        ("79", "0000:4b:00"): 2,
        ("31", "0000:4b:00"): 1,
        ("94", "0000:07:00"): 1,
        ("3", "0000:01:00"): 1,
        ("95", "0000:05:00"): 1,
        ("149", "0000:05:00"): 1,
        ("154", "0000:05:00"): 1,
        ("79", "0000:3b:00"): 1,
        ("154", "0000:3b:00"): 1,
        ("899", "0000:05:00"): 1,
    }
    alloy.receiver.wait_until(lambda: values(alloy, "gpu_fleet_xid_events_total", "xid", "pci"), expected)


def test_the_time_of_the_last_event_is_a_metric_with_what_the_line_says(alloy: RunningAlloy) -> None:
    times_of(alloy, "gpu_fleet_xid_last_timestamp_seconds", "xid", "detail", expected=XIDS)


def test_the_times_of_a_driver_load_and_of_a_switch_s_error_are_metrics(alloy: RunningAlloy) -> None:
    loaded = times_of(alloy, "gpu_fleet_driver_loaded_timestamp_seconds", "instance", expected={("gpu-node-001",)})
    with_text = {("20034", "Link # LTSSM Fault Up")}  # the alert has it
    fatal = times_of(alloy, "gpu_fleet_sxid_last_timestamp_seconds", "sxid", "detail", expected=with_text)
    assert loaded["gpu-node-001"] <= fatal["20034"], "what ended an incident is compared with its events"


def test_what_an_earlier_boot_left_unsent_is_sent_and_is_older_than_this_boot(alloy: RunningAlloy) -> None:
    """All of these lines are read at once, after the boot."""
    booted = times_of(alloy, "gpu_fleet_booted_timestamp_seconds", "instance", expected={("gpu-node-001",)})["gpu-node-001"]
    times = times_of(alloy, "gpu_fleet_xid_last_timestamp_seconds", "xid", "detail", expected=XIDS)
    assert times["95"] < booted < times["79"], "an event before the boot opens no incident, one after it does"
    assert line(alloy, XID_95_OLD).labels["xid"] == "95"


def test_an_xid_counter_has_no_labels_but_its_own_and_those_of_its_host(alloy: RunningAlloy) -> None:
    alloy.receiver.wait_for(lambda: alloy.receiver.of("gpu_fleet_xid_events_total"))
    labels = alloy.receiver.of("gpu_fleet_xid_events_total")[0][0]
    own = {"__name__", "xid", "pci", "component_id", "component_path"}
    assert set(labels) - own == {"job", "instance", "datacenter", "cluster", "exporter_mode"}


def test_the_detail_lines_of_an_nvswitch_event_are_not_counted_again(alloy: RunningAlloy) -> None:
    counted = {("20034", "0000:04:00.0", "Fatal"): 1.0}
    alloy.receiver.wait_until(lambda: values(alloy, "gpu_fleet_sxid_events_total", "sxid", "pci", "sxid_severity"), counted)


def test_a_flood_of_one_code_is_counted_in_full_and_crowds_out_no_other(alloy: RunningAlloy) -> None:
    """A job that faults in a loop writes such floods."""
    flood, fallen = 3000, f"[ 200.000000] NVRM: Xid (PCI:{FLOODED}): 79, GPU has fallen off the bus."
    faults = [f"[ 100.{number:06}] NVRM: Xid (PCI:{FLOODED}): 13, pid=1, name=x, Graphics Exception" for number in range(flood)]
    with (alloy.prefix / "kern.log").open("a") as kernel:
        kernel.write("".join(f"{text}\n" for text in [*faults, fallen, "[ 201.000000] NVRM: the end"]))
    alloy.receiver.wait_for(lambda: {fallen, "[ 201.000000] NVRM: the end"} <= {sent.line for sent in alloy.receiver.lines})

    def series(name: str, **labels: str) -> list[float]:
        return [value for found, value in alloy.receiver.of(name) if labels.items() <= found.items()]

    alloy.receiver.wait_for(lambda: series("gpu_fleet_xid_events_total", xid="13") == [flood])

    def in_loki() -> int:
        return sum(sent.labels.get("xid") == "13" for sent in alloy.receiver.lines)

    limited = {"component_path": "/kernel_lines.sent", "reason": "ratelimit_drop_stage"}
    dropped = lambda: sum(series("loki_process_dropped_lines_total", **limited))  # noqa: E731
    alloy.receiver.wait_until(lambda: in_loki() + dropped(), flood)
    assert 1000 <= in_loki() < flood, "Loki is paid by volume"
