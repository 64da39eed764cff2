"""The catalogue of SXids, errors of NVSwitches: meaning, severity and recommended action of each code. The data is in sxid.csv.

The severity in a kernel line wins over the table, which decides where the line has none.
An invalid row fails the import: an invalid catalogue must not be deployed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from alerts import texts
from alerts.tables import catalogue
from alerts.xid import Severity

CATALOGUE_FILE: Final = Path(__file__).with_name("sxid.csv")


class Action(enum.StrEnum):
    """The recommended action: the label `action` of the alert."""

    REBOOT_NODE = "reboot_node"
    RESET_GPU = "reset_gpu"
    CHECK_FABRIC = "check_fabric"
    CHECK_COOLING = "check_cooling"
    CONTACT_SUPPORT = "contact_support"
    NONE = "none"

    @property
    def text(self) -> str:
        """The action as a sentence for the on-call engineer."""
        return ACTION_TEXTS[self]


ACTION_TEXTS: Final[Mapping[Action, str]] = {
    Action.REBOOT_NODE: (
        "Drain the node and reboot it, which resets the whole fabric. Have the NVSwitch serviced if the error returns."
    ),
    Action.RESET_GPU: (
        "Drain the node, then reset all its GPUs and switches together (nvidia-smi -r) or reboot it. "
        "Have the link or the NVSwitch serviced if the error returns."
    ),
    Action.CHECK_FABRIC: (
        "Watch the links (nvidia-smi nvlink -e) and the log of Fabric Manager. Have the link serviced if the error repeats."
    ),
    Action.CHECK_COOLING: (
        "Check the cooling of the host: fans, air flow or coolant. The fabric is slow until the NVSwitch has cooled down."
    ),
    Action.CONTACT_SUPPORT: (
        "Run nvidia-bug-report.sh and contact the vendor's support. "
        "Drain the node and reset GPUs and switches together (nvidia-smi -r) if jobs fail."
    ),
    Action.NONE: "NVIDIA recommends no action.",
}


@dataclass(frozen=True, kw_only=True)
class Sxid:
    """`severity`: of a line that has none. `meaning`: a short text without a full stop."""

    code: int
    name: str
    meaning: str
    severity: Severity
    action: Action
    source: str


def read(lines: Iterable[str]) -> dict[int, Sxid]:
    """The catalogue from CSV with comment lines. Raises CatalogueError with every invalid row at once."""
    return catalogue(CATALOGUE_FILE.name, lines, _sxid)


def _sxid(row: Mapping[str, str]) -> Sxid:
    severities = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
    if row["severity"] not in severities:
        raise ValueError(f"severity is {row['severity']!r}; expected one of {', '.join(severities)}")
    if row["immediate_action"] not in set(Action):
        raise ValueError(f"immediate_action is {row['immediate_action']!r}; expected one of {', '.join(Action)}")
    if not (row["short_description"] and row["source"]):
        raise ValueError("short_description or source is empty; every row says what happened and who says so")
    return Sxid(
        code=int(row["code"]),
        name=row["name"],
        meaning=row["short_description"],
        severity=Severity(row["severity"]),
        action=Action(row["immediate_action"]),
        source=row["source"],
    )


CATALOGUE: Final[Mapping[int, Sxid]] = read(texts.read(CATALOGUE_FILE).splitlines(keepends=True))
