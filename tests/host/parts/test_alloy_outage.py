"""A real Alloy while Mimir and Loki are away: what happened meanwhile arrives when they are back."""

from __future__ import annotations

import time
from pathlib import Path

from tests.host.parts.conftest import kernel_log_facts, running_alloy

DISK = "[ 0.1] nvme0n1: I/O error, dev nvme0n1, sector 1"
XID = "[ 1.0] NVRM: Xid (PCI:0000:4b:00): 79, GPU has fallen off the bus."


def test_samples_and_lines_of_an_outage_arrive_after_it(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.touch()
    with running_alloy(tmp_path, kernel_log_facts(log)) as alloy:
        alloy.wait_until_read(log)
        alloy.receiver.wait_for(lambda: alloy.receiver.times)
        alloy.receiver.away = "push"
        away_from = time.time()
        with log.open("a") as kernel:
            kernel.write(f"{XID}\n")
        # Both kinds were refused, and of the samples such as were scraped during the outage.
        scraped = lambda: {moment for moment in alloy.receiver.refused_times if moment > away_from}  # noqa: E731
        alloy.receiver.wait_for(lambda: alloy.receiver.refused["/loki/api/v1/push"] and scraped())
        assert not alloy.receiver.lines
        alloy.receiver.away = ""
        alloy.receiver.wait_for(lambda: any(line.line == XID for line in alloy.receiver.lines))
        alloy.receiver.wait_for(lambda: scraped() <= set(alloy.receiver.times))


def test_an_xid_is_counted_while_loki_takes_nothing(tmp_path: Path) -> None:
    """loki.write waits with what it could not send, and then takes no more."""
    log = tmp_path / "kern.log"
    log.touch()
    with running_alloy(tmp_path, kernel_log_facts(log)) as alloy:
        alloy.wait_until_read(log)
        alloy.receiver.away = "loki"
        for number in range(300):  # more than the stages hold, and over more seconds than newer ones queue batches
            with log.open("a") as kernel:
                kernel.write(f"{DISK}{number}\n")
            time.sleep(0.05)
        alloy.receiver.wait_for(lambda: alloy.receiver.refused["/loki/api/v1/push"])
        with log.open("a") as kernel:
            kernel.write(f"{XID}\n")
        alloy.receiver.wait_for(lambda: alloy.receiver.of("gpu_fleet_xid_last_timestamp_seconds"))
        assert not alloy.receiver.lines
        alloy.receiver.away = ""
        alloy.receiver.wait_for(lambda: any(line.line == XID for line in alloy.receiver.lines))
