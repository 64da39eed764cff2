"""A real Alloy with a host's configuration: whose word a kernel line is.

The same driver's line is the same event in every format of a file and from a journal; a user's text is none, wherever the kernel
prints it.
"""

from __future__ import annotations

import json
import random
import time
import urllib.request
from collections.abc import Iterator

import pytest

from lab.ports import free_ports
from tests.host.parts.conftest import RunningAlloy, kernel_log_facts, running_alloy
from tests.host.parts.receiver import LogLine

# What daemons and tools write in front of a kernel message: rsyslog's two formats and RFC 5424, syslog-ng, BusyBox, journalctl,
# dmesg with its options, Talos, /dev/kmsg, and the kernel's own time and thread (CONFIG_PRINTK_CALLER).
HEADERS = {
    "nothing": "",
    "dmesg": "[ 1843.308145] ",
    "dmesg without seconds": "[    0.000000] ",
    "dmesg with the thread": "[  130.456250] [ T1946] ",
    "dmesg with the CPU": "[  130.456250][   C12] ",
    "dmesg -T": "[Wed Jan 27 23:04:35 2026] ",
    "dmesg --time-format iso": "2026-01-18T11:38:05,123456+00:00 ",
    "dmesg -x": "kern  :warn  : [ 1843.308145] ",
    "dmesg -x, iso": "kern  :err   : 2025-01-25T10:34:54,859532+00:00 ",
    "rsyslog, traditional": "Jan  8 11:38:05 node kernel: [  269.517039] ",
    "rsyslog, without the kernel's time": "Jan 18 11:38:05 node kernel: ",
    "rsyslog, rfc3339": "2026-01-18T11:38:05.123456+00:00 node kernel: [  269.517039] ",
    "rsyslog, RFC 5424": "<4>1 2026-01-18T11:38:05.123456+00:00 node kernel - - -  [  269.517039] ",
    "syslog-ng": "2026-01-18T11:38:05+01:00 10.0.0.7 kernel: [  269.517039] ",
    "BusyBox": "Jan 18 11:38:05 node kern.warn kernel: [  269.517039] ",
    "journalctl -o short-precise": "Jan 18 11:38:05.123456 node kernel: ",
    "rsyslog, a template without the host": "2024-07-02 18:46:08.681559 kernel:[   21.766727] ",
    "a tag alone": "kernel: [16450076.435595] ",
    "Talos": "192.168.11.119: kern: warning: [2026-04-22T21:30:51.870495804Z]: ",
    "/dev/kmsg": "4,1234,269517039,-;",
    "/dev/kmsg with the thread": "4,1235,269517039,-,caller=T1946;",
}
# What the driver says, and what of it is an event: code, GPU, detail. The forms are those of open-gpu-kernel-modules 515 to 595
# (kernel_rc.c, osinit.c, osapi.c, common_nvswitch.h) and of recordings of older drivers.
XIDS = {
    "NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)": (
        "149",
        "0009:01:00",
        "NETIR_LINK_EVT Fatal",
    ),
    "NVRM: Xid (PCI:0009:02:00): 145, pid=7, name=a, b Fatal c, RLW_RXPIPE      Nonfatal XC0 i0 Link 03": (
        "145",
        "0009:02:00",
        "RLW_RXPIPE Nonfatal",
    ),
    "NVRM: Xid (PCI:0009:03:00): 144,\tSAW_MVB\tFATAL\tXC0 i0 Link 00": ("144", "0009:03:00", "SAW_MVB Fatal"),
    "NVRM: Xid (PCI:0009:04:00): 146, TLW_RX/TLW_RX_PIPE0 Link Fatal XC 1 i 2 Link 01 [0x0a]": (
        "146",
        "0009:04:00",
        "TLW_RX/TLW_RX_PIPE0 Link Fatal",
    ),
    "NVRM: Xid (PCI:0009:05:00): 149, NETIR Non-fatal XC0 i0 Link -1": ("149", "0009:05:00", "NETIR Nonfatal"),
    "NVRM: Xid (PCI:0009:06:00): 149": ("149", "0009:06:00", None),
    "NVRM: Xid (PCI:0009:07:00):  79,  GPU has fallen off the bus.": ("79", "0009:07:00", None),
    "NVRM: Xid (PCI:0009:08:00): 46": ("46", "0009:08:00", None),
    "NVRM: Xid (PCI:0009:09:00): 62 0c83(1870) 00000000 00000000": ("62", "0009:09:00", None),
    "NVRM: Xid (PCI:0009:0a:00): 79 GPU has fallen off the bus.": ("79", "0009:0a:00", None),
    "NVRM: Xid (PCI:0009:0b:00 GPU-I:05 GPU-CI:02): 94, pid=7194, name=x, Contained: CE User Channel (0x9).": (
        "94",
        "0009:0b:00",
        None,
    ),
    "NVRM: Xid (PCI:00000009:0C:00.0): 48, pid='<unknown>', name=<unknown>, DBE (physAddr 0x7f)": ("48", "0009:0c:00", None),
    "NVRM: Xid (0009:0d:00): 3, C 00000005 SC 00000007": ("3", "0009:0d:00", None),
    "NVRM: Xid (PCI:10009:0e:00): 31, pid=9, name=a (b), c, Ch 00000008": ("31", "10009:0e:00", None),
    "NVRM: Xid (PCI:0009:0f:00): 154, pid=1, name=from a to 0x0, GPU recovery action changed from 0x0 (None) to 0x2 (Node "
    "Reboot Required)": ("154", "0009:0f:00", "0x2 (Node Reboot Required)"),
    "NVRM: Xid (PCI:0009:10:00): 154, GPU recovery action changed from 0x1 to 0x0000": ("154", "0009:10:00", "0x0"),
    # Without a code: the GPU is lost (79), or cannot be initialized (143).
    "NVRM: GPU 0009:11:00.0: GPU has fallen off the bus.": ("79", "0009:11:00", None),
    "NVRM: GPU at PCI:0009:12:00: GPU-5a3ed2f1-0000-1111-2222-333344445555 has fallen off the bus.": ("79", "0009:12:00", None),
    "NVRM: GPU at 0009:13:00.0 has fallen off the bus.": ("79", "0009:13:00", None),
    "NVRM: The NVIDIA GPU 0009:14:00.0": ("79", "0009:14:00", None),
    "NVRM: The NVIDIA GPU 0009:1b:00.0 (PCI ID: 10de:1b06) installed in this system has fallen off the bus and is not "
    "responding to commands.": ("79", "0009:1b:00", None),
    "NVRM: GPU 0009:15:00.0: RmInitAdapter failed! (0x24:0x72:1568)": ("143", "0009:15:00", None),
    # A GPU that must be reset (154).
    "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from status": (
        "154",
        None,
        "0x1 (GPU Reset Required)",
    ),
    **dict.fromkeys(
        (
            "NVRM: nvCheckOkFailedNoLog: Check failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from status",
            "NVRM: GPU3 nvCheckOkFailed: Check failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from status",
            "NVRM nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from x",
        ),
        ("154", None, "0x1 (GPU Reset Required)"),
    ),
    # As old drivers have it, without an address (open-gpu-kernel-modules issue 673, Bumblebee issue 722).
    "NVRM: GPU has fallen off the bus.": ("79", None, None),
    "NVRM: RmInitAdapter failed! (0x26:0xffff:1375)": ("143", None, None),
    # Neither.
    "NVRM: rm_init_adapter failed for device bearing minor number 0": None,
    "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM": None,
    "NVRM: nvCheckOkFailedNoLog: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F)": None,
    "NVRM nvAssertFailedNoLog: Assertion failed: rmStatus == NV_OK @ osinit.c:1982": None,
    "NVRM: GPU at PCI:0009:16:00: GPU-5a3ed2f1-0000-1111-2222-333344445555": None,
    "NVRM: The NVIDIA GPU 0009:17:00.0 (PCI ID: 10de:26b5)": None,
    "NVRM: The NVIDIA GPU 0009:18:00.0 installed in the system": None,
    "NVRM: GPU 0009:19:00.0: rm_init_adapter failed, device minor number 5": None,
    "NVRM: GPU 0009:1a:00.0: Failed to enable MSI-X.": None,
    "NVRM: GPU0 nvAssertFailedNoLog: Assertion failed: (status == NV_OK) || (status == NV_ERR_GPU_IN_FULLCHIP_RESET)": None,
    "NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) returned": None,
}
# Events of AMD's driver by generation: after Linux 6.10 with the GPU's address, before it (and in amdkfd) without.
AMD = {
    "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=183, emitted seq=185": ("ring_timeout", None),
    "[drm:amdgpu_job_timedout] *ERROR* ring gfx timeout, signaled seq=1, emitted seq=2": ("ring_timeout", None),
    "amdgpu 0009:01:00.0: [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=1": (
        "ring_timeout",
        "0009:01:00",
    ),
    "amdgpu 0009:02:00.0: Ring gfx_0.0.0 reset failed": ("ring_timeout", "0009:02:00"),
    "amdgpu 0009:03:00.0: Ring gfx_0.0.0 reset succeeded": None,
    "amdgpu: qcm fence wait loop timeout expired": ("ring_timeout", None),
    "kfd: qcm fence wait loop timeout expired ": ("ring_timeout", None),
    "qcm fence wait loop timeout expired": ("ring_timeout", None),
    "amdgpu 0009:04:00.0: amdgpu: qcm fence wait loop timeout expired": ("ring_timeout", "0009:04:00"),
    "The cp might be in an unrecoverable state due to an unsuccessful queues preemption": ("ring_timeout", None),
    "kfd: the cp might be in an unrecoverable state due to an unsuccessful queues preemption": ("ring_timeout", None),
    "amdgpu: The cp might be in an unrecoverable state due to an unsuccessful queues preemption": ("ring_timeout", None),
    # MI300 and later name the XCC.
    "amdgpu 0009:0d:00.0: amdgpu: XCC 3: Queue preemption failed for queue with doorbell_id: 80004008": (
        "ring_timeout",
        "0009:0d:00",
    ),
    "amdgpu 0009:0e:00.0: Queue preemption failed for queue with doorbell_id: 80004008": ("ring_timeout", "0009:0e:00"),
    "amdgpu: Queue preemption failed for queue with doorbell_id: 80004008": ("ring_timeout", None),
    "amdgpu 0009:0f:00.0: amdgpu: SMU is in hanged state, failed to send smu message!": ("firmware_hang", "0009:0f:00"),
    "amdgpu 0009:10:00.0: amdgpu: SMU: I'm not done with your previous command: SMN_C2PMSG_66:0x12 SMN_C2PMSG_82:0x5": (
        "firmware_hang",
        "0009:10:00",
    ),
    "amdgpu 0009:11:00.0: amdgpu: SMU: I'm not done with your command: SMN_C2PMSG_66:0xE SMN_C2PMSG_82:0x80": (
        "firmware_hang",
        "0009:11:00",
    ),
    "amdgpu 0009:12:00.0: amdgpu: SMU is initialized successfully!": None,
    "amdgpu 0009:12:00.0: amdgpu: SMU driver if version not matched": None,
    "amdgpu 0009:05:00.0: amdgpu: MES might be in unrecoverable state, issue a GPU reset": ("ring_timeout", "0009:05:00"),
    "amdgpu 0009:06:00.0: amdgpu: GPU recovery disabled.": ("reset_failed", "0009:06:00"),
    "amdgpu 0009:07:00.0: amdgpu: GPU mode1 reset failed": ("reset_failed", "0009:07:00"),
    "amdgpu 0009:0b:00.0: [drm] device wedged, needs recovery": ("reset_failed", "0009:0b:00"),
    "amdgpu 0009:0c:00.0: [drm] device wedged, but recovered through reset": None,
    "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* GPU Recovery Failed: -22": ("reset_failed", None),
    "[drm:psp_resume [amdgpu]] *ERROR* PSP resume failed": ("init_failed", None),
    "amdgpu 0009:08:00.0: amdgpu: PSP resume failed": ("init_failed", "0009:08:00"),
    "amdgpu 0009:09:00.0: amdgpu: GPU reset succeeded, trying to resume": None,
    "[drm:nv_drm_timedout [nvidia_drm]] *ERROR* ring sdma0 timeout, signaled seq=183": None,
    "amdgpu 0009:0a:00.0: amdgpu: [gfxhub0] VMC page fault (src_id:0 ring:24 vmid:8 pasid:32770)": ("page_fault", "0009:0a:00"),
}
SXIDS = {
    "nvidia-nvswitch3: SXid (PCI:0009:01:00.0): 20034, Fatal, Link 30 LTSSM Fault Up": ("20034", "0009:01:00.0", "Fatal"),
    "nvidia-nvswitch0:  SXid (PCI:0009:02:00.0):  12028,  Non-fatal,  Link 32 egress": ("12028", "0009:02:00.0", "Non-fatal"),
    "nvidia-nvswitch0: SXid (PCI:0009:03:00.0): 12028, NONFATAL, Link 32 egress": ("12028", "0009:03:00.0", "Non-fatal"),
    "nvidia-nvswitch0: SXid (PCI:0009:0C:00.0): 26006, SOE HALTED": ("26006", "0009:0c:00.0", None),
}
# Program's lines in a file that a syslog daemon writes: not by the tag of the kernel.
OF_PROGRAMS = [
    f"{time_and_host}{tag}NVRM: Xid (PCI:f0f0:4b:00): 79, GPU has fallen off the bus."
    for time_and_host in ("Jan 18 11:38:05 node ", "2026-01-18T11:38:05.123456+00:00 node ", "<4>1 2026-01-18T11:38:05Z node ")
    for tag in ("ops: ", "kernel[99]: ", "kernel-x: ", "x kernel: ", "d[1]: kernel: [ 1.0] ", "ops - - - kernel: ", " kernel: ")
]

# What a user would have the kernel say; f0f0 is the domain of no GPU.
LIES = [
    "NVRM: Xid (PCI:f0f0:4b:00): 79, pid=1, name=x, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:f0f0:4b:00): 154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)",
    "NVRM: GPU f0f0:4b:00.0: GPU has fallen off the bus.",
    "NVRM: The NVIDIA GPU f0f0:4b:00.0",
    "NVRM: GPU f0f0:4b:00.0: RmInitAdapter failed! (0x24:0x72:1568)",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05",
    "Linux version 6.8.0-60-generic (buildd@lcy02-amd64-054)",
    "[drm] amdgpu kernel modesetting enabled.",
    "nvidia-nvswitch3: SXid (PCI:f0f0:04:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    "mlx5_core f0f0:18:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count",
    "amdgpu f0f0:83:00.0: amdgpu: device lost from bus!",
    "amdgpu f0f0:83:00.0: amdgpu: GPU reset(1) succeeded!",
    "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=183, emitted seq=185",
    "qcm fence wait loop timeout expired",
    "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned",
    "NVRM nvCheckOkFailedNoLog: Check failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned",
    "NVRM: GPU has fallen off the bus.",
    "NVRM: RmInitAdapter failed! (0x26:0xffff:1375)",
]
EVENT_LABELS = {"xid", "sxid", "event", "nic_event"}
OF_EVENTS = {"pci", "detail", "nic", "booted", "loaded", "sxid_severity"}


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
        # The number makes each of them findable.
        found.append(f"{record} nvidia {seed}-{number}")
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
        "  forward_to = [loki.process.kernel.receiver]\n}\n"
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
        or dict(labels)["__name__"] in ("gpu_fleet_booted_timestamp_seconds", "gpu_fleet_driver_loaded_timestamp_seconds")
    }
    assert names == set()


@pytest.mark.parametrize("text", OF_PROGRAMS)
def test_a_program_s_line_in_the_file_is_not_taken(sent: dict[str, list[LogLine]], text: str) -> None:
    assert text not in sent
