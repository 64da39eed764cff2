"""Notifications as data: receivers, routes, mute timings and inhibitions.

alertmanager.py builds Mimir's Alertmanager configuration from it, components/grafana/policy.py Grafana's contact points and
notification policy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

# A secret text. It is only inserted and never read, so the caller may pass any object that resolves to the text later.
Secret = Any

HOST: Final = ("datacenter", "cluster", "instance")
# Pages are sent immediately and separately, whatever the grouping of other alerts: one per GPU, or per host for what is not about
# one GPU. A failure of a second GPU or host is a page of its own and not an update of the first one.
PAGE_GROUP: Final = (*HOST, "pci", "uuid")
# Long enough for the gravest code of a burst to be the one that pages: not less than from one evaluation in Loki to the next.
PAGE_WAIT: Final = "3s"
PAGE_INTERVAL: Final = "1m"

# The texts of Slack, email and pager notifications, in the template language that Alertmanager and Grafana share.
TEMPLATE_FILE: Final = Path(__file__).parent / "templates" / "gpu-fleet.tmpl"
# What Grafana has of its own: each of its alerts comes with a link that silences it, where Alertmanager's have a command.
# Source: Grafana 12, notification template reference (Alert: SilenceURL), read 2026-11-26.
_GRAFANA_SILENCE: Final = {
    "silence": "{{ .SilenceURL }}",
    "slack_silence": "{{ .SilenceURL }}",
    "html_silence": '<a href="{{ .SilenceURL }}">{{ .SilenceURL }}</a>',
}
TITLE: Final = '{{ template "gpu_fleet.title" . }}'
TEXT: Final = '{{ template "gpu_fleet.text" . }}'
HTML: Final = '{{ template "gpu_fleet.html" . }}'
SLACK_TITLE: Final = '{{ template "gpu_fleet.slack_title" . }}'
SLACK_TEXT: Final = '{{ template "gpu_fleet.slack" . }}'
# Of a group with alerts of several severities: that of a warning.
SLACK_COLOR: Final = (
    '{{ if eq .Status "resolved" }}good{{ else if eq .CommonLabels.severity "critical" }}danger'
    '{{ else if eq .CommonLabels.severity "info" }}#439fe0{{ else }}warning{{ end }}'
)
DASHBOARD: Final = '{{ template "gpu_fleet.group_dashboard" . }}'

# PagerDuty shows the details as a table; event rules match the other fields. Without `firing` and `resolved` Alertmanager adds
# its own, with every label of every alert.
PAGER_SEVERITY: Final = '{{ or .CommonLabels.severity "error" }}'
PAGER_FIELDS: Final = {
    "source": '{{ or .CommonLabels.instance .CommonLabels.cluster "gpu-fleet" }}',
    "component": "{{ .CommonLabels.scope }}",
    "group": "{{ .CommonLabels.cluster }}",
    "class": "{{ .CommonLabels.alertname }}",
}
PAGER_DETAILS: Final = {
    "firing": '{{ template "gpu_fleet.firing" . }}',
    "resolved": '{{ template "gpu_fleet.resolved" . }}',
}
PAGER_LINKS: Final = {
    "Runbook": '{{ template "gpu_fleet.group_runbook" . }}',
    "Dashboard": DASHBOARD,
    "Kernel log": '{{ template "gpu_fleet.group_logs" . }}',
}


def grafana_template() -> str:
    """The template file as Grafana gets it."""
    text = TEMPLATE_FILE.read_text()
    for name, link in _GRAFANA_SILENCE.items():
        ours = re.compile(rf'({{{{ define "gpu_fleet\.{name}" }}}}).*({{{{ end }}}})$', re.MULTILINE)
        text, count = ours.subn(lambda found, link=link: f"{found[1]}{link}{found[2]}", text)  # type: ignore[misc]
        assert count == 1, name
    return text


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """Alertmanager's JSON by POST, for Opsgenie and similar services. Either a user with a password or a bearer token."""

    url: Secret
    username: str | None = None
    password: Secret | None = None
    bearer_token: Secret | None = None
    send_resolved: bool = True


@dataclass(frozen=True, kw_only=True)
class Slack:
    url: Secret  # of the incoming webhook
    channel: str
    send_resolved: bool = True


@dataclass(frozen=True, kw_only=True)
class PagerDuty:
    routing_key: Secret  # Events API v2
    send_resolved: bool = True


@dataclass(frozen=True, kw_only=True)
class Email:
    to: str
    sender: str
    smarthost: str  # host:port
    username: str | None = None
    password: Secret | None = None
    send_resolved: bool = True


Channel = Webhook | Slack | PagerDuty | Email


@dataclass(frozen=True, kw_only=True)
class Receiver:
    """`channels`: all of them are notified; an empty tuple means no notification."""

    name: str
    channels: tuple[Channel, ...]


@dataclass(frozen=True, kw_only=True)
class Route:
    """`matchers`: all must match, such as `severity=critical`. None: inherited. `go_on`: also try the next route (`continue`)."""

    receiver: str
    matchers: tuple[str, ...]
    group_by: tuple[str, ...] | None = None
    group_wait: str | None = None
    group_interval: str | None = None
    repeat_interval: str | None = None
    mute_timings: tuple[str, ...] = ()
    go_on: bool = False


@dataclass(frozen=True, kw_only=True)
class MuteTiming:
    """A time without notifications; every given condition must hold, an empty one always does. `times`: (start, end) as HH:MM."""

    name: str
    weekdays: tuple[str, ...] = ()
    times: tuple[tuple[str, str], ...] = ()
    days_of_month: tuple[int, ...] = ()
    months: tuple[str, ...] = ()
    years: tuple[int, ...] = ()
    location: str = "UTC"


@dataclass(frozen=True, kw_only=True)
class Notifications:
    """`receiver`: name of the default receiver."""

    receiver: str
    receivers: tuple[Receiver, ...]
    routes: tuple[Route, ...] = ()
    group_by: tuple[str, ...] = ("alertname", "datacenter", "cluster")
    group_wait: str = "30s"
    group_interval: str = "5m"
    repeat_interval: str = "4h"
    mute_timings: tuple[MuteTiming, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Inhibition:
    """While an alert of `source` is firing, alerts of `target` with equal labels `equal` are not notified."""

    reason: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    equal: tuple[str, ...] = HOST


# One incident, one page.
INHIBITIONS: Final = (
    Inhibition(
        reason="Mimir's verdict on the GPU replaces Loki's page, which was sent first.",
        source=(
            'alertname=~"GpuXid|GpuDriverAsksForAction|GpuAmdEvent|NvswitchSxid|HostNicDriverError"',
            'severity="critical"',
            'source=""',
        ),
        target=('source="log"',),
        equal=(*HOST, "pci"),
    ),
    Inhibition(
        # Mimir's rules have it in their expressions; this is for Loki's pages, and for the seconds before the switch is recorded.
        reason="A fatal error of an NVSwitch causes link errors of the host's GPUs, which are reset together with it.",
        source=('alertname="NvswitchSxid"', 'severity="critical"'),
        target=('alertname="GpuXid"', 'xid=~"74|136|14[4-9]|150|154|155"'),
    ),
    Inhibition(
        reason="A fatal error of an NVSwitch stops Fabric Manager and the links of the GPUs, until all are reset together.",
        source=('alertname="NvswitchSxid"', 'severity="critical"'),
        target=('alertname=~"FabricServiceDown|GpuFabricNotReady|GpuNvlinkDown|GpuNvlinkSlow|GpuNvlinkErrors"',),
    ),
    Inhibition(
        reason="Without Fabric Manager or IMEX, GPUs do not join the fabric and their links are not trained.",
        source=('alertname="FabricServiceDown"',),
        target=('alertname=~"GpuFabricNotReady|GpuFabricDomainDiffers|GpuNvlinkDown|GpuNvlinkSlow"',),
    ),
    Inhibition(
        reason="Errors of a port that is down belong to the same failure.",
        source=('alertname="HostInfinibandPortDown"',),
        target=('alertname=~"HostInfinibandPortFlapping|HostInfinibandPortFailing|HostInfinibandPortDegraded"',),
        equal=(*HOST, "device", "port"),
    ),
    Inhibition(
        reason="A counter that NVSentinel calls fatal includes the degradation of the port.",
        source=('alertname="HostInfinibandPortFailing"',),
        target=('alertname="HostInfinibandPortDegraded"',),
        equal=(*HOST, "device", "port"),
    ),
    Inhibition(
        reason="The critical alert of a file system includes the warning.",
        source=('alertname="HostDiskFilling"', 'severity="critical"'),
        target=('alertname="HostDiskFilling"', 'severity="warning"'),
        equal=(*HOST, "mountpoint"),
    ),
    Inhibition(
        reason="A GPU whose hardware reduces the clocks because of heat is hot, and so is its memory.",
        source=('alertname="GpuThermalSlowdown"',),
        target=('alertname=~"GpuTemperatureHigh|GpuMemoryHot|GpuSoftwareThermalSlowdown"',),
        equal=(*HOST, "uuid"),
    ),
    Inhibition(
        reason="The memory of a hot GPU is hot, and its driver reduces the clocks.",
        source=('alertname="GpuTemperatureHigh"',),
        target=('alertname=~"GpuMemoryHot|GpuSoftwareThermalSlowdown"',),
        equal=(*HOST, "uuid"),
    ),
    Inhibition(
        reason="What reduces the clocks of a GPU is why its job is slow.",
        source=('alertname=~"GpuThermalSlowdown|GpuSoftwareThermalSlowdown|GpuTemperatureHigh|GpuPowerBrake"',),
        target=('alertname="JobSlowedByGpu"',),
        equal=(*HOST, "uuid"),
    ),
    Inhibition(
        reason="AMD's driver logged the heat. Its exporter has no addresses, so that of all GPUs of the host belongs to it.",
        source=('alertname="GpuAmdEvent"', 'event=~"thermal_throttle|over_temperature"'),
        target=('alertname=~"GpuThermalSlowdown|GpuTemperatureHigh|GpuMemoryHot"',),
    ),
    Inhibition(
        reason="The errors of a GPU's memory are why its driver requires a drain and a reset.",
        source=('alertname=~"GpuEccUncorrected|GpuRowRemapFailed"',),
        target=('alertname=~"GpuRecoveryActionNeeded|GpuRowRemapPending"', 'severity="warning"'),
        equal=(*HOST, "uuid"),
    ),
    Inhibition(
        reason="A health watch of DCGM reads the counters and sensors that have an alert of their own.",
        source=(
            'alertname=~"GpuEccUncorrected|GpuRowRemapFailed|GpuRowRemapPending|GpuThermalSlowdown|GpuTemperatureHigh|GpuMemoryHot'
            '|GpuPowerBrake|GpuPcieReplaysOften|GpuNvlinkErrors|GpuNvlinkDown"',
        ),
        target=('alertname="GpuDcgmHealthFailing"',),
        equal=(*HOST, "uuid"),
    ),
    Inhibition(
        reason="An incident of the GPU that pages includes the error of its link.",
        source=('alertname=~"GpuXid|GpuAmdEvent"', 'severity="critical"'),
        target=('alertname="GpuPcieUncorrectableError"',),
        equal=(*HOST, "pci"),
    ),
    Inhibition(
        reason="A model server that loses its GPU stalls.",
        source=('alertname=~"GpuXid|GpuAmdEvent"', 'severity="critical"'),
        target=('alertname="ModelServerStalled"',),
    ),
    Inhibition(
        reason="A missing GPU of a host with an incident that pages belongs to it.",
        source=('alertname="GpuXid"', 'severity="critical"'),
        target=('alertname="GpuMissing"',),
    ),
    Inhibition(
        reason="The same on AMD.",
        source=('alertname="GpuAmdEvent"', 'severity="critical"'),
        target=('alertname="GpuMissing"',),
    ),
    Inhibition(
        reason="A reboot, a GPU reset or a driver upgrade of a host in maintenance is expected, and what it causes.",
        source=('alertname="HostInMaintenance"',),
        target=(
            'alertname=~"HostSilent|HostNeverSeen|HostExporterDown|HostCollectorFailing|HostServiceFailed|HostDrifted|HostNotChecked|HostPullFailing'
            "|HostInfinibandPortDown|HostInfinibandNotMeasured|HostInfinibandPortFlapping|HostInfinibandPortFailing|HostInfinibandPortDegraded|HostNicDriverError"
            "|GpuExporterDown|GpuExporterFailing|GpuDataStale|GpuMetricsMissing|GpuCountBelowInventory|GpuMissing"
            "|GpuNotAllocatable|GpuRecoveryActionNeeded|GpuRowRemapPending|GpuPagesRetiredPending|GpuFabricNotReady|GpuFabricDomainDiffers"
            "|GpuNvlinkDown|GpuNvlinkSlow|GpuPcieUncorrectableError|FabricServiceDown"
            '|AgentComponentUnhealthy|AgentConfigBroken|MetricsDelayed|MetricsLost|LogsLost|TextfileBroken"',
        ),
    ),
    Inhibition(
        reason="A comparison with the inventory is more reliable than one with the host's own past.",
        source=('alertname="GpuCountBelowInventory"',),
        target=('alertname="GpuMissing"',),
    ),
    Inhibition(
        reason="A GPU that is missing cannot be allocated.",
        source=('alertname=~"GpuMissing|GpuCountBelowInventory"',),
        target=('alertname="GpuNotAllocatable"',),
    ),
    Inhibition(
        reason="The state of the GPUs, exporters and disks of a silent host is unknown.",
        source=('alertname=~"HostSilent|HostNeverSeen"',),
        target=('scope=~"gpu|exporter|host|pipeline"', 'alertname!~"HostSilent|HostNeverSeen|HostClockSkew|GpuXid|GpuAmdEvent"'),
    ),
    Inhibition(
        reason="An exporter that is down reports no GPUs.",
        source=('alertname=~"GpuExporterDown|GpuExporterFailing"',),
        target=('alertname=~"GpuMissing|GpuCountBelowInventory"',),
    ),
    Inhibition(
        reason="When most hosts of a cluster go silent at the same time, the cause is the network or the backend.",
        source=('alertname="ClusterSilent"',),
        target=('alertname="HostSilent"',),
        equal=("datacenter", "cluster"),
    ),
    Inhibition(
        reason="While Slurm's controller is down no host knows its jobs.",
        source=('alertname="SlurmNotAnswering"',),
        target=('alertname="JobsNotRead"',),
        equal=("datacenter", "cluster"),
    ),
)
