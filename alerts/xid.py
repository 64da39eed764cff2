"""The catalogue of XIDs: what each code means, how bad it is and what NVIDIA asks for. The data is in xid.csv.

A row that cannot be read (unknown severity or action, a code twice) fails the import: a wrong catalogue must not deploy.
Not done here: rules (xid_rules.py).
"""

from __future__ import annotations

import csv
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

CATALOGUE_FILE: Final = Path(__file__).with_name("xid.csv")

Kind = TypeVar("Kind", bound=enum.StrEnum)


class Severity(enum.StrEnum):
    CRITICAL = "critical"  # someone acts now
    WARNING = "warning"  # someone looks in working hours
    INFO = "info"  # kept and shown, nobody is told
    UNDOCUMENTED = ""  # a constant of the driver that nobody describes


class Action(enum.StrEnum):
    """What to do, as in the catalogue's column `immediate_action`."""

    REBOOT_NODE = "reboot_node"
    RESTART_VM = "restart_vm"
    RESET_GPU = "reset_gpu"
    DRAIN_AND_RESET = "drain_and_reset"
    RELOAD_DRIVER = "reload_driver"
    RESTART_APP = "restart_app"
    CHECK_APP = "check_app"
    CHECK_FABRIC = "check_fabric"
    CHECK_MECHANICALS = "check_mechanicals"
    CHECK_UVM = "check_uvm"
    ENABLE_ECC = "enable_ecc"
    UPDATE_SOFTWARE = "update_software"
    PLAN_REPLACEMENT = "plan_replacement"
    CONTACT_SUPPORT = "contact_support"
    FOLLOW_COMPANION_XID = "follow_companion_xid"
    FOLLOW_DRIVER_ACTION = "follow_driver_action"
    NONE = "none"
    UNDOCUMENTED = ""

    @property
    def text(self) -> str:
        """The action in a sentence, as the person with the pager reads it."""
        return ACTION_TEXTS[self]


ACTION_TEXTS: Final[Mapping[Action, str]] = {
    Action.REBOOT_NODE: "Drain the node and reboot it. If the GPU is not back, power-cycle the host, then have it serviced.",
    Action.RESTART_VM: "Restart the virtual machine; on bare metal, reboot the node.",
    Action.RESET_GPU: (
        "Stop the jobs on this GPU and reset it (nvidia-smi --gpu-reset -i GPU; with NVSwitch before Hopper all GPUs together). "
        "Reboot the node if the reset fails."
    ),
    Action.DRAIN_AND_RESET: (
        "Drain the node, let running jobs on other GPUs finish, then reset the GPU. Reboot the node if the reset fails; "
        "run the field diagnostic if it comes back."
    ),
    Action.RELOAD_DRIVER: "Fix cooling first, then reload the NVIDIA driver. No GPU reset is needed.",
    Action.RESTART_APP: (
        "Restart the job that hit it. If the same GPU repeats it with different jobs, take the GPU out of service and run "
        "dcgmi diag -r 3."
    ),
    Action.CHECK_APP: "Check the program and its settings, then restart it.",
    Action.CHECK_FABRIC: (
        "Check NVLink and the fabric: nvidia-smi nvlink -e, nvidia-smi nvlink -s, the fabric manager's log. Reset the GPU if a "
        "link is down or the driver says so (XID 154); have cables or baseboard serviced when it repeats."
    ),
    Action.CHECK_MECHANICALS: "Drain the node, power it off, and seat the GPU's power cables.",
    Action.CHECK_UVM: "Look for unified-memory faults next to it in the kernel log; report it to NVIDIA if it stands alone.",
    Action.ENABLE_ECC: "ECC is off: switch it on (nvidia-smi -e 1) and reset the GPU at the next window.",
    Action.UPDATE_SOFTWARE: "Update driver, vGPU manager or firmware to matching releases.",
    Action.PLAN_REPLACEMENT: "The part is wearing out: plan its replacement. Work may go on.",
    Action.CONTACT_SUPPORT: "Collect nvidia-bug-report.sh and ask the vendor's support.",
    Action.FOLLOW_COMPANION_XID: "A follow-on event: do what the XID logged next to it asks for.",
    Action.FOLLOW_DRIVER_ACTION: (
        "Do what the driver itself names in the kernel line of this XID (GPU reset, node reboot, drain and reset, drain P2P); it "
        "counts more than the fixed action of the XID next to it."
    ),
    Action.NONE: "NVIDIA asks for no action. Watch whether this GPU repeats it.",
    Action.UNDOCUMENTED: "No public description: look at the kernel lines around it.",
}


@dataclass(frozen=True, kw_only=True)
class Xid:
    """`meaning`: in words, no full stop. `causes`: hw, driver, app, sysmem, bus, ..., may be empty."""

    code: int
    name: str  # as in the driver's headers
    meaning: str
    causes: tuple[str, ...]
    severity: Severity
    action: Action
    notes: str
    source: str

    @property
    def is_retired(self) -> bool:
        """No GPU since Ampere logs it."""
        return self.notes.startswith("unused on Ampere and later")

    @property
    def is_alerted(self) -> bool:
        """Whether it tells anybody by default; the other codes are kept in Loki and shown on the dashboards."""
        return self.severity in (Severity.CRITICAL, Severity.WARNING) and not self.is_retired


class CatalogueError(ValueError):
    """xid.csv cannot be trusted; the message lists every row that is wrong."""


def read(lines: Iterable[str]) -> dict[int, Xid]:
    """The catalogue from CSV with leading comment lines.

    Raises:
        CatalogueError: with every wrong row at once.
    """
    catalogue: dict[int, Xid] = {}
    mistakes: list[str] = []
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        try:
            xid = _xid(row)
        except ValueError as error:
            mistakes.append(f"code {row['code']}: {error}")
            continue
        if xid.code in catalogue:
            mistakes.append(f"code {xid.code}: is there twice ({catalogue[xid.code].name}, {xid.name}); remove one")
        catalogue[xid.code] = xid
    if mistakes:
        raise CatalogueError(f"{CATALOGUE_FILE.name} has mistakes:\n  " + "\n  ".join(mistakes))
    return catalogue


def _xid(row: Mapping[str, str]) -> Xid:
    return Xid(
        code=int(row["code"]),
        name=row["mnemonic_or_short_name"],
        meaning=row["short_description"] or "no public description",
        causes=tuple(filter(None, row["likely_cause"].split("|"))),
        severity=_member(Severity, "severity", row["severity"]),
        action=_member(Action, "immediate_action", row["immediate_action"]),
        notes=row["applies_to_notes"],
        source=row["source"],
    )


def _member(kind: type[Kind], column: str, value: str) -> Kind:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{column} is {value!r}, allowed are {', '.join(m.value or '(empty)' for m in kind)}") from None


CATALOGUE: Final[Mapping[int, Xid]] = read(CATALOGUE_FILE.read_text().splitlines(keepends=True))
