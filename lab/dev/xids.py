"""`python -m lab.dev xids`: the 30 most common XIDs at once, and for each when who was told, and of what action."""

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

# Usual: pages within 35 s, warnings, which wait for each other, within 60 s. Past this an alert is missing.
WITHIN_S: Final = 120
POLL_S: Final = 0.5

# Those that the field's own health checks name: what NVIDIA's device plugin and DCGM, nvidia_gpu_exporter's rules, Azure's node
# health checks and Crusoe take a GPU out of service for, warn of, or pass over. By GPU, because one incident is one page: 79
# hides all else on its GPU, 48 its own follow-ups, and any critical code the warnings beside it.
COMMON: Final[Mapping[int, tuple[int, ...]]] = {
    0: (62, 64, 74, 95, 109, 119),
    1: (120, 140, 143, 149),
    2: (48,),
    3: (79,),
    4: (13, 31, 32, 68),
    5: (69, 80, 92, 94, 145),
    # Nothing to do, or of GPUs before Ampere: kept in Loki and on the dashboards, and nobody is told.
    6: (43, 45, 56, 57, 58, 63, 65, 73, 81),
}


@dataclass(frozen=True)
class Told:
    """An alert at the receiver, `after_s` seconds after the injection."""

    after_s: float
    labels: Mapping[str, str]


def xids() -> None:
    """Raises DevError when an alert did not come, or one came that nobody should be told of."""
    endpoints = endpoints_of_stack()
    state = DEV / "gpus" / "state"
    if query.get(f"{endpoints['RECEIVER_URL']}/healthy") is None:
        raise DevError("the dev datacenter is not running: start it with `make dev`")
    codes = {code: index for index, given in COMMON.items() for code in given}
    addresses = {gpu.pci_address(state, index) for index in range(gpu.count(state))}

    def about(alert: Mapping[str, Any]) -> int:
        """The code of ours that an alert is about; 0 for any other alert."""
        labels = alert["labels"]
        is_ours = labels["alertname"] == ALERT and labels.get("pci") in addresses
        return int(labels["xid"]) if is_ours and int(labels["xid"]) in codes else 0

    if firing := set(filter(None, map(about, query.active_alerts(endpoints["ALERTMANAGER_URL"])))):
        raise DevError(f"XIDs are firing already ({_listed(firing)}): wait ten minutes, they end by themselves")

    seen = len(query.received_alerts(endpoints["RECEIVER_URL"]))
    start = time.monotonic()
    for code, index in codes.items():
        gpu.inject_xid(state, code=code, gpu=index)
    wanted = {code for code in codes if CATALOGUE[code].is_alerted}
    told: dict[int, Told] = {}
    while wanted - set(told) and time.monotonic() - start < WITHIN_S:
        time.sleep(POLL_S)
        for alert in query.received_alerts(endpoints["RECEIVER_URL"])[seen:]:
            if alert["status"] == "firing" and (code := about(alert)):
                told.setdefault(code, Told(time.monotonic() - start, alert["labels"]))

    print(f"{'XID':>4} {'GPU':>3}  {'severity':9} {'action':20} told")
    for code, index in sorted(codes.items()):
        labels = told[code].labels if code in told else {}
        when = f"after {told[code].after_s:.0f} s" if code in told else "nobody" if code not in wanted else "NOT TOLD"
        severity = labels.get("severity", CATALOGUE[code].severity.value)
        print(f"{code:>4} {index:>3}  {severity:9} {labels.get('action', CATALOGUE[code].action.value):20} {when}")
    if missing := wanted - set(told):
        raise DevError(f"no alert within {WITHIN_S} s for XID {_listed(missing)}")
    if loud := set(told) - wanted:
        raise DevError(f"somebody was told of XID {_listed(loud)}, which asks for nothing")


def _listed(codes: Iterable[int]) -> str:
    return ", ".join(str(code) for code in sorted(codes))
