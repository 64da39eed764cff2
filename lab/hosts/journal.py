"""Kernel lines in the journal of a running host. A container has no /dev/kmsg, so they are written as a journal file of their
own beside journald's, which every reader of the journal merges."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from lab.hosts.errors import HostsError

_REMOTE = "/lib/systemd/systemd-journal-remote"
# A reader that follows the journal skips what is older than what it has read, and making the file takes about 30 ms.
_LEAD_US = 100_000


def add_kernel_lines(root: Path, lines: Sequence[str], *, facility: int = 0) -> None:
    """`root`: the live file system of a host with journald, /proc/PID/root. Raises HostsError.

    `facility`: 0 is the kernel's; 1 (user) is what journald stores of a line that a program wrote to /dev/kmsg.
    """
    machine = (root / "etc/machine-id").read_text().strip()
    boot = (root / "proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    hostname = (root / "etc/hostname").read_text().strip()
    directory = root / "var/log/journal" / machine
    now_us = time.time_ns() // 1000 + _LEAD_US
    monotonic_us = time.monotonic_ns() // 1000 + _LEAD_US
    entries = []
    for offset_us, line in enumerate(lines):
        fields = {
            "__REALTIME_TIMESTAMP": now_us + offset_us,
            "__MONOTONIC_TIMESTAMP": monotonic_us + offset_us,
            "_BOOT_ID": boot,
            "_MACHINE_ID": machine,
            "_HOSTNAME": hostname,
            "_TRANSPORT": "kernel",
            "PRIORITY": 4,
            "SYSLOG_FACILITY": facility,
            "SYSLOG_IDENTIFIER": "kernel",
            "MESSAGE": line,
        }
        entries.append(b"".join(_field(name, str(value).encode()) for name, value in fields.items()) + b"\n")
    partial = f"/var/log/kernel-{now_us}.journal"
    done = subprocess.run(
        # 258 and newer look below /proc for their own files, so the process is one of the host's.
        ["nsenter", f"--target={root.parent.name}", "--mount", "--pid", "--root", _REMOTE, "--output", partial, "-"],
        input=b"".join(entries),
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise HostsError(f"systemd-journal-remote refused the kernel lines: {done.stderr.decode().strip()}")
    finished = root / partial.lstrip("/")
    finished.chmod(0o640)
    os.chown(finished, 0, directory.stat().st_gid)  # journald's own files are for the group that may read the journal
    finished.rename(directory / finished.name)


def _field(name: str, value: bytes) -> bytes:
    """In the journal's export format, which gives the length of a value with newlines."""
    if b"\n" in value:
        return name.encode() + b"\n" + len(value).to_bytes(8, "little") + value + b"\n"
    return name.encode() + b"=" + value + b"\n"
