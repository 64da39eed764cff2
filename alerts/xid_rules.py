"""One alert per XID code, generated from the catalogue: for Mimir (counts, rules/xid-events.yaml) and for Loki (kernel lines).

Both raise the same alert: name and labels are equal, so Alertmanager deduplicates them, whichever source was first. Exporters do
not report the PCI address in the kernel's form, so their events only count if no kernel log line had the same code on the same
host. An event is active for 10 minutes; a repeat of the code starts them again.

Not done here: inhibition (notifications.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from alerts.model import RuleGroup
from alerts.xid import CATALOGUE, CAUSES, Severity, Xid

ALERT: Final = "GpuXid"
RUNBOOK: Final = f"alerts/runbooks/{ALERT}.md"

# Less than a minute from the kernel log line to the pager: scrape 15 s, remote write 5 s, counting and evaluation 10 s each.
INTERVAL: Final = "10s"
# A Loki query is more expensive than a Mimir query, and needs no scrape before it.
LOKI_INTERVAL: Final = "15s"

# Groups are ranges of codes, so a new row never moves another code to another group.
CODES_PER_GROUP: Final = 20

# The GPU's index beside its PCI address: from the exporter's current list of GPUs, or from the last hour if the GPU is missing.
GPU_IN_WORDS: Final = (
    "{{ $gpus := printf "
    '"gpu:info{datacenter=%q,cluster=%q,instance=%q,pci_bus_id=~\\"(?i).*%s([.]0)?\\",uuid=~\\"%s.*\\"}" '
    "$labels.datacenter $labels.cluster $labels.instance $labels.pci $labels.uuid }}"
    '{{ with printf "%s or on () last_over_time(%s[1h])" $gpus $gpus | query }}'
    'GPU {{ . | first | label "gpu" }} ({{ . | first | label "pci_bus_id" }})'
    "{{ else }}GPU {{ $labels.pci }}{{ $labels.uuid }}{{ end }}"
)
# The same for Grafana, whose templates cannot query series; `index` returns an empty text for a missing label.
GPU_BY_UUID_OR_ADDRESS: Final = 'GPU {{ index $labels "pci" }}{{ index $labels "uuid" }}'
_GPU_BY_ADDRESS: Final = "GPU {{ $labels.pci }}"


INCIDENT: Final = "host:gpu_incident:bool"


def metric_groups() -> list[RuleGroup]:
    """For Mimir and Prometheus."""
    return [_incidents(), *_groups(lambda xid: _alert(xid, metric_expression([xid.code]), gpu=GPU_IN_WORDS), INTERVAL)]


def _incidents() -> RuleGroup:
    """1 for six hours after an XID that paged: further symptoms of the GPU belong to the same incident and do not page again.

    Alerts on states that persist until a repair (rules/gpu.yaml, rules/inventory.yaml) are critical without it and warnings with
    it.
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
    """One row per GPU and code for the given codes that occurred within the last 10 minutes."""
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
    causes = f"Possible causes: {', '.join(CAUSES[cause] for cause in xid.causes)}. " if xid.causes else ""
    return {
        "alert": ALERT,
        "expr": expression,
        "labels": {"severity": xid.severity.value, "scope": "gpu", "action": xid.action.value, "xid": str(xid.code)},
        "annotations": {
            "summary": f"XID {xid.code} on {{{{ $labels.instance }}}}, {gpu}: {xid.meaning}",
            "description": (
                f"The NVIDIA driver logged {xid.name}. {causes}"
                'Log lines in Loki: {job="kernel", instance="{{ $labels.instance }}"} |= "Xid"'
            ),
            "action": xid.action.text,
            "runbook": f"{RUNBOOK}#{xid.action.value}",
        },
    }
