"""`python -m lab.dev xids`: the 30 most common XIDs at once, with the action and the delay of the notification of each."""

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
WITHIN_S: Final = 120
POLL_S: Final = 0.5

# The codes in public health checks: those for which NVIDIA's device plugin and DCGM, nvidia_gpu_exporter's rules, Azure's node
# health checks and Crusoe take a GPU out of service, warn, or do nothing. By GPU, because one incident is one page: 79 inhibits
# all other codes of its GPU, 48 its follow-ups, and any critical code the warnings of the same GPU.
COMMON: Final[Mapping[int, tuple[int, ...]]] = {
    0: (62, 64, 74, 95, 109, 119),
    1: (120, 140, 143, 149),
    2: (48,),
    3: (79,),
    4: (13, 31, 32, 68),
    5: (69, 80, 92, 94, 145),
    # No action, or only on GPUs before Ampere: in Loki and on the dashboards, without an alert.
    6: (43, 45, 56, 57, 58, 63, 65, 73, 81),
}


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
    codes = {code: index for index, given in COMMON.items() for code in given}
    addresses = {gpu.pci_address(state, index) for index in range(gpu.count(state))}

    def about(alert: Mapping[str, Any]) -> int:
        """The injected code that an alert is about; 0 for any other alert."""
        labels = alert["labels"]
        is_ours = labels["alertname"] == ALERT and labels.get("pci") in addresses
        return int(labels["xid"]) if is_ours and int(labels["xid"]) in codes else 0

    if firing := set(filter(None, map(about, query.active_alerts(endpoints["ALERTMANAGER_URL"])))):
        raise DevError(f"XIDs are firing already ({_listed(firing)}): wait ten minutes until they resolve")

    seen = len(query.received_alerts(endpoints["RECEIVER_URL"]))
    start = time.monotonic()
    for code, index in codes.items():
        gpu.inject_xid(state, code=code, gpu=index)
    wanted = {code for code in codes if CATALOGUE[code].is_alerted}
    notified: dict[int, Notified] = {}
    while wanted - set(notified) and time.monotonic() - start < WITHIN_S:
        time.sleep(POLL_S)
        for alert in query.received_alerts(endpoints["RECEIVER_URL"])[seen:]:
            if alert["status"] == "firing" and (code := about(alert)):
                notified.setdefault(code, Notified(time.monotonic() - start, alert["labels"]))

    print(f"{'XID':>4} {'GPU':>3}  {'severity':9} {'action':20} notified")
    for code, index in sorted(codes.items()):
        labels = notified[code].labels if code in notified else {}
        when = f"after {notified[code].after_s:.0f} s" if code in notified else "no alert" if code not in wanted else "MISSING"
        severity = labels.get("severity", CATALOGUE[code].severity.value)
        print(f"{code:>4} {index:>3}  {severity:9} {labels.get('action', CATALOGUE[code].action.value):20} {when}")
    if missing := wanted - set(notified):
        raise DevError(f"no alert within {WITHIN_S} s for XID {_listed(missing)}")
    if loud := set(notified) - wanted:
        raise DevError(f"there is an alert for XID {_listed(loud)}, which should raise none")


def _listed(codes: Iterable[int]) -> str:
    return ", ".join(str(code) for code in sorted(codes))
