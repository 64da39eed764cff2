"""Receivers of every kind, as a stack file has them, for what is made of them."""

from __future__ import annotations

from typing import Any

from gpu_fleet.stackfile.alerts import Alerts

# Every kind of channel, with all that it takes.
EVERYONE: dict[str, Any] = {
    "webhook": {"url": "https://a.example.com/", "username": "u", "passwordSecret": "webhookPassword"},
    "slack": {"urlSecret": "slackUrl", "channel": "#gpu"},
    "teams": {"urlSecret": "teamsUrl"},
    "pagerduty": {"routingKeySecret": "pagerdutyKey"},
    "email": {
        "to": "a@example.com",
        "from": "b@example.com",
        "smarthost": "smtp.example.com:587",
        "username": "u",
        "passwordSecret": "smtpPassword",
    },
}
SECRETS = {
    "webhookPassword": "p",
    "deskToken": "t",
    "slackUrl": "https://hooks.example.com/x",
    "teamsUrl": "https://teams.example.com/workflows/1?sig=x",
    "pagerdutyKey": "the-key",
    "smtpPassword": "p",
}


def section(**given: Any) -> Alerts:
    """Of a stack file, by its keys there."""
    return Alerts.model_validate(given)
