"""What Alertmanager and Grafana get of each kind of channel that a stack file can name, and the texts in it.

Both have the same texts, except:

- Grafana's alerts come with a link that silences them, where Alertmanager's have a command.
- Mail from Grafana is sent by the server of its own configuration (smtp): `from` and `smarthost` have no meaning there.
- Teams: Alertmanager colours a card red or green, whatever the severity, and has no fields for links: they are in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from alerts import texts
from gpu_fleet.stackfile.alerts import Channel, Email, PagerDuty, Receiver, Slack, Teams, Webhook

# The texts of all notifications, in the template language that Alertmanager and Grafana share.
TEMPLATE_FILE: Final = Path(__file__).parent / "templates" / "gpu-fleet.tmpl"
# What Grafana has of its own: each of its alerts comes with a link that silences it, where Alertmanager's have a command.
# Source: Grafana 12, notification template reference (Alert: SilenceURL), read 2026-11-26.
_GRAFANA_SILENCE: Final = {
    "silence": "{{ .SilenceURL }}",
    "slack_silence": "{{ .SilenceURL }}",
    "html_silence": '<a href="{{ .SilenceURL }}">{{ .SilenceURL }}</a>',
    "teams_silence": "[{{ .SilenceURL }}]({{ .SilenceURL }})",
}
TITLE: Final = '{{ template "gpu_fleet.title" . }}'
TEXT: Final = '{{ template "gpu_fleet.text" . }}'
HTML: Final = '{{ template "gpu_fleet.html" . }}'
SLACK_TITLE: Final = '{{ template "gpu_fleet.slack_title" . }}'
SLACK_TEXT: Final = '{{ template "gpu_fleet.slack" . }}'
TEAMS_TEXT: Final = '{{ template "gpu_fleet.teams" . }}'
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
    text = texts.read(TEMPLATE_FILE)
    for name, link in _GRAFANA_SILENCE.items():
        ours = re.compile(rf'({{{{ define "gpu_fleet\.{name}" }}}}).*({{{{ end }}}})$', re.MULTILINE)
        text, count = ours.subn(lambda found, link=link: f"{found[1]}{link}{found[2]}", text)  # type: ignore[misc]
        assert count == 1, name
    return text


# A value of the mapping of secrets: it is inserted and never read, so it may be any object that resolves to the text later.
Secrets = Mapping[str, Any]


# Alertmanager's settings, and the arguments of Grafana's integration.
Both = tuple[dict[str, Any], dict[str, Any]]


def _webhook(webhook: Webhook, secrets: Secrets) -> Both:
    """Alertmanager's JSON by POST. Either a user with a password or a bearer token."""
    url = webhook.url or secrets[webhook.url_secret or ""]
    login: dict[str, Any] = {}
    arguments = {"url": url, "title": TITLE, "message": TEXT}
    if webhook.password_secret:
        password = secrets[webhook.password_secret]
        login["basic_auth"] = {"username": webhook.username, "password": password}
        arguments |= {"basic_auth_user": webhook.username, "basic_auth_password": password}
    if webhook.authorization_secret:
        token = secrets[webhook.authorization_secret]
        login["authorization"] = {"credentials": token}
        arguments |= {"authorization_scheme": "Bearer", "authorization_credentials": token}
    return {"url": url, **({"http_config": login} if login else {})}, arguments


def _slack(slack: Slack, secrets: Secrets) -> Both:
    url = secrets[slack.url_secret]
    settings = {
        "api_url": url,
        "channel": slack.channel,
        "color": SLACK_COLOR,
        "title": SLACK_TITLE,
        "title_link": DASHBOARD,
        "text": SLACK_TEXT,
        "fallback": TITLE,
    }
    return settings, {"url": url, "recipient": slack.channel, "color": SLACK_COLOR, "title": SLACK_TITLE, "text": SLACK_TEXT}


def _teams(teams: Teams, secrets: Secrets) -> Both:
    """A card, posted by a workflow. Alertmanager's `msteams_configs` are for connectors, which Microsoft has retired.

    Source: Alertmanager 0.28, Configuration: msteamsv2_config; terraform-provider-grafana 4.44.0, contact_point: teams; both read
    2026-11-29.
    """
    url = secrets[teams.url_secret]
    return {"webhook_url": url, "title": TITLE, "text": TEAMS_TEXT}, {"url": url, "title": TITLE, "message": TEAMS_TEXT}


def _pagerduty(pager: PagerDuty, secrets: Secrets) -> Both:
    """Events API v2."""
    key = secrets[pager.routing_key_secret]
    settings = {
        "routing_key": key,
        "description": TITLE,
        "severity": PAGER_SEVERITY,
        **PAGER_FIELDS,
        "details": PAGER_DETAILS,
        "client": "GPU Fleet",
        "client_url": DASHBOARD,
        "links": [{"text": text, "href": href} for text, href in PAGER_LINKS.items()],
    }
    arguments = {
        "integration_key": key,
        "summary": TITLE,
        "severity": PAGER_SEVERITY,
        **{"class_" if name == "class" else name: text for name, text in PAGER_FIELDS.items()},
        "details": PAGER_DETAILS,
        "client": "GPU Fleet",
        "client_url": DASHBOARD,
    }
    return settings, arguments


def _email(email: Email, secrets: Secrets) -> Both:
    login: dict[str, Any] = {}
    if email.password_secret:
        login = {"auth_username": email.username, "auth_password": secrets[email.password_secret]}
    settings = {
        "to": email.to,
        "from": email.sender,
        "smarthost": email.smarthost,
        **login,
        "headers": {"Subject": TITLE},
        "text": TEXT,
        "html": HTML,
    }
    return settings, {"addresses": [email.to], "subject": TITLE, "message": TEXT, "single_email": True}


@dataclass(frozen=True)
class Kind:
    """`alertmanager`: the key of a receiver, `..._configs`. `grafana`: the argument of grafana.alerting.ContactPoint."""

    alertmanager: str
    grafana: str
    both: Callable[[Any, Secrets], Both]


KINDS: Final[Mapping[type[Channel], Kind]] = {
    Webhook: Kind("webhook_configs", "webhooks", _webhook),
    Slack: Kind("slack_configs", "slacks", _slack),
    Teams: Kind("msteamsv2_configs", "teams", _teams),
    PagerDuty: Kind("pagerduty_configs", "pagerduties", _pagerduty),
    Email: Kind("email_configs", "emails", _email),
}


def receiver_of_alertmanager(name: str, receiver: Receiver, secrets: Secrets) -> dict[str, Any]:
    """As Alertmanager's configuration has it."""
    configs: dict[str, Any] = {"name": name}
    for channel in receiver.channels.values():
        kind = KINDS[type(channel)]
        settings, _ = kind.both(channel, secrets)
        configs[kind.alertmanager] = [{"send_resolved": channel.send_resolved, **settings}]
    return configs


def contact_point(receiver: Receiver, secrets: Secrets) -> dict[str, Any]:
    """As arguments of grafana.alerting.ContactPoint."""
    integrations = {}
    for channel in receiver.channels.values():
        kind = KINDS[type(channel)]
        _, arguments = kind.both(channel, secrets)
        integrations[kind.grafana] = [{**arguments, "disable_resolve_message": not channel.send_resolved}]
    return integrations
