"""One alert per XID code and per event of AMD's driver, generated from the catalogues, and the tables for rules/xid-events.yaml.

An alert is the verdict on an incident of one GPU: of all codes that the GPU reported, only the gravest has one.

Loki has the pages again, from the line itself: it is the first to page, seconds after the line, and the only one for hosts
whose metrics do not arrive. Mimir's alert follows in the same notification group, which updates the page and does not send a
second one, and inhibits Loki's (notifications.py). Loki's have a label of their own: two rulers that resolve the same alert at
different times would make it flap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from alerts import amd, sxid_rules
from alerts.model import Rule, RuleGroup
from alerts.tables import text_by_label
from alerts.xid import CATALOGUE, CAUSES, LINES, Action, Line, Severity, Xid

ALERT: Final = "GpuXid"
RUNBOOK: Final = f"alerts/runbooks/{ALERT}.md"
AMD_ALERT: Final = "GpuAmdEvent"

# Less than a minute from the kernel log line to the verdict: scrape 15 s, remote write 5 s, counting and evaluation 10 s each.
INTERVAL: Final = "10s"
# The page itself is Loki's: Alloy sends a line within a second, so this and the group_wait of pages are most of its latency.
LOKI_INTERVAL: Final = "3s"

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
ALSO_WITHOUT_A_CODE: Final = (OFF_THE_BUS, 143)  # process_kernel.alloy knows them by their text, too
REPEATABLE: Final = (13, 31)  # usually of a program; of the hardware where one GPU repeats them
CONTAINED: Final = 94  # the program's own errors follow it, and it needs a reset when convenient
RECOVERY_ACTION: Final = 154
# The driver's recovery action is the verdict where no other code of the GPU has one, and above a reset where it is a reboot.
_RANK_OF_RECOVERY: Final[Mapping[Action, int]] = {Action.REBOOT_NODE: 94, Action.RESET_GPU: 51, Action.FOLLOW_DRIVER_ACTION: 11}

UNKNOWN: Final = 30
ADDRESS: Final = "gpu:address:info"
# What a fatal error of an NVSwitch causes on the GPUs that use it: errors of their links; and 154 with a reset, in
# rules/xid-events.yaml.
OF_THE_SWITCH: Final = (74, 136, *range(144, 151), 155)
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


def amd_groups() -> list[RuleGroup]:
    """For Mimir and Prometheus: the events of AMD's driver."""
    alerted = [event for event in amd.EVENTS if event.severity in _SEVERITIES]
    return [RuleGroup(name="amd-events", interval=INTERVAL, rules=tuple(_amd_alert(event) for event in alerted))]


def table_groups() -> list[RuleGroup]:
    """What rules/xid-events.yaml looks up: the addresses of GPUs."""
    return [RuleGroup(name="xid-tables", interval="1m", rules=(_address_now(), _address()))]


def log_groups() -> list[RuleGroup]:
    """For Loki."""
    ranks = _log_ranks()
    severe = f'{{job="kernel", xid=~"{"|".join(sorted({code for code, _ in ranks}, key=int))}"}}{_line_filter()}'
    rank = "".join(f"{{{{ {'else ' * bool(i)}if {test} }}}}{value}" for i, (test, value) in enumerate(_rank_tests(ranks)))
    worst = (
        f"topk by ({_HOST}, pci) (1,\n"
        f"max by ({_HOST}, pci, xid) (max_over_time({severe} | label_format rank=`{rank}{{{{ end }}}}`"
        f" | label_format rank=`{_SCORE}` | unwrap rank [10m]))\n"
        f"{_unless_loaded(severe, f'{_HOST}, pci, xid')})\n"
    )
    switch, switch_labels = sxid_rules.log_selector(), f"{_HOST}, pci, sxid, detail"
    sxid_alert_labels, sxid_annotations = sxid_rules.texts(Severity.CRITICAL)
    adapter = '{job="kernel", nic_event=~"health_compromised|unrecoverable_error|command_timeout"}'
    adapter_labels = f"{_HOST}, nic, nic_event"
    of_adapter = 'Log lines in Loki: {job="kernel", instance="{{ $labels.instance }}"} |~ "mlx5_core|bnxt_en|ionic|efa"'
    found = 'Log lines in Loki: {job="kernel", instance="{{ $labels.instance }}"} |= "NVRM"'
    severe_codes = {int(code) for code, _ in ranks}
    meaning = text_by_label({code: CATALOGUE[code].meaning for code in severe_codes}, "xid")
    rules = (
        _log_alert(
            ALERT,
            worst,
            {"scope": "gpu", "action": text_by_label({code: _fatal_action(code).value for code in severe_codes}, "xid")},
            summary=f"XID {{{{ $labels.xid }}}} on {{{{ $labels.instance }}}}, GPU {{{{ $labels.pci }}}}: {meaning}",
            description=f"{_NO_VERDICT} {found}",
            action=_log_action(severe_codes),
        ),
        _log_alert(
            sxid_rules.ALERT,
            f"{_last_line(switch, switch_labels, _SWITCH_WINDOW)}\n{_unless_loaded(switch, switch_labels, _SWITCH_WINDOW)}",
            sxid_alert_labels,
            **{**sxid_annotations, "description": f"{_NO_VERDICT} {sxid_annotations['description']}"},
        ),
        _log_alert(
            "HostNicDriverError",
            f"{_last_line(adapter, adapter_labels)}\n{_unless_booted(adapter, adapter_labels)}",
            {"scope": "fabric", "action": Action.REBOOT_NODE.value},
            summary="{{ $labels.instance }}: network adapter {{ $labels.nic }}: {{ $labels.nic_event }} in the kernel log",
            description=f"{_NO_VERDICT} {of_adapter}",
            action="Drain the node and reboot it; power-cycle it if the adapter does not come back.",
        ),
        _amd_log_alert(),
    )
    return [RuleGroup(name="xid", interval=LOKI_INTERVAL, rules=rules)]


def _amd_log_alert() -> Rule:
    """The gravest event of each AMD GPU within ten minutes, unless the GPU was reset or the driver loaded since."""
    critical = [event for event in amd.EVENTS if event.severity is Severity.CRITICAL]
    names = "|".join(event.name for event in critical)
    # A line without an address is Mimir's alone, which knows whether a line with one followed.
    stream = f'{{job="kernel", event=~"{names}"}} | pci!=""'
    arms = "".join(f'{{{{ {"else " * bool(i)}if eq .event "{one.name}" }}}}{one.rank}' for i, one in enumerate(critical))
    rank = f"label_format rank=`{arms}{{{{ end }}}}` | unwrap rank"
    event = f"{_HOST}, pci, event"
    repaired = stream.replace(f"{amd.RETIRED}|", "")
    reset = _last_line(f'{{job="kernel", event="{amd.RESET_SUCCEEDED}"}}', f"{_HOST}, pci")
    expression = (
        f"topk by ({_HOST}, pci) (1,\nmax by ({event}) (max_over_time({stream} | {rank} [10m]))\n"
        f"{_unless_loaded(stream, event)}\n"
        f"unless ({_last_line(repaired, event)} <= on ({_HOST}, pci) group_left () {reset}))\n"
    )
    found = 'Log lines in Loki: {job="kernel", instance="{{ $labels.instance }}"} |= "amdgpu"'
    meaning = text_by_label({one.name: one.meaning for one in critical}, "event")
    return _log_alert(
        AMD_ALERT,
        expression,
        {"scope": "gpu", "action": text_by_label({one.name: one.action.value for one in critical}, "event")},
        summary=f"AMD GPU {{{{ $labels.pci }}}} on {{{{ $labels.instance }}}}: {meaning}",
        description=f"{_NO_VERDICT} {found}",
        action=text_by_label({one.name: amd.ACTION_TEXTS[one.action] for one in critical}, "event"),
    )


# Alloy says of a line that it is the kernel's or the driver's own; a user's text in another line may look like one.
_BOOTED: Final = '|= "Linux version " | booted!=""'
_LOADED: Final = '|~ "Linux version |NVRM: loading NVIDIA UNIX|amdgpu kernel modesetting enabled" | booted!="" or loaded!=""'
_WINDOW: Final = "10m"
# Three minutes more, the length of a burst: without Mimir the errors that a switch causes on GPUs must not outlast its own alert.
_SWITCH_WINDOW: Final = "13m"
_NO_VERDICT: Final = "From the kernel log, before the metrics; an update with the verdict follows within a minute if they arrive."
_FATAL: Final = "fatal"
# The rank of an event; of equal ones the earlier second is higher, then the lower code, as in gpu:xid_incident:score.
_SCORE: Final = "{{ subf .rank (divf (unixEpoch __timestamp__) 1e10) (mulf .xid 1e-13) }}"


def _log_ranks() -> dict[tuple[str, str], str]:
    """The rank of each code and class that pages."""
    found = [(code, "", xid.severity, xid.action) for code, xid in CATALOGUE.items() if not _lines_of(code)]
    found += [(line.code, line.kind, line.severity, line.action) for line in LINES if line.kind]
    return {
        (str(code), kind): str(_rank(code, severity, action))
        for code, kind, severity, action in found
        if severity is Severity.CRITICAL
    }


def _rank_tests(ranks: Mapping[tuple[str, str], str]) -> Iterator[tuple[str, str]]:
    """The ranks as conditions of a template of Loki."""
    for (code, kind), value in ranks.items():
        if code == str(RECOVERY_ACTION):
            yield f'and (eq .xid "{code}") (hasPrefix "{kind}" .detail)', value
        else:
            yield f'eq .xid "{code}"', value


def _line_filter() -> str:
    """Only the lines of a code with classes that page."""
    actions = [line.kind for line in LINES if line.code == RECOVERY_ACTION and line.severity is Severity.CRITICAL]
    fatal = sorted({line.code for line in LINES if line.kind == _FATAL})
    codes = "|".join(map(str, fatal))
    return (
        f' | xid!~"{codes}|{RECOVERY_ACTION}"'
        f' or (xid=~"{codes}" and detail=~`(?i).* (link[ -]?)?fatal`)'
        f' or (xid="{RECOVERY_ACTION}" and detail=~`({"|".join(actions)})( .*)?`)'
    )


def _log_action(codes: Iterable[int]) -> str:
    """A template that prints the action of the alert's code; that of 154 is in the line, and so in the rank."""
    texts = {code: _fatal_action(code).text for code in codes}
    reboot, reset = Action.REBOOT_NODE, Action.RESET_GPU
    is_reboot = f"gt $value {_RANK_OF_RECOVERY[reboot] - 1}.0"
    texts[RECOVERY_ACTION] = f"{{{{ if {is_reboot} }}}}{reboot.text}{{{{ else }}}}{reset.text}{{{{ end }}}}"
    return text_by_label(texts, "xid")


def _fatal_action(code: int) -> Action:
    return next((line.action for line in LINES if (line.code, line.kind) == (code, _FATAL)), CATALOGUE[code].action)


def _last_line(stream: str, labels: str, window: str = _WINDOW) -> str:
    """The time of the last line within the window."""
    time = "label_format at=`{{ __timestamp__ | unixEpoch }}` | unwrap at"
    return f"max by ({labels}) (max_over_time({stream} | {time} [{window}]))"


def _unless_loaded(stream: str, labels: str, window: str = _WINDOW) -> str:
    """Without what happened before the last boot or load of the driver, which end the incident in Mimir, too."""
    return _unless_since(stream, labels, _LOADED, window)


def _unless_booted(stream: str, labels: str) -> str:
    return _unless_since(stream, labels, _BOOTED, _WINDOW)


def _unless_since(stream: str, labels: str, line: str, window: str) -> str:
    since = _last_line(f'{{job="kernel"}} {line}', _HOST, window)
    return f"unless ({_last_line(stream, labels, window)} <= on ({_HOST}) group_left () {since})"


def _log_alert(name: str, expression: str, labels: Mapping[str, str], **annotations: str) -> Rule:
    return {
        "alert": name,
        "expr": f"{expression.rstrip()}\n",
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

    Codes that the catalogue lacks, and new recovery actions, are a warning (UNKNOWN). AMD's events have ranks that differ.
    """
    with_lines = {line.code for line in LINES}
    codes: dict[tuple[int, str], list[int]] = {}
    for code, xid in CATALOGUE.items():
        if code not in with_lines and xid.severity:
            codes.setdefault((_rank(code, xid.severity, xid.action), ""), []).append(code)
    for line in LINES:
        rank = _rank(line.code, line.severity, line.action)
        codes.setdefault((rank, f', class="{line.kind}"'), []).append(line.code)
    of_amd = [f'0 * gpu:xid_latest:timestamp_seconds{{event="{event.name}"}} + {event.rank}' for event in amd.EVENTS]
    arms = [
        f'0 * gpu:xid_latest:timestamp_seconds{{xid=~"{"|".join(map(str, sorted(found)))}"{matcher}}} + {rank}'
        for (rank, matcher), found in sorted(codes.items(), reverse=True)
    ]
    return "\nor ".join([*of_amd, *arms, f"0 * gpu:xid_latest:timestamp_seconds + {UNKNOWN}"]) + "\n"


def _rank(code: int, severity: Severity, action: Action) -> int:
    if severity not in _SEVERITIES:
        return 0
    if code == RECOVERY_ACTION:
        return _RANK_OF_RECOVERY[action]
    if code == OFF_THE_BUS:
        return 99
    if code == CONTAINED:
        return _RANK[action] + 1
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
    elsewhere = f" unless on ({_HOST}, pci, uuid, xid) gpu:xid_repeated:count > 1" if xid.code in REPEATABLE else ""
    if xid.code in OF_THE_SWITCH:
        elsewhere = f" unless on ({_HOST}) {sxid_rules.HOSTS}"
    causes = f"Possible causes: {', '.join(CAUSES[cause] for cause in xid.causes)}. " if xid.causes else ""
    return {
        "alert": ALERT,
        "expr": f'max by ({_HOST}, pci, uuid, xid) (gpu:xid_verdict:score{{xid="{xid.code}"{matcher}}}) > 0{elsewhere}',
        "labels": {"severity": severity.value, "scope": "gpu", "action": action.value, "xid": str(xid.code)},
        "annotations": {
            "summary": f"XID {xid.code} on {{{{ $labels.instance }}}}, {GPU_IN_WORDS}: {xid.meaning}",
            "description": (
                f"The NVIDIA driver logged {xid.name}. {causes}"
                f'Log lines in Loki: {{job="kernel", instance="{{{{ $labels.instance }}}}"}} |= "{_text_of_lines(xid.code)}"'
            ),
            "action": action.text,
            "runbook": f"{RUNBOOK}#{action.value}",
        },
    }


def _text_of_lines(code: int) -> str:
    return "NVRM" if code in ALSO_WITHOUT_A_CODE else "Xid"


def _amd_alert(event: amd.Event) -> Rule:
    return {
        "alert": AMD_ALERT,
        "expr": f'max by ({_HOST}, pci, event) (gpu:xid_verdict:score{{event="{event.name}"}}) > 0',
        "labels": {"severity": event.severity.value, "scope": "gpu", "action": event.action.value, "event": event.name},
        "annotations": {
            "summary": (
                "AMD GPU {{ if $labels.pci }}{{ $labels.pci }}{{ else }}(the line has no address){{ end }} "
                f"on {{{{ $labels.instance }}}}: {event.meaning}"
            ),
            "description": (
                f"AMD's driver logged the event {event.name}. "
                'Log lines in Loki: {job="kernel", instance="{{ $labels.instance }}"} |= "amdgpu"'
            ),
            "action": amd.ACTION_TEXTS[event.action],
            "runbook": f"alerts/runbooks/{AMD_ALERT}.md#{event.action.value}",
        },
    }
