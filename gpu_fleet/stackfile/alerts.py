"""Section `alerts`: which servers evaluate the alerts, who is notified, when notifications are muted, overrides of our rules.

Receivers, routes and mute timings keep Alertmanager's meaning. They are described here alone: alerts/alertmanager.py and
components/grafana/policy.py make Mimir's Alertmanager configuration and Grafana's notification policy of these very objects.
Another kind of channel is a class here, what both get of it in alerts/channels.py, and a text in alerts/templates/ where it has a
markup of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from gpu_fleet.stackfile.values import (
    Label,
    LabelText,
    Matcher,
    SecretName,
    Section,
    Texts,
    TimeOfDay,
    Username,
    WebUrl,
    duration,
    rule_duration,
)

EmailAddress = Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+$", examples=["gpu-oncall@example.com"])]
Wait = Annotated[str, *duration("0s", "24h", "30s")]
Interval = Annotated[str, *duration("1m", "168h", "4h")]
Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]

Month = Literal[
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december"
]


class Channel(Section):
    """A secret is a key of its own: a key that ends with `Secret` has its name."""

    send_resolved: bool = True
    """Notify when an alert is resolved, too."""

    @property
    def secrets(self) -> Iterator[tuple[str, str]]:
        """(key, name of the secret) of each that it names."""
        for name, field in type(self).model_fields.items():
            if name.endswith("_secret") and (secret := getattr(self, name)):
                yield field.alias or name, secret


class Webhook(Channel):
    """A web server that takes Alertmanager's JSON; Opsgenie and similar services are reached this way."""

    url: WebUrl | None = None
    """Where to post. A URL that is itself a secret goes into urlSecret."""
    url_secret: SecretName | None = None
    """Name of the secret key that holds the URL."""
    username: Username | None = None
    """User of basic authentication."""
    password_secret: SecretName | None = None
    """Name of the secret key that holds the password of basic authentication."""
    authorization_secret: SecretName | None = None
    """Name of the secret key that holds the bearer token."""


class Slack(Channel):
    url_secret: SecretName = Field(examples=["slackUrl"])
    """Name of the secret key that holds the incoming-webhook URL."""
    channel: str = Field(min_length=1, examples=['"#gpu-alerts"'])
    """Channel or user to write to."""


class Teams(Channel):
    url_secret: SecretName = Field(examples=["teamsUrl"])
    """Name of the secret key that holds the URL of the channel's workflow "when a Teams webhook request is received"."""


class PagerDuty(Channel):
    routing_key_secret: SecretName = Field(examples=["pagerdutyKey"])
    """Name of the secret key that holds the integration key (Events API v2)."""


class Email(Channel):
    to: EmailAddress
    """Who gets the mail."""
    sender: EmailAddress = Field(alias="from")
    """Its sender."""
    smarthost: str = Field(pattern=r"^[^\s:]+:\d{1,5}$", examples=["smtp.example.com:587"])
    """Mail server and port."""
    username: Username | None = None
    """User at the mail server."""
    password_secret: SecretName | None = None
    """Name of the secret key that holds the user's password."""


class Receiver(Section):
    """Who is notified, through one or several channels. One without channels, `nobody: {}`, drops the alerts of its routes."""

    webhook: Webhook | None = None
    """A web server that takes Alertmanager's JSON."""
    slack: Slack | None = None
    """A Slack channel."""
    teams: Teams | None = None
    """A channel of Microsoft Teams."""
    pagerduty: PagerDuty | None = None
    """A PagerDuty service."""
    email: Email | None = None
    """A mail address."""

    @property
    def channels(self) -> dict[str, Channel]:
        """Those that are set, by their key."""
        return {kind: channel for kind, channel in self if channel is not None}


class Route(Section):
    """Alerts that match go to this receiver; the first route that matches wins unless it has `continue`."""

    matchers: Annotated[tuple[Matcher, ...], Texts] = Field(min_length=1, examples=["[severity=critical]"])
    """All of them must match, as in Alertmanager."""
    receiver: str
    """Name under `receivers`."""
    group_by: Annotated[tuple[Label, ...], Texts] | None = None
    """Labels whose values make one notification; default: `groupBy` of the section."""
    group_wait: Wait | None = None
    """How long to wait for more alerts of a new group."""
    group_interval: Interval | None = None
    """How long to wait before notifying of new alerts in a group."""
    repeat_interval: Interval | None = None
    """How long until an alert that still fires is sent again."""
    mute_timings: Annotated[tuple[str, ...], Texts] = ()
    """Names under `muteTimings`: in these times the route is silent."""
    go_on: bool = Field(default=False, alias="continue")
    """Try the routes below as well."""


class TimeRange(Section):
    start: TimeOfDay
    """First minute."""
    end: TimeOfDay
    """The minute after the last; 24:00 is midnight."""


class MuteTiming(Section):
    """A time in which nobody is notified; every condition given must hold."""

    weekdays: Annotated[tuple[Weekday, ...], Texts] = ()
    """Days of the week; default: all."""
    times: Annotated[tuple[TimeRange, ...], Texts] = ()
    """Times of the day; default: the whole day. A range does not cross midnight: write two."""
    days_of_month: Annotated[tuple[Annotated[int, Field(ge=1, le=31)], ...], Texts] = ()
    """Days of the month; default: all."""
    months: Annotated[tuple[Month, ...], Texts] = ()
    """Months of the year; default: all."""
    years: Annotated[tuple[Annotated[int, Field(ge=2000, le=9999)], ...], Texts] = ()
    """Years; default: all. With months and daysOfMonth it is a maintenance window that happens once."""
    location: str = Field(default="UTC", examples=["Europe/Berlin"])
    """Time zone."""


class RuleOverride(Section):
    """What this stack changes in one of our alerts. What is left out stays as it is in `alerts/`."""

    threshold: float | None = Field(default=None, allow_inf_nan=False, examples=[88])
    """Number that the alert's value is compared with, in the unit of its query."""
    hold: Annotated[str, *rule_duration("0s", "168h", "15m")] | None = Field(default=None, alias="for")
    """How long the condition must hold until the alert fires."""
    severity: Literal["critical", "warning", "info"] | None = None
    """Severity, by which routes and templates select."""
    labels: dict[Label, LabelText] = Field(default={}, examples=[{"team": "ml"}])
    """Labels added to the alert."""
    enabled: bool = True
    """false removes the alert."""


class Alerts(Section):
    """Who evaluates the alerts and who is notified."""

    targets: Annotated[tuple[Literal["ruler", "grafana"], ...], Texts] = Field(default=("ruler",), min_length=1)
    """Where alerts are evaluated: `ruler` (gpu-fleet:rulers) or `grafana` (gpu-fleet:grafana). Recording rules are Mimir's."""
    runbook_url: WebUrl | None = None
    """Where this repository's files can be read in a browser, for links to runbooks. Default: those in gpu-fleet:grafana."""
    receiver: str | None = None
    """Receiver of alerts that match no route; default: the only one."""
    receivers: dict[str, Receiver] = Field(default={})
    """Who is notified, by name."""
    routes: Annotated[tuple[Route, ...], Texts] = ()
    """Which alerts go to which receiver; the first route that matches wins."""
    group_by: Annotated[tuple[Label, ...], Texts] = ("alertname", "datacenter", "cluster")
    """Labels whose values make one notification."""
    group_wait: Wait = "30s"
    """How long to wait for more alerts of a new group."""
    group_interval: Interval = "5m"
    """How long to wait before notifying of new alerts in a group."""
    repeat_interval: Interval = "4h"
    """How long until an alert that still fires is sent again."""
    mute_timings: dict[str, MuteTiming] = Field(default={})
    """Times in which nobody is notified, by name; routes refer to them."""
    labels: dict[Label, LabelText] = Field(default={}, examples=[{"team": "gpu"}])
    """Labels added to every alert that does not have them."""
    rules: dict[str, RuleOverride] = Field(default={}, examples=[{"GpuTemperatureHigh": {"threshold": 88, "for": "15m"}}])
    """Changes to our alerts, by name. One of several rules of an alert: with its severity or XID, as `HostDiskFilling critical`,
    `GpuXid 79`."""

    @property
    def default_receiver(self) -> str:
        """Of a section with receivers."""
        return self.receiver or next(iter(self.receivers))

    @property
    def secret_names(self) -> set[str]:
        """Of the secrets that the receivers name."""
        channels = [channel for receiver in self.receivers.values() for channel in receiver.channels.values()]
        return {secret for channel in channels for _, secret in channel.secrets}
