"""The catalogue of XIDs: meaning, severity and recommended action of each code. The data is in xid.csv.

An invalid row (unknown severity or action, duplicate code) fails the import: an invalid catalogue must not be deployed.
Not done here: rules (xid_rules.py).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from alerts import texts
from alerts.tables import catalogue, entries

CATALOGUE_FILE: Final = Path(__file__).with_name("xid.csv")

Kind = TypeVar("Kind", bound=enum.StrEnum)


class Severity(enum.StrEnum):
    CRITICAL = "critical"  # somebody must act now
    WARNING = "warning"  # somebody should look during working hours
    INFO = "info"  # stored and shown, no notification
    UNDOCUMENTED = ""  # a constant of the driver without a public description


class Action(enum.StrEnum):
    """The recommended action, as in the catalogue's column `immediate_action`."""

    REBOOT_NODE = "reboot_node"
    RESTART_VM = "restart_vm"
    RESET_GPU = "reset_gpu"
    DRAIN_AND_RESET = "drain_and_reset"
    RELOAD_DRIVER = "reload_driver"
    RESTART_APP = "restart_app"
    CHECK_APP = "check_app"
    CHECK_FABRIC = "check_fabric"
    CHECK_MECHANICALS = "check_mechanicals"
    CHECK_COOLING = "check_cooling"
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
        """The action as a sentence for the on-call engineer."""
        return ACTION_TEXTS[self]


ACTION_TEXTS: Final[Mapping[Action, str]] = {
    Action.REBOOT_NODE: "Drain the node and reboot it. If the GPU is still missing, power-cycle the host, then have it serviced.",
    Action.RESTART_VM: "Drain the node and restart the virtual machine; on bare metal, reboot the node.",
    Action.RESET_GPU: (
        "Stop the jobs on this GPU and reset it (nvidia-smi --gpu-reset -i GPU; with NVSwitch before Hopper all GPUs together). "
        "Reboot the node if the reset fails."
    ),
    Action.DRAIN_AND_RESET: (
        "Drain the node, let running jobs on other GPUs finish, then reset the GPU. Reboot the node if the reset fails; "
        "run the field diagnostic if the error returns."
    ),
    Action.RELOAD_DRIVER: "Fix the cooling first, then reload the NVIDIA driver. No GPU reset is needed.",
    Action.RESTART_APP: (
        "Restart the affected job. If the same GPU repeats the code with different jobs, take the GPU out of service and run "
        "dcgmi diag -r 3."
    ),
    Action.CHECK_APP: "Check the program and its settings, then restart it.",
    Action.CHECK_FABRIC: (
        "Check NVLink and the fabric: nvidia-smi nvlink -e, nvidia-smi nvlink -s, the log of Fabric Manager. Reset the GPU if a "
        "link is down or the recovery action requires it (XID 154); have cables or baseboard serviced if the error repeats."
    ),
    Action.CHECK_MECHANICALS: "Drain the node, power it off, and reseat the GPU's power cables.",
    Action.CHECK_COOLING: "Check fans, air flow or coolant of the host, and the temperatures of its other GPUs.",
    Action.CHECK_UVM: (
        "If programs on this GPU use unified memory or vGPU, reset the GPU; otherwise no action. Report the XID to NVIDIA if no "
        "other one was logged with it."
    ),
    Action.ENABLE_ECC: "ECC is off: enable it (nvidia-smi -e 1) and reset the GPU in the next maintenance window.",
    Action.UPDATE_SOFTWARE: "Update driver, vGPU manager and firmware to matching releases.",
    Action.PLAN_REPLACEMENT: "The part is wearing out: plan its replacement. Jobs may continue.",
    Action.CONTACT_SUPPORT: "Run nvidia-bug-report.sh and contact the vendor's support.",
    Action.FOLLOW_COMPANION_XID: "A follow-on event: follow the action of the XID logged with it.",
    Action.FOLLOW_DRIVER_ACTION: (
        "Follow the recovery action in the kernel log line of this XID (GPU reset, node reboot, drain and reset, drain P2P); it "
        "takes precedence over the recommended action of the XID logged with it."
    ),
    Action.NONE: "NVIDIA recommends no action. Watch whether this GPU repeats the code.",
    Action.UNDOCUMENTED: "No public description: check the surrounding kernel log lines.",
}


# Column likely_cause of xid.csv, and how notifications say it.
CAUSES: Final = {
    "app": "application",
    "bus": "PCIe bus",
    "driver": "driver",
    "fabric": "NVLink fabric",
    "fw": "firmware",
    "hw": "hardware",
    "memory": "GPU memory",
    "power": "power",
    "sw": "software",
    "sysmem": "system memory",
    "thermal": "temperature",
}


@dataclass(frozen=True, kw_only=True)
class Xid:
    """`meaning`: a short text without a full stop. `causes`: keys of CAUSES, may be empty."""

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
        """No GPU since Ampere logs it. Volta and Turing do, so it is alerted."""
        return self.notes.startswith("unused on Ampere and later")

    @property
    def is_alerted(self) -> bool:
        """Whether the code raises an alert; the other codes are only in Loki and on the dashboards."""
        return self.severity in (Severity.CRITICAL, Severity.WARNING)


def read(lines: Iterable[str]) -> dict[int, Xid]:
    """The catalogue from CSV with comment lines. Raises CatalogueError with every invalid row at once."""
    return catalogue(CATALOGUE_FILE.name, lines, _xid)


def _cause(cause: str) -> str:
    if cause not in CAUSES:
        raise ValueError(f"likely_cause is {cause!r}; expected: {', '.join(CAUSES)}")
    return cause


def _xid(row: Mapping[str, str]) -> Xid:
    return Xid(
        code=int(row["code"]),
        name=row["mnemonic_or_short_name"],
        meaning=row["short_description"] or "no public description",
        causes=tuple(_cause(cause) for cause in row["likely_cause"].split("|") if cause),
        severity=_member(Severity, "severity", row["severity"]),
        action=_member(Action, "immediate_action", row["immediate_action"]),
        notes=row["applies_to_notes"],
        source=row["source"],
    )


def _member(kind: type[Kind], column: str, value: str) -> Kind:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{column} is {value!r}; expected one of {', '.join(m.value or '(empty)' for m in kind)}") from None


@dataclass(frozen=True, kw_only=True)
class Line:
    """The verdict on a code that depends on its line. `kind`: the class that rules/xid-events.yaml derives from the line."""

    code: int
    kind: str
    severity: Severity
    action: Action


def _line(row: Mapping[str, str]) -> Line:
    return Line(
        code=int(row["code"]),
        kind=row["class"],
        severity=_member(Severity, "severity", row["severity"]),
        action=_member(Action, "action", row["action"]),
    )


LINES: Final = tuple(entries(Path(__file__).with_name("xid_lines.csv"), _line))
CATALOGUE: Final[Mapping[int, Xid]] = read(texts.read(CATALOGUE_FILE).splitlines(keepends=True))
