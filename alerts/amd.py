"""What AMD's kernel driver logs: events with severity and recommended action. The data is in amd_events.csv.

Not done here: rules (xid_rules.py), which are those of XIDs: an event of either vendor opens an incident of its GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from alerts.tables import entries
from alerts.xid import Action, Severity

TABLE: Final = Path(__file__).with_name("amd_events.csv")

RESET_SUCCEEDED: Final = "reset_succeeded"  # ends what a reset repairs
RETIRED: Final = "bad_page_threshold"  # a reset does not repair it

ACTION_TEXTS: Final[Mapping[Action, str]] = {
    Action.REBOOT_NODE: (
        "Drain the node and reboot it. If the GPU is still missing (amd-smi list), power-cycle the host, then have it serviced."
    ),
    Action.RESET_GPU: (
        "Check whether the driver has reset the GPU (GPU reset succeeded in the kernel log). If not, stop the jobs on the host "
        "and reset it: amd-smi reset --gpureset -g GPU, which resets all GPUs that XGMI connects; reboot the node if that fails."
    ),
    Action.CONTACT_SUPPORT: (
        "Drain the node and reboot it once. If the error returns, contact the vendor's support with the kernel log."
    ),
    Action.PLAN_REPLACEMENT: "Let jobs end, drain the node and have the GPU replaced: amd-smi bad-pages lists its retired pages.",
    Action.CHECK_COOLING: (
        "Check fans, air flow or coolant of the host, and the temperatures of its other GPUs: amd-smi metric --temperature."
    ),
    Action.RESTART_APP: (
        "Restart the affected job. If the same GPU repeats the event with different jobs, take it out of service and run AMD's "
        "validation suite (rvs)."
    ),
    Action.NONE: "No action is needed at once. Watch whether this GPU repeats it: amd-smi metric --ecc, amd-smi bad-pages.",
}


@dataclass(frozen=True, kw_only=True)
class Event:
    """`rank`: which of several events of a GPU is the verdict, as in xid_rules: critical ones from 50 on; 0: no alert."""

    name: str
    severity: Severity
    action: Action
    meaning: str
    rank: int


def _event(row: Mapping[str, str]) -> Event:
    severity, action = Severity(row["severity"]), Action(row["action"])
    return Event(name=row["event"], severity=severity, action=action, meaning=row["meaning"], rank=0)


def _read(file: Path) -> tuple[Event, ...]:
    found = entries(file, _event)
    base = {Severity.CRITICAL: 60, Severity.WARNING: 18}  # below an unknown XID, 30
    return tuple(
        replace(event, rank=base[event.severity] + len(found) - number) if event.severity in base else event
        for number, event in enumerate(found)
    )


EVENTS: Final = _read(TABLE)
