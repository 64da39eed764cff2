"""Who is told, and what is not told twice: receivers, routes, mute timings and inhibitions as data.

alertmanager.py makes Mimir's Alertmanager configuration of it, components/grafana/policy.py Grafana's contact points and
notification policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

# A text that nobody may see. Who renders it only puts it in its place, so the caller may give whatever carries the text later.
Secret = Any

HOST: Final = ("datacenter", "cluster", "instance")
# The kernel tells a GPU by its address, an exporter by its uuid: the other of the two is empty, and two empty labels are equal.
GPU: Final = (*HOST, "pci", "uuid")

# Pages go out at once and apart, whatever the groups of other alerts are: one per host and code. A second host's trouble is a
# page of its own and not an update of the first one's.
PAGE_GROUP: Final = (*HOST, "xid")
# Long enough for the GPUs of a baseboard that fail together to share one page, short enough to be there within a minute.
PAGE_WAIT: Final = "5s"
PAGE_INTERVAL: Final = "1m"

# The texts of Slack, mail and pager, in the language that Alertmanager and Grafana share.
TEMPLATE_FILE: Final = Path(__file__).parent / "templates" / "gpu-fleet.tmpl"
TITLE: Final = '{{ template "gpu_fleet.title" . }}'
TEXT: Final = '{{ template "gpu_fleet.text" . }}'


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """Alertmanager's JSON by POST; Opsgenie and the like are reached so. Either a user with a password or a bearer token."""

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
    """`channels`: all of them are told; none means silence."""

    name: str
    channels: tuple[Channel, ...]


@dataclass(frozen=True, kw_only=True)
class Route:
    """`matchers`: all must match, `severity=critical`. None: as for all alerts. `go_on`: try the next route too."""

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
    """A time when nobody is told; every condition given must hold, an empty one always does. `times`: (start, end) as HH:MM."""

    name: str
    weekdays: tuple[str, ...] = ()
    times: tuple[tuple[str, str], ...] = ()
    days_of_month: tuple[int, ...] = ()
    months: tuple[str, ...] = ()
    years: tuple[int, ...] = ()
    location: str = "UTC"


@dataclass(frozen=True, kw_only=True)
class Notifications:
    """`receiver`: name of the one that gets what no route takes."""

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
    """While an alert of `source` fires, those of `target` with equal labels `equal` tell nobody."""

    reason: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    equal: tuple[str, ...] = HOST


# One incident, one page.
INHIBITIONS: Final = (
    Inhibition(
        reason="A GPU off the bus explains what else the driver logs about it.",
        source=('alertname="GpuXid"', 'xid="79"'),
        target=('alertname="GpuXid"', 'xid!="79"'),
        equal=GPU,
    ),
    Inhibition(
        reason="An uncorrectable memory error brings its own follow-ups: contained or not, a row replaced, where it lay.",
        source=('alertname="GpuXid"', 'xid="48"'),
        target=('alertname="GpuXid"', 'xid=~"63|94|95|171|172"'),
        equal=GPU,
    ),
    Inhibition(
        reason="Who resets the GPU or reboots the node need not be told of the programs that died with it.",
        source=('alertname="GpuXid"', 'severity="critical"'),
        target=('alertname="GpuXid"', 'severity="warning"'),
        equal=GPU,
    ),
    Inhibition(
        reason="The kernel names the GPU; an exporter that does not know its address adds nothing to that.",
        source=('alertname="GpuXid"', 'pci!=""'),
        target=('alertname="GpuXid"', 'pci=""'),
        equal=(*HOST, "xid"),
    ),
    Inhibition(
        reason="A disk that is nearly full need not be called rather full as well.",
        source=('alertname="HostDiskFilling"', 'severity="critical"'),
        target=('alertname="HostDiskFilling"', 'severity="warning"'),
        equal=(*HOST, "mountpoint"),
    ),
    Inhibition(
        reason="What the driver asks for after an XID that pages is part of that page's incident.",
        source=('alertname="GpuXid"', 'severity="critical"'),
        target=('alertname="GpuDriverAsksForAction"',),
        equal=GPU,
    ),
    Inhibition(
        reason="Whom the driver's own words page (XID 154: what it asks for) need not be told that it said something.",
        source=('alertname="GpuDriverAsksForAction"',),
        target=('alertname="GpuXid"', 'xid="154"'),
        equal=GPU,
    ),
    Inhibition(
        reason="While an XID pages, what it leaves behind (lost memory, a GPU gone or waiting for a reset) is not told too.",
        source=('alertname="GpuXid"', 'severity="critical"'),
        target=(
            'alertname=~"GpuMissing|GpuCountBelowInventory|GpuRecoveryActionNeeded|GpuEccUncorrected|GpuRowRemapPending'
            '|GpuExporterFailing|GpuDataStale"',
        ),
    ),
    Inhibition(
        reason="Below the inventory says more than below its own past.",
        source=('alertname="GpuCountBelowInventory"',),
        target=('alertname="GpuMissing"',),
    ),
    Inhibition(
        reason="A host that is silent tells nothing true about its GPUs, exporters and disks.",
        source=('alertname=~"HostSilent|HostNeverSeen"',),
        target=('scope=~"gpu|exporter|host|pipeline"', 'alertname!~"HostSilent|HostNeverSeen|GpuXid"'),
    ),
    Inhibition(
        reason="An exporter that is down counts no GPUs.",
        source=('alertname=~"GpuExporterDown|GpuExporterFailing"',),
        target=('alertname=~"GpuMissing|GpuCountBelowInventory"',),
    ),
    Inhibition(
        reason="When most hosts of a cluster fall silent together, the network or the backend is the incident.",
        source=('alertname="ClusterSilent"',),
        target=('alertname="HostSilent"',),
        equal=("datacenter", "cluster"),
    ),
)
