"""One alert per XID code, generated from the catalogue: for Mimir (counts, rules/xid-events.yaml) and for Loki (kernel lines).

Both give the same alert: name and labels are equal, so Alertmanager takes them for one, whichever witness came first. An
exporter, which does not know the PCI address as the kernel writes it, speaks only where no kernel line told of that code on that
host. An event counts for 10 minutes and is then over; the same code again begins them anew.

Not done here: which alert hides which (alertmanager.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from alerts.model import RuleGroup
from alerts.xid import CATALOGUE, Severity, Xid

ALERT: Final = "GpuXid"
RUNBOOK: Final = f"alerts/runbooks/{ALERT}.md"

# From the kernel line to the pager in less than a minute: scrape 15 s, sending 5 s, counting and judging 10 s each.
INTERVAL: Final = "10s"
# A query of Loki costs more than one of Mimir, and needs no scrape before it.
LOKI_INTERVAL: Final = "15s"

# A range of codes never holds more alerts than codes, so a new row moves no other code to another group.
CODES_PER_GROUP: Final = 20

# The GPU's index beside its address: the exporter's list of GPUs as it is, or as it was before the GPU went away.
GPU_IN_WORDS: Final = (
    "{{ $gpus := printf "
    '"gpu:info{datacenter=%q,cluster=%q,instance=%q,pci_bus_id=~\\"(?i).*%s([.]0)?\\",uuid=~\\"%s.*\\"}" '
    "$labels.datacenter $labels.cluster $labels.instance $labels.pci $labels.uuid }}"
    '{{ with printf "%s or on () last_over_time(%s[1h])" $gpus $gpus | query }}'
    'GPU {{ . | first | label "gpu" }} ({{ . | first | label "pci_bus_id" }})'
    "{{ else }}GPU {{ $labels.pci }}{{ $labels.uuid }}{{ end }}"
)
# The same for Grafana, whose templates cannot ask for series; `index` gives nothing for a label that is not there.
GPU_BY_UUID_OR_ADDRESS: Final = 'GPU {{ index $labels "pci" }}{{ index $labels "uuid" }}'
_GPU_BY_ADDRESS: Final = "GPU {{ $labels.pci }}"


INCIDENT: Final = "host:gpu_incident:bool"


def metric_groups() -> list[RuleGroup]:
    """For Mimir and Prometheus."""
    return [_incidents(), *_groups(lambda xid: _alert(xid, metric_expression([xid.code]), gpu=GPU_IN_WORDS), INTERVAL)]


def _incidents() -> RuleGroup:
    """1 for six hours after an XID that paged: what a GPU shows from then on is the same incident, and no page of its own.

    Alerts of states that last until a repair (rules/gpu.yaml, rules/inventory.yaml) are critical without it and warnings with it.
    """
    codes = "|".join(str(code) for code, xid in sorted(CATALOGUE.items()) if xid.is_alerted and xid.severity is Severity.CRITICAL)
    events = f'max_over_time(gpu:xid_events:increase10m{{xid=~"{codes}"}}[6h])'
    rule = {"record": INCIDENT, "expr": f"max by (datacenter, cluster, instance) ({events} > bool 0) == 1"}
    return RuleGroup(name="xid-incidents", interval=INTERVAL, rules=(rule,))


def log_groups() -> list[RuleGroup]:
    """For Loki."""
    return _groups(lambda xid: _alert(xid, _log_expression(xid), gpu=_GPU_BY_ADDRESS), LOKI_INTERVAL)


def _groups(alert: Callable[[Xid], Mapping[str, Any]], interval: str) -> list[RuleGroup]:
    by_range: dict[int, list[Mapping[str, Any]]] = {}
    for code, xid in sorted(CATALOGUE.items()):
        if xid.is_alerted:
            by_range.setdefault(code - code % CODES_PER_GROUP, []).append(alert(xid))
    return [
        RuleGroup(name=f"xid-{start:03}-{start + CODES_PER_GROUP - 1:03}", interval=interval, rules=tuple(rules))
        for start, rules in by_range.items()
    ]


def metric_expression(codes: Sequence[int]) -> str:
    """A row per GPU and code for each of the codes that occurred within the last 10 minutes."""
    xid = f'xid="{codes[0]}"' if len(codes) == 1 else f'xid=~"{"|".join(map(str, codes))}"'
    return f"""\
max by (datacenter, cluster, instance, pci, xid) (gpu:xid_events:increase10m{{source="kernel", {xid}}}) > 0
or on (datacenter, cluster, instance, xid)
max by (datacenter, cluster, instance, uuid, xid) (
  label_replace(gpu:xid_events:increase10m{{source!="kernel", {xid}}}, "uuid", "$1", "UUID", "(.+)")
) > 0
"""


def _log_expression(xid: Xid) -> str:
    return f"""\
sum by (datacenter, cluster, instance, pci, xid) (count_over_time({{job="kernel", xid="{xid.code}"}}[10m])) > 0
"""


def _alert(xid: Xid, expression: str, *, gpu: str) -> dict[str, Any]:
    causes = f"Possible causes: {', '.join(xid.causes)}. " if xid.causes else ""
    return {
        "alert": ALERT,
        "expr": expression,
        "labels": {"severity": xid.severity.value, "scope": "gpu", "action": xid.action.value, "xid": str(xid.code)},
        "annotations": {
            "summary": f"XID {xid.code} on {{{{ $labels.instance }}}}, {gpu}: {xid.meaning}",
            "description": (
                f"The NVIDIA driver logged {xid.name}. {causes}{xid.notes}. "
                'The lines are in Loki: {job="kernel", instance="{{ $labels.instance }}"} |= "Xid"'
            ),
            "action": xid.action.text,
            "runbook": f"{RUNBOOK}#{xid.action.value}",
        },
    }
