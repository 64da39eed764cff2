"""`make dev-xid XID=79 GPU=3`: injects an XID and follows it to the receiver."""

from __future__ import annotations

import time
from typing import Any

from lab import gpu
from lab.dev import query
from lab.dev.up import endpoints_of_stack
from lab.dev.workspace import DEV, DevError

WITHIN_S = 300  # typical: 15 to 30 s; after this it fails with details


def xid(code: int, gpu_index: int) -> None:
    endpoints = endpoints_of_stack()
    state = DEV / "gpus" / "state"
    if query.get(f"{endpoints['RECEIVER_URL']}/healthy") is None:
        raise DevError("the dev datacenter is not running: start it with `make dev`")
    if not 0 <= gpu_index < gpu.count(state):
        raise DevError(f"GPU={gpu_index}: this datacenter has GPUs 0 to {gpu.count(state) - 1}")
    pci = gpu.pci_address(state, gpu_index)

    firing = [alert for alert in query.active_alerts(endpoints["ALERTMANAGER_URL"]) if _is_about(alert, code, pci)]
    if firing:
        print(f"XID {code} on GPU {gpu_index} has been firing since {firing[0]['startsAt']}; it is not injected again:")
        describe(firing[0])
        return

    seen = len(query.received_alerts(endpoints["RECEIVER_URL"]))
    start = time.monotonic()
    for line in gpu.inject_xid(state, code=code, gpu=gpu_index):
        print(f"kernel: {line}")
    while time.monotonic() - start < WITHIN_S:
        for alert in query.received_alerts(endpoints["RECEIVER_URL"])[seen:]:
            if alert["status"] == "firing" and _is_about(alert, code, pci):
                print(f"\nThe alert reached the receiver {time.monotonic() - start:.0f} s after the injection:\n")
                describe(alert)
                return
        time.sleep(0.5)
    active = sorted({alert["labels"]["alertname"] for alert in query.active_alerts(endpoints["ALERTMANAGER_URL"])})
    raise DevError(
        f"no alert for XID {code} on GPU {gpu_index} reached the receiver within {WITHIN_S} s.\n"
        f"  lines in Loki:          {len(query.kernel_lines(endpoints['LOKI_URL'], xid=code))}\n"
        f"  alerts at Alertmanager: {active}\n"
        "An XID of severity info (see alerts/xid.csv) is only in Loki and on the dashboards and raises no alert."
    )


def _is_about(alert: dict[str, Any], code: int, pci: str) -> bool:
    labels = alert["labels"]
    return labels.get("xid") == str(code) and pci.lower().endswith(labels.get("pci", pci).lower())


def describe(alert: dict[str, Any]) -> None:
    for name, value in sorted(alert["labels"].items()):
        print(f"  {name:15} {value}")
    for name, value in sorted(alert["annotations"].items()):
        print(f"  {name:15} {value}")
