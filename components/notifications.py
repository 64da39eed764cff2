"""From the stack file to what alerts/ makes of it: receivers, routes, and the links of every alert. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dashboards
from alerts import notifications as described
from alerts.links import GrafanaLinks, Links
from gpu_fleet.stackfile.alerts import Alerts, Receiver
from gpu_fleet.stackfile.config import StackConfig


def links(config: StackConfig) -> Links:
    """Of a stack with `alerts` and `grafana`: links to Grafana. Its runbooks are the default, because they need no server."""
    grafana = None
    if config.grafana:
        grafana = GrafanaLinks(
            url=config.grafana.url,
            incident=dashboards.uid("incident"),
            host=dashboards.uid("host"),
            cluster=dashboards.uid("cluster"),
            logs=config.grafana.logs_data_source or (dashboards.LOKI_UID if config.rulers and config.rulers.loki else None),
            runbooks=dashboards.runbook_paths(),
        )
    runbooks = config.alerts.runbook_url if config.alerts else None
    return Links(runbooks=runbooks, grafana=grafana, has_jobs=config.jobs is not None)


def secret_names(section: Alerts) -> set[str]:
    """The secret keys that the receivers name."""
    channels = [channel for receiver in section.receivers.values() for _, channel in receiver if channel is not None]
    return {value for channel in channels for name, value in channel if name.endswith("_secret") and value is not None}


def notifications(section: Alerts, secrets: Mapping[str, Any]) -> described.Notifications:
    """Of a section with receivers. `secrets`: values of `secret_names`, as texts (then the result has to stay secret) or as what
    carries them."""
    receivers = [
        described.Receiver(name=name, channels=tuple(_channels(each, secrets))) for name, each in section.receivers.items()
    ]
    return described.Notifications(
        receiver=section.receiver or receivers[0].name,
        receivers=tuple(receivers),
        routes=tuple(described.Route(**route.model_dump()) for route in section.routes),
        group_by=section.group_by,
        group_wait=section.group_wait,
        group_interval=section.group_interval,
        repeat_interval=section.repeat_interval,
        mute_timings=tuple(
            described.MuteTiming(
                name=name,
                weekdays=timing.weekdays,
                times=tuple((each.start, each.end) for each in timing.times),
                days_of_month=timing.days_of_month,
                months=timing.months,
                years=timing.years,
                location=timing.location,
            )
            for name, timing in section.mute_timings.items()
        ),
    )


def _channels(receiver: Receiver, secrets: Mapping[str, Any]) -> Iterator[described.Channel]:
    def secret(name: str | None) -> Any:
        return None if name is None else secrets[name]

    if hook := receiver.webhook:
        yield described.Webhook(
            url=hook.url or secrets[hook.url_secret or ""],
            username=hook.username,
            password=secret(hook.password_secret),
            bearer_token=secret(hook.authorization_secret),
            send_resolved=hook.send_resolved,
        )
    if slack := receiver.slack:
        yield described.Slack(url=secrets[slack.url_secret], channel=slack.channel, send_resolved=slack.send_resolved)
    if pager := receiver.pagerduty:
        yield described.PagerDuty(routing_key=secrets[pager.routing_key_secret], send_resolved=pager.send_resolved)
    if mail := receiver.email:
        yield described.Email(
            to=mail.to,
            sender=mail.sender,
            smarthost=mail.smarthost,
            username=mail.username,
            password=secret(mail.password_secret),
            send_resolved=mail.send_resolved,
        )
