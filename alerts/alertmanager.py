"""Who is told, and what is not told twice: receivers and routes as data, and Mimir's Alertmanager configuration from them.

Pages go out at once and apart: critical alerts are grouped by host and XID and wait PAGE_WAIT only, whatever the groups of other
alerts are. Grafana's notification policy is to come from the same description. Secrets are plain strings here: the caller keeps
them secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

HOST: Final = ("datacenter", "cluster", "instance")
# The kernel tells a GPU by its address, an exporter by its uuid: the other of the two is empty, and two empty labels are equal.
GPU: Final = (*HOST, "pci", "uuid")

# One page per host and code. A second host's trouble is a page of its own and not an update of the first one's.
PAGE_GROUP: Final = (*HOST, "xid")
# Long enough for the GPUs of a baseboard that fail together to share one page, short enough to be there within a minute.
PAGE_WAIT: Final = "5s"
PAGE_INTERVAL: Final = "1m"


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """Alertmanager's JSON by POST; Opsgenie and the like are reached so. Either a user with a password or a bearer token."""

    url: str
    username: str | None = None
    password: str | None = None
    bearer_token: str | None = None
    send_resolved: bool = True


@dataclass(frozen=True, kw_only=True)
class Slack:
    url: str  # of the incoming webhook
    channel: str
    send_resolved: bool = True


@dataclass(frozen=True, kw_only=True)
class PagerDuty:
    routing_key: str  # Events API v2
    send_resolved: bool = True


@dataclass(frozen=True, kw_only=True)
class Email:
    to: str
    sender: str
    smarthost: str  # host:port
    username: str | None = None
    password: str | None = None
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
        reason="A GPU that fell off the bus is missing.",
        source=('alertname="GpuXid"', 'xid="79"'),
        target=('alertname=~"GpuMissing|GpuCountBelowInventory|GpuRecoveryActionNeeded"',),
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

_TITLE: Final = (
    "[{{ .Status | toUpper }}] {{ if eq (len .Alerts) 1 }}{{ (index .Alerts 0).Annotations.summary }}"
    "{{ else }}{{ len .Alerts }} alerts: {{ .CommonLabels.alertname }} {{ .CommonLabels.instance }}{{ end }}"
)
_TEXT: Final = (
    "{{ range .Alerts }}{{ .Annotations.summary }}\nDo: {{ .Annotations.action }}\nRunbook: "
    "{{ or .Annotations.runbook_url .Annotations.runbook }}\n\n{{ end }}"
)


def alertmanager_config(notifications: Notifications) -> dict[str, Any]:
    """The configuration as Alertmanager's file has it, for to_yaml. It holds the receivers' secrets."""
    config = {
        "route": _root(notifications),
        "receivers": [_receiver(receiver) for receiver in notifications.receivers],
        "inhibit_rules": [_inhibition(inhibition) for inhibition in INHIBITIONS],
    }
    if notifications.mute_timings:
        config["time_intervals"] = [_time_interval(timing) for timing in notifications.mute_timings]
    return config


def _root(notifications: Notifications) -> dict[str, Any]:
    routes = [_route(route) for route in notifications.routes]
    # After a route that goes on, an alert it took would reach the default receiver as well.
    if not any(route.go_on for route in notifications.routes):
        routes.append(_page({}))
    return {
        "receiver": notifications.receiver,
        "group_by": list(notifications.group_by),
        "group_wait": notifications.group_wait,
        "group_interval": notifications.group_interval,
        "repeat_interval": notifications.repeat_interval,
        "routes": routes,
    }


def _route(route: Route) -> dict[str, Any]:
    settings = {
        "group_by": list(route.group_by) if route.group_by is not None else None,
        "group_wait": route.group_wait,
        "group_interval": route.group_interval,
        "repeat_interval": route.repeat_interval,
        "mute_time_intervals": list(route.mute_timings) or None,
        "continue": route.go_on or None,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    return {"receiver": route.receiver, "matchers": list(route.matchers), **given, "routes": [_page(given)]}


def _page(given: Mapping[str, Any]) -> dict[str, Any]:
    """The branch of a route that pages take. What the route itself says of grouping counts; silence is not inherited."""
    page = {"matchers": ['severity="critical"']}
    own = {"group_by": list(PAGE_GROUP), "group_wait": PAGE_WAIT, "group_interval": PAGE_INTERVAL}
    page.update({name: value for name, value in own.items() if name not in given})
    if "mute_time_intervals" in given:
        page["mute_time_intervals"] = given["mute_time_intervals"]
    return page


def _receiver(receiver: Receiver) -> dict[str, Any]:
    configs: dict[str, Any] = {"name": receiver.name}
    for channel in receiver.channels:
        kind, settings = _channel(channel)
        configs.setdefault(kind, []).append({"send_resolved": channel.send_resolved, **settings})
    return configs


def _channel(channel: Channel) -> tuple[str, dict[str, Any]]:
    match channel:
        case Webhook():
            login: dict[str, Any] = {}
            if channel.username is not None:
                login["basic_auth"] = {"username": channel.username, "password": channel.password}
            if channel.bearer_token is not None:
                login["authorization"] = {"credentials": channel.bearer_token}
            return "webhook_configs", {"url": channel.url, **({"http_config": login} if login else {})}
        case Slack():
            return "slack_configs", {"api_url": channel.url, "channel": channel.channel, "title": _TITLE, "text": _TEXT}
        case PagerDuty():
            return "pagerduty_configs", {
                "routing_key": channel.routing_key,
                "description": _TITLE,
                "severity": '{{ or .CommonLabels.severity "error" }}',
                "details": {"what to do": _TEXT},
            }
        case Email():
            login = {"auth_username": channel.username, "auth_password": channel.password} if channel.username else {}
            return "email_configs", {
                "to": channel.to,
                "from": channel.sender,
                "smarthost": channel.smarthost,
                **login,
                "headers": {"Subject": _TITLE},
                "text": _TEXT,
            }


def _inhibition(inhibition: Inhibition) -> dict[str, Any]:
    return {
        "source_matchers": list(inhibition.source),
        "target_matchers": list(inhibition.target),
        "equal": list(inhibition.equal),
    }


def _time_interval(timing: MuteTiming) -> dict[str, Any]:
    interval: dict[str, Any] = {"location": timing.location}
    if timing.weekdays:
        interval["weekdays"] = list(timing.weekdays)
    if timing.times:
        interval["times"] = [{"start_time": start, "end_time": end} for start, end in timing.times]
    if timing.days_of_month:
        interval["days_of_month"] = [str(day) for day in timing.days_of_month]
    return {"name": timing.name, "time_intervals": [interval]}
