"""XIDs from the kernel log in Loki, and health counters of the GPUs."""

from __future__ import annotations

from typing import Final

from alerts.xid import CATALOGUE, Severity
from dashboards.queries.common import ONE_HOST, RULES_RUN, measures, or_zero, per_gpu, top

_XIDS: Final = 'job="kernel", xid=~".+"'
UNKNOWN: Final = "unknown"
_LAST_CODE: Final = max(code for code, xid in CATALOGUE.items() if xid.severity is not Severity.UNDOCUMENTED)
# The code, and the class of its line as gpu:xid_reported:timestamp_seconds has it (alerts/rules/xid-events.yaml).
_VERDICT: Final = (
    f"{{{{ if gt (int .xid) {_LAST_CODE} }}}}{UNKNOWN}{{{{ else }}}}"
    '{{.xid}}{{ if eq .xid "154" }}{{ if and (hasPrefix "0x5" .detail) (contains "bus" (lower .detail)) }} 0x6'
    '{{ else if hasPrefix "0x" .detail }} {{ regexReplaceAll " .*" .detail "" }}{{ end }}'
    '{{ else if or (hasSuffix " nonfatal" (lower .detail)) (hasSuffix " non-fatal" (lower .detail)) }} nonfatal'
    '{{ else if hasSuffix "fatal" (lower .detail) }} fatal{{ end }}{{ end }}'
)
_AMD_EVENTS: Final = 'job="kernel", event=~".+"'


def lines(selector: str) -> str:
    """LogQL: kernel log lines with an XID."""
    return f"{{{_XIDS}, {selector}}}"


def lines_by_code(selector: str) -> str:
    """LogQL: counted per code."""
    return f"sum by (xid) (count_over_time({{{_XIDS}, {selector}}}[$__interval]))"


def lines_by_host(selector: str) -> str:
    """LogQL: counted per host; the ten highest."""
    return f"topk(10, sum by ({ONE_HOST}) (count_over_time({{{_XIDS}, {selector}}}[$__interval])))"


def lines_by_gpu(selector: str) -> str:
    """LogQL: count in the whole time range, per host, GPU, code and verdict. The code is copied to columns that map it to texts.

    Severity and action depend on the class of the line where the code has classes (alerts.xid.LINES): `154 0x2`, `145 fatal`.
    UNKNOWN: a code that the catalogue lacks.
    """
    labels = "cluster, instance, pci, xid, severity, meaning, action"
    copies = f"meaning=`{{{{.xid}}}}`, severity=`{_VERDICT}`, action=`{_VERDICT}`"
    counted = f"{{{_XIDS}, {selector}}} | label_format {copies} [$__range]"
    return f"sum by ({labels}) (count_over_time({counted}))"


def amd_events_by_gpu(selector: str) -> str:
    """LogQL: as lines_by_gpu, for the events of AMD's driver."""
    labels = "cluster, instance, pci, event, severity, meaning, action"
    copies = ", ".join(f"{name}=`{{{{.event}}}}`" for name in ("severity", "meaning", "action"))
    return f"sum by ({labels}) (count_over_time({{{_AMD_EVENTS}, {selector}}} | label_format {copies} [$__range]))"


def amd_events_by_kind(selector: str) -> str:
    """LogQL: counted per event."""
    return f"sum by (event) (count_over_time({{{_AMD_EVENTS}, {selector}}}[$__interval]))"


def kernel_lines(selector: str) -> str:
    """LogQL: all kernel log lines in Loki."""
    return f'{{job="kernel", {selector}}}'


def firing_xids(selector: str, severity: str) -> str:
    firing = f'count(ALERTS{{{selector}, alertname=~"GpuXid|GpuAmdEvent", alertstate="firing", severity="{severity}"}})'
    return or_zero(firing, RULES_RUN)


def gpus_with_recovery_action(selector: str, names: str) -> str:
    """From the exporter and open XIDs 154: the exporter does not list a GPU that is off the bus. `names`: selects hosts."""
    by_uuid = f"{per_gpu('gpu:recovery_action:code', selector)} > 0"
    by_address = f'max by ({ONE_HOST}, pci) (gpu:xid_incident:timestamp_seconds{{{names}, xid="154", pci!=""}})'
    of_others = f"({by_uuid}) unless on ({ONE_HOST}, uuid) (gpu:address:info and on ({ONE_HOST}, pci) {by_address})"
    return or_zero(f"count({by_address} or {of_others})", measures("gpu:recovery_action:code", selector))


def gpus_with_uncorrectable_errors(selector: str) -> str:
    return or_zero(f"count({ecc_uncorrected(selector)})", measures("gpu:ecc_uncorrected_volatile:total", selector))


def recovery_actions(selector: str) -> str:
    """The recovery action of the GPUs that have one; at most fifty."""
    return f"topk(50, {per_gpu('gpu:recovery_action_required:code', selector)})"


def dcgm_health(selector: str) -> str:
    """DCGM's health per GPU and watch, where it is not healthy; at most fifty."""
    return f"topk(50, max by ({ONE_HOST}, gpu, health_watch) (gpu:dcgm_health_failing:code{{{selector}}}))"


def ecc_uncorrected(selector: str) -> str:
    return f"{per_gpu('gpu:ecc_uncorrected_volatile:total', selector)} > 0"


def row_remaps(selector: str) -> str:
    return f"{per_gpu('gpu:rows_remapped:total', selector)} > 0"


# --- over weeks and months: ALERTS_FOR_STATE has samples only while an alert is active; its value is the time when it began

_CRITICAL: Final = 'scope="gpu", severity="critical"'


def _critical(selector: str, by: str) -> str:
    return f"sum by ({by}) (changes(ALERTS_FOR_STATE{{{_CRITICAL}, {selector}}}[$__range]) + 1)"


def critical_alerts_of_gpus(selector: str) -> str:
    """How many critical alerts about GPUs became active in the time range."""
    return or_zero(_critical(selector, ""), RULES_RUN)


def gpu_days_between_critical_alerts(selector: str) -> str:
    return f"sum(instance:gpus:count{{{selector}}}) * $__range_s / 86400 / ({_critical(selector, '')})"


def critical_alerts_by_gpu(selector: str) -> str:
    """By the label that the alert names its GPU with."""
    return top(15, _critical(selector, "instance, gpu, pci"))


def critical_alerts_by_kind(selector: str) -> str:
    return top(15, _critical(selector, "alertname, xid, event"))
