"""`python -m lab.dev xids`: the most common XIDs at once, with the action and the delay of the notification of each incident."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from alerts.xid import CATALOGUE
from alerts.xid_rules import ALERT
from lab import gpu
from lab.dev import query
from lab.dev.up import endpoints_of_stack
from lab.dev.workspace import DEV, DevError

# Typical: pages within 35 s, warnings, which are grouped, within 60 s. After this an alert is missing.
WITHIN_S: Final = 300
POLL_S: Final = 0.5

# The verdict on each GPU, and the codes that are logged with it: one incident of a GPU is one alert. They are codes in public
# health checks: those for which NVIDIA's device plugin and DCGM, Azure's node health checks and Crusoe take a GPU out of service,
# warn, or do nothing.
COMMON: Final[Mapping[int, tuple[int, ...]]] = {
    0: (62, 13, 109, 119, 120),  # within a second the lowest of equally grave codes
    1: (48, 63, 95, 31),
    2: (74, 45),
    3: (79, 119, 48, 74, 13),
    4: (31, 43, 45),
    5: (94, 69),
}
# No action: in Loki and on the dashboards, without an alert.
QUIET: Final[Mapping[int, tuple[int, ...]]] = {6: (43, 45)}


@dataclass(frozen=True)
class Notified:
    """An alert at the receiver, `after_s` seconds after the injection."""

    after_s: float
    labels: Mapping[str, str]


def xids() -> None:
    """Raises DevError if an alert is missing, or if there is one for a code that should raise none."""
    endpoints = endpoints_of_stack()
    state = DEV / "gpus" / "state"
    if query.get(f"{endpoints['RECEIVER_URL']}/healthy") is None:
        raise DevError("the dev datacenter is not running: start it with `make dev`")
    verdicts = {gpu.pci_address(state, index): (index, codes[0]) for index, codes in COMMON.items()}
    addresses = {gpu.pci_address(state, index) for index in range(gpu.count(state))}

    def about(alert: Mapping[str, Any]) -> tuple[int, int]:
        """The GPU and the code that an alert is about; (-1, 0) for any other alert."""
        labels = alert["labels"]
        if labels["alertname"] != ALERT or labels.get("pci") not in addresses:
            return -1, 0
        return verdicts.get(labels["pci"], (-1, 0))[0], int(labels["xid"])

    if firing := {code for _, code in map(about, query.active_alerts(endpoints["ALERTMANAGER_URL"])) if code}:
        raise DevError(f"XIDs are firing already ({_listed(firing)}): `make dev` ends them")

    seen = len(query.received_alerts(endpoints["RECEIVER_URL"]))
    start = time.monotonic()
    for index, codes in {**COMMON, **QUIET}.items():
        for code in codes:
            gpu.inject_xid(state, code=code, gpu=index)
    wanted = {(index, codes[0]) for index, codes in COMMON.items()}
    notified: dict[tuple[int, int], Notified] = {}
    while wanted - set(notified) and time.monotonic() - start < WITHIN_S:
        time.sleep(POLL_S)
        for alert in query.received_alerts(endpoints["RECEIVER_URL"])[seen:]:
            found = about(alert)
            if alert["status"] == "firing" and found[1]:
                notified.setdefault(found, Notified(time.monotonic() - start, alert["labels"]))

    print(f"{'XID':>4} {'GPU':>3}  {'severity':9} {'action':20} notified")
    for index, code in sorted(wanted):
        labels = notified[index, code].labels if (index, code) in notified else {}
        when = f"after {notified[index, code].after_s:.0f} s" if (index, code) in notified else "MISSING"
        severity = labels.get("severity", CATALOGUE[code].severity.value)
        print(f"{code:>4} {index:>3}  {severity:9} {labels.get('action', CATALOGUE[code].action.value):20} {when}")
    if missing := wanted - set(notified):
        raise DevError(f"no alert within {WITHIN_S} s for XID {_listed(code for _, code in missing)}")
    if loud := set(notified) - wanted:
        raise DevError(f"there is an alert for XID {_listed(code for _, code in loud)}, which is not the verdict of its GPU")


def _listed(codes: Iterable[int]) -> str:
    return ", ".join(str(code) for code in sorted(codes))
