"""One alert per XID code, generated from the catalogue, and the tables that rules/xid-events.yaml makes incidents with.

An alert is the verdict on an incident of one GPU: of all codes that the GPU reported, only the gravest has one.

Loki has the pages again, as a second source for hosts whose metrics do not arrive: two minutes later and inhibited by Mimir's
(notifications.py). They have a label of their own: two rulers that resolve the same alert at different times would make it flap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from alerts.model import Rule, RuleGroup
from alerts.xid import CATALOGUE, CAUSES, LINES, Action, Line, Severity, Xid

ALERT: Final = "GpuXid"
RUNBOOK: Final = f"alerts/runbooks/{ALERT}.md"

# Less than a minute from the kernel log line to the pager: scrape 15 s, remote write 5 s, counting and evaluation 10 s each.
INTERVAL: Final = "10s"
# A Loki query is more expensive than a Mimir query, and needs no scrape before it.
LOKI_INTERVAL: Final = "15s"

# Groups are ranges of codes, so a new row never moves another code to another group.
CODES_PER_GROUP: Final = 20

# The GPU's index beside its PCI address, also after the exporter lost the GPU.
GPU_IN_WORDS: Final = (
    "{{ $gpu := printf "
    '"gpu:address:info{datacenter=%q,cluster=%q,instance=%q,pci=~\\"%s.*\\",uuid=~\\"%s.*\\"}" '
    "$labels.datacenter $labels.cluster $labels.instance $labels.pci $labels.uuid }}"
    '{{ with query $gpu }}GPU {{ . | first | label "gpu" }} ({{ . | first | label "pci" }})'
    "{{ else }}GPU {{ $labels.pci }}{{ $labels.uuid }}{{ end }}"
)
# The same for Grafana, whose templates cannot query series; `index` returns an empty text for a missing label.
GPU_BY_UUID_OR_ADDRESS: Final = 'GPU {{ index $labels "pci" }}{{ index $labels "uuid" }}'

# Which of several events of one GPU is the verdict: the one whose action does most. Critical codes rank CRITICAL higher.
CRITICAL: Final = 50
_RANK: Final[Mapping[Action, int]] = {
    Action.REBOOT_NODE: 45,
    Action.RESTART_VM: 40,
    Action.CHECK_MECHANICALS: 38,
    Action.DRAIN_AND_RESET: 36,
    Action.RESET_GPU: 34,
    Action.CONTACT_SUPPORT: 30,
    Action.CHECK_FABRIC: 28,
    Action.RELOAD_DRIVER: 26,
    Action.ENABLE_ECC: 24,
    Action.UPDATE_SOFTWARE: 23,
    Action.PLAN_REPLACEMENT: 22,
    Action.FOLLOW_COMPANION_XID: 20,
    Action.RESTART_APP: 18,
    Action.CHECK_APP: 16,
    Action.CHECK_UVM: 14,
    Action.NONE: 12,
}
OFF_THE_BUS: Final = 79  # it explains everything else that the driver logs about the GPU
RECOVERY_ACTION: Final = 154
# The driver's recovery action is the verdict where no other code of the GPU has one, and above a reset where it is a reboot.
_RANK_OF_RECOVERY: Final[Mapping[Action, int]] = {Action.REBOOT_NODE: 94, Action.RESET_GPU: 51, Action.FOLLOW_DRIVER_ACTION: 11}

UNKNOWN: Final = 30
ADDRESS: Final = "gpu:address:info"
_HOST: Final = "datacenter, cluster, instance"
_SEVERITIES: Final = (Severity.CRITICAL, Severity.WARNING)


def metric_groups() -> list[RuleGroup]:
    """For Mimir and Prometheus."""
    by_range: dict[int, list[Rule]] = {}
    for code, xid in sorted(CATALOGUE.items()):
        by_range.setdefault(code - code % CODES_PER_GROUP, []).extend(_alerts(xid))
    return [
        RuleGroup(name=f"xid-{start:03}-{start + CODES_PER_GROUP - 1:03}", interval=INTERVAL, rules=tuple(rules))
        for start, rules in by_range.items()
        if rules
    ]


def table_groups() -> list[RuleGroup]:
    """What rules/xid-events.yaml looks up: the addresses of GPUs."""
    return [RuleGroup(name="xid-tables", interval="1m", rules=(_address_now(), _address()))]


def log_groups() -> list[RuleGroup]:
    """For Loki."""
    codes = [code for code, xid in CATALOGUE.items() if xid.severity is Severity.CRITICAL and not _lines_of(code)]
    with_detail = {line.code for line in LINES if line.severity is Severity.CRITICAL and line.kind} - {RECOVERY_ACTION}
    lines = " or ".join(
        f"sum by ({_HOST}, pci, xid) (count_over_time({stream} [10m]))"
        for stream in (
            f'{{job="kernel", xid=~"{"|".join(map(str, codes))}"}}',
            f'{{job="kernel", xid=~"{"|".join(map(str, sorted(with_detail)))}"}} | detail=~`(?i).* (link[ -]?)?fatal`',
        )
    )
    action = '{job="kernel", xid="154"} | detail=~`0x[1267]( .*)?`'
    switch = '{job="kernel", sxid=~".+"} | sxid_severity="Fatal"'
    found = 'Log lines in Loki: {job="kernel", instance="{{ $labels.instance }}"} |= "Xid"'
    rules = (
        _log_alert(
            ALERT,
            lines,
            {"scope": "gpu"},
            summary="XID {{ $labels.xid }} on {{ $labels.instance }}, GPU {{ $labels.pci }}",
            description=f"Mimir has no incident of this GPU: metrics of the host do not arrive. {found}",
            action="Look the code up in the runbook, and check why the host's metrics do not arrive.",
        ),
        _log_alert(
            "GpuDriverAsksForAction",
            f"sum by ({_HOST}, pci) (count_over_time({action} [10m]))",
            {"scope": "gpu"},
            summary="GPU {{ $labels.pci }} on {{ $labels.instance }}: recovery action required",
            description=f"XID 154. Mimir has no incident of this GPU: metrics of the host do not arrive. {found}",
            action="Follow the recovery action in the line, and check why the host's metrics do not arrive.",
        ),
        _log_alert(
            "NvswitchSxid",
            f"sum by ({_HOST}, pci, sxid) (count_over_time({switch} [10m]))",
            {"scope": "fabric"},
            summary="SXid {{ $labels.sxid }} on {{ $labels.instance }}, NVSwitch {{ $labels.pci }}: fatal NVSwitch error",
            description=f"Mimir does not have it: metrics of the host do not arrive. {found}",
            action="Drain the node, then reset all its GPUs and switches together (nvidia-smi -r) or reboot it.",
        ),
    )
    return [RuleGroup(name="xid", interval=LOKI_INTERVAL, rules=rules)]


def _log_alert(name: str, expression: str, labels: Mapping[str, str], **annotations: str) -> Rule:
    """Over as soon as the driver has been loaded again: a reboot within the ten minutes ends the incident in Mimir, too."""
    loaded = f'sum by ({_HOST}) (count_over_time({{job="kernel"}} |= "NVRM: loading NVIDIA UNIX" [10m]))'
    return {
        "alert": name,
        "expr": f"({expression}) > 0\nunless on ({_HOST})\n{loaded} > 0\n",
        "for": "2m",
        "labels": {"severity": Severity.CRITICAL.value, **labels, "source": "log"},
        "annotations": {**annotations, "runbook": f"alerts/runbooks/{name}.md"},
    }


# --- tables -----------------------------------------------------------------------------------------------------------------


def _address_now() -> Rule:
    """The PCI address of each GPU as the kernel writes it: 0000:4b:00 for nvidia-smi's 00000000:4B:00.0."""
    address = f'group by ({_HOST}, gpu, uuid, pci_bus_id) (gpu:info{{pci_bus_id!="", uuid!=""}})'
    digits = "(?:0000)?([0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:[.]0)?"
    address = f'label_replace(\n{address},\n"pci", "$1", "pci_bus_id", "{digits}")'
    for letter in "ABCDEF" * 2:  # at most two digits of a bus or a domain have the same letter
        address = f'label_replace({address}, "pci", "${{1}}{letter.lower()}$2", "pci", "(.*){letter}(.*)")'
    return {"record": "gpu:address_now:info", "expr": f"group by ({_HOST}, gpu, uuid, pci) ({address})\n"}


def _address() -> Rule:
    """The same, also for a GPU that its exporter lost, as long as its host is known and no other GPU has its address."""
    now = f"topk by ({_HOST}, pci) (1, topk by ({_HOST}, uuid) (1, gpu:address_now:info))"
    before = (
        f"last_over_time({ADDRESS}[30m])\n"
        f"  unless on ({_HOST}, uuid) gpu:address_now:info\n"
        f"  unless on ({_HOST}, pci) gpu:address_now:info\n"
        f"  and on ({_HOST}) host:known:bool"
    )
    return {"record": ADDRESS, "expr": f"{now}\nor\n(\n  {before}\n)\n"}


def rank_expression() -> str:
    """The rank of each event by its code and class, as rules/xid-events.yaml has it: from CRITICAL on it pages, 0 is no alert.

    Codes that the catalogue lacks, and new recovery actions, are a warning (UNKNOWN).
    """
    with_lines = {line.code for line in LINES}
    codes: dict[tuple[int, str], list[int]] = {}
    for code, xid in CATALOGUE.items():
        if code not in with_lines and xid.severity:
            codes.setdefault((_rank(code, xid.severity, xid.action), ""), []).append(code)
    for line in LINES:
        rank = _rank(line.code, line.severity, line.action)
        codes.setdefault((rank, f', class="{line.kind}"'), []).append(line.code)
    arms = [
        f'0 * gpu:xid_latest:timestamp_seconds{{xid=~"{"|".join(map(str, sorted(found)))}"{matcher}}} + {rank}'
        for (rank, matcher), found in sorted(codes.items(), reverse=True)
    ]
    return "\nor ".join([*arms, f"0 * gpu:xid_latest:timestamp_seconds + {UNKNOWN}"]) + "\n"


def _rank(code: int, severity: Severity, action: Action) -> int:
    if severity not in _SEVERITIES:
        return 0
    if code == RECOVERY_ACTION:
        return _RANK_OF_RECOVERY[action]
    if code == OFF_THE_BUS:
        return 99
    return _RANK[action] + (CRITICAL if severity is Severity.CRITICAL else 0)


def _lines_of(code: int) -> list[Line]:
    return [line for line in LINES if line.code == code]


# --- alerts -----------------------------------------------------------------------------------------------------------------


def _alerts(xid: Xid) -> Iterator[Rule]:
    """None for 154, which has an alert of its own (rules/xid-events.yaml)."""
    if xid.code == RECOVERY_ACTION:
        return
    lines = _lines_of(xid.code)
    if not lines:
        if xid.is_alerted:
            yield _alert(xid, xid.severity, xid.action, "")
        return
    for severity in _SEVERITIES:
        found = [line for line in lines if line.severity is severity]
        if found:
            yield _alert(xid, severity, found[0].action, f', class=~"{"|".join(line.kind for line in found)}"')


def open_incidents(codes: Iterable[str]) -> str:
    """GPUs whose verdict is one of the codes."""
    return f'max by ({_HOST}, pci, uuid, xid) (gpu:xid_verdict:score{{xid=~"{"|".join(codes)}"}}) > 0\n'


def _alert(xid: Xid, severity: Severity, action: Action, matcher: str) -> Rule:
    causes = f"Possible causes: {', '.join(CAUSES[cause] for cause in xid.causes)}. " if xid.causes else ""
    return {
        "alert": ALERT,
        "expr": f'max by ({_HOST}, pci, uuid, xid) (gpu:xid_verdict:score{{xid="{xid.code}"{matcher}}}) > 0',
        "labels": {"severity": severity.value, "scope": "gpu", "action": action.value, "xid": str(xid.code)},
        "annotations": {
            "summary": f"XID {xid.code} on {{{{ $labels.instance }}}}, {GPU_IN_WORDS}: {xid.meaning}",
            "description": (
                f"The NVIDIA driver logged {xid.name}. {causes}"
                'Log lines in Loki: {job="kernel", instance="{{ $labels.instance }}"} |= "Xid"'
            ),
            "action": action.text,
            "runbook": f"{RUNBOOK}#{action.value}",
        },
    }
