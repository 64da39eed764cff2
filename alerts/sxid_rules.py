"""The alerts on SXids, from the catalogue in sxid.csv: the incidents of NVSwitches are recorded in rules/xid-events.yaml.

Critical: the line says Fatal, or has no severity and the table says critical. Warning: it says Non-fatal, or the table does, or
the code is unknown; over after an hour without a repeat. None: codes that the guide calls harmless, unless the line says Fatal.
"""

from __future__ import annotations

from textwrap import indent
from typing import Final

from alerts.model import Rule, RuleGroup
from alerts.sxid import CATALOGUE, Action, Sxid
from alerts.tables import text_by_label
from alerts.xid import Severity

ALERT: Final = "NvswitchSxid"
RUNBOOK: Final = f"alerts/runbooks/{ALERT}.md"
INCIDENTS: Final = "nvswitch:sxid_incident:timestamp_seconds"
# Hosts with a fatal one: what it causes on their GPUs pages nobody.
HOSTS: Final = "host:nvswitch_fatal:bool"
FATAL: Final = "Fatal"
# LogQL: without the lines that only add detail to an event, as in process_kernel.alloy.
EVENTS_ONLY: Final = r"!~ `Data \{|Severity [0-9]+ Engine`"

_WHERE: Final = "SXid {{ $labels.sxid }} on {{ $labels.instance }}, NVSwitch {{ $labels.pci }}"
_FOUND: Final = 'Log lines in Loki: {job="kernel", instance="{{ $labels.instance }}"} |= "SXid"'


def metric_groups() -> list[RuleGroup]:
    """For Mimir and Prometheus."""
    harmless = _codes(Severity.INFO)
    fatal = _codes(Severity.CRITICAL)
    critical = f'{INCIDENTS}{{sxid_severity="{FATAL}"}}\nor\n{INCIDENTS}{{sxid_severity="", sxid=~"{fatal}"}}\n'
    warning = (
        f'{INCIDENTS}{{sxid_severity!~"{FATAL}|", sxid!~"{harmless}"}} > time() - 3600\n'
        f'or\n{INCIDENTS}{{sxid_severity="", sxid!~"{fatal}|{harmless}"}} > time() - 3600\n'
    )
    hosts = {"record": HOSTS, "expr": f"group by (datacenter, cluster, instance) (\n{indent(critical, '  ')})\n"}
    rules = (hosts, _alert(critical, Severity.CRITICAL), _alert(warning, Severity.WARNING))
    return [RuleGroup(name="sxid-alerts", interval="10s", rules=rules)]


def _codes(severity: Severity) -> str:
    return "|".join(str(code) for code, sxid in CATALOGUE.items() if sxid.severity is severity)


def _alert(expression: str, severity: Severity) -> Rule:
    labels, annotations = texts(severity)
    return {
        "alert": ALERT,
        "expr": expression,
        "labels": {"severity": severity.value, **labels},
        "annotations": annotations,
    }


def log_selector() -> str:
    """Lines in Loki that page."""
    lines = f'{{job="kernel", sxid=~".+"}} {EVENTS_ONLY}'
    return f'{lines} | sxid_severity="{FATAL}" or (sxid_severity="" and sxid=~"{_codes(Severity.CRITICAL)}")'


def texts(severity: Severity) -> tuple[dict[str, str], dict[str, str]]:
    """Labels and annotations of an alert of that severity, by the code in its label."""
    actions = {code: _action(sxid, severity) for code, sxid in CATALOGUE.items() if _can_be(sxid, severity)}
    other = Action.RESET_GPU if severity is Severity.CRITICAL else Action.CHECK_FABRIC
    meanings = {code: f"{CATALOGUE[code].name}: {CATALOGUE[code].meaning}" for code in actions}
    labels = {
        "scope": "fabric",
        "action": text_by_label({code: action.value for code, action in actions.items()}, "sxid", other.value),
    }
    level = "fatal" if severity is Severity.CRITICAL else "not fatal"
    annotations = {
        "summary": f"{_WHERE}: {level}: {{{{ $labels.detail }}}}",
        "description": (
            f"The NVSwitch driver logged an error ({text_by_label(meanings, 'sxid', 'not in alerts/sxid.csv')}). "
            f"Numbers in its text are replaced by #. A fatal one stops the jobs on all GPUs that use the switch. {_FOUND}"
        ),
        "action": text_by_label({code: action.text for code, action in actions.items()}, "sxid", other.text),
        "runbook": RUNBOOK,
    }
    return labels, annotations


def _can_be(sxid: Sxid, severity: Severity) -> bool:
    return severity is Severity.CRITICAL or sxid.severity is not Severity.INFO


def _action(sxid: Sxid, severity: Severity) -> Action:
    """The table's, unless the severity of the line differs: a fatal error needs a reset, one that is not fatal does not."""
    if severity is Severity.CRITICAL:
        return sxid.action if sxid.severity is Severity.CRITICAL else Action.RESET_GPU
    return sxid.action if sxid.severity is Severity.WARNING else Action.CHECK_FABRIC
