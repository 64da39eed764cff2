"""grafana:alerting/contactPoint:ContactPoint: one name, any number of integrations behind it.

Of the official plugin's integrations those of our receivers: email, PagerDuty, Slack, Teams, webhook.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lab.standins.grafana.client import quoted
from lab.standins.grafana.resource import ORGANISATION, GrafanaResource, id_of, is_zero, parts_of, pruned
from lab.standins.plugin import Call
from lab.standins.properties import UNKNOWN, Properties
from lab.standins.schema import ListOf, MapOf, Object, Problem, Property

PATH = "/api/v1/provisioning/contact-points"
FLAG = Property(type="boolean")
SECRET = Property(secret=True)
# Of every integration; `settings` are further settings under Grafana's own names.
COMMON = {"uid": Property(), "disableResolveMessage": FLAG, "settings": Property(type=MapOf("string"), secret=True)}


@dataclass(frozen=True)
class Integration:
    """`fields`: ours. `renamed`: those that have another name in Grafana's settings."""

    type: str
    schema: str
    fields: Mapping[str, Property]
    renamed: Mapping[str, str]

    @property
    def object(self) -> Object:
        name = f"ContactPoint{self.schema}"
        return Object(f"grafana:alerting/{name}:{name}", {**COMMON, **self.fields})


def _texts(*names: str) -> dict[str, Property]:
    return dict.fromkeys(names, Property())


INTEGRATIONS = {
    "emails": Integration(
        "email",
        "Email",
        {
            "addresses": Property(type=ListOf("string"), required=True),
            "singleEmail": FLAG,
            **_texts("message", "subject"),
        },
        {},
    ),
    "pagerduties": Integration(
        "pagerduty",
        "Pagerduty",
        {
            "integrationKey": Property(required=True, secret=True),
            "details": Property(type=MapOf("string")),
            **_texts("severity", "class", "component", "group", "summary", "source", "client", "clientUrl", "url"),
        },
        {"clientUrl": "client_url"},
    ),
    "slacks": Integration(
        "slack",
        "Slack",
        {
            "url": SECRET,
            "token": SECRET,
            **_texts("endpointUrl", "recipient", "text", "title", "username", "iconEmoji", "iconUrl", "color"),
            **_texts("mentionChannel", "mentionUsers", "mentionGroups"),
        },
        {"iconEmoji": "icon_emoji", "iconUrl": "icon_url"},
    ),
    "teams": Integration(
        "teams",
        "Team",
        {"url": Property(required=True, secret=True), **_texts("message", "sectionTitle", "title")},
        {"sectionTitle": "sectiontitle"},
    ),
    "webhooks": Integration(
        "webhook",
        "Webhook",
        {
            "url": Property(required=True),
            "httpMethod": Property(),
            "basicAuthUser": Property(),
            "basicAuthPassword": SECRET,
            "authorizationScheme": Property(),
            "authorizationCredentials": SECRET,
            "maxAlerts": Property(type="integer"),
            "headers": Property(type=MapOf("string")),
            **_texts("message", "title"),
        },
        {
            "basicAuthUser": "username",
            "basicAuthPassword": "password",
            "authorizationScheme": "authorization_scheme",
            "authorizationCredentials": "authorization_credentials",
        },
    ),
}
INPUTS = {
    "name": Property(replaces=True),
    "disableProvenance": Property(type="boolean", default=False, replaces=True),
    **{name: Property(type=ListOf(integration.object)) for name, integration in INTEGRATIONS.items()},
    "orgId": ORGANISATION,
}
OUTPUTS: dict[str, Property] = {}


class ContactPoint(GrafanaResource):
    type_name = "grafana:alerting/contactPoint:ContactPoint"
    inputs = INPUTS
    outputs = OUTPUTS
    autonamed = "name"

    def check(self, inputs: Properties) -> Iterator[Problem]:
        if not any(inputs.get(name) for name in INTEGRATIONS):
            yield Problem("", f"one of `{','.join(INTEGRATIONS)}` must be specified")

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        organisation = self.grafana.organisation(inputs)
        return id_of(organisation, inputs["name"]), self._converge(organisation, {}, inputs)

    def update(self, call: Call, id: str, olds: Properties, news: Properties) -> Properties:
        return self._converge(parts_of(id)[0], olds, news)

    def read(self, call: Call, id: str, inputs: Properties, outputs: Properties) -> tuple[Properties, Properties] | None:
        organisation, name = parts_of(id)
        points = self.grafana.get(PATH, organisation, name=name)
        if not points:
            return None
        live = {"name": name, "disableProvenance": not any(point.get("provenance") for point in points)}
        for kind, integration in INTEGRATIONS.items():
            live[kind] = _in_order(
                [_shown(point, integration) for point in points if point["type"] == integration.type], outputs.get(kind, [])
            )
        as_inputs = {**live, **{kind: [_without_uid(item) for item in live[kind]] for kind in INTEGRATIONS}}
        shown = {name: value for name, value in live.items() if not is_zero(value) or name in outputs}
        return self.refreshed(inputs, as_inputs), shown

    def delete(self, call: Call, id: str, outputs: Properties) -> None:
        organisation, name = parts_of(id)
        for point in self.grafana.get(PATH, organisation, name=name):
            self.grafana.change("DELETE", f"{PATH}/{quoted(point['uid'])}", organisation, missing_ok=True)

    def _converge(self, organisation: str, olds: Properties, news: Properties) -> Properties:
        """A changed integration is created again under another uid, before the old one is deleted: to Terraform's SDK, below the
        official plugin, integrations are a set, and one that changed is another one."""
        outputs: Properties = {}
        going: list[str] = []
        for kind, integration in INTEGRATIONS.items():
            before = list(olds.get(kind, []))
            for item in news.get(kind, []):
                same = next((old for old in before if pruned(_without_uid(old)) == pruned(item)), None)
                if same is not None:
                    before.remove(same)
                uid = self._save(organisation, same["uid"] if same else "", integration, item, news)
                outputs.setdefault(kind, []).append({**item, "uid": uid})
            going += [item["uid"] for item in before]
        for uid in going:
            self.grafana.change("DELETE", f"{PATH}/{quoted(uid)}", organisation)
        return outputs

    def _save(self, organisation: str, uid: str, integration: Integration, item: Properties, inputs: Properties) -> str:
        body = {
            "uid": uid,
            "name": inputs["name"],
            "type": integration.type,
            "disableResolveMessage": bool(item.get("disableResolveMessage")),
            "settings": _settings(item, integration),
        }
        editable = bool(inputs.get("disableProvenance"))
        if not uid:
            return self.grafana.change("POST", PATH, organisation, body, editable=editable)["uid"]
        self.grafana.change("PUT", f"{PATH}/{quoted(uid)}", organisation, body, editable=editable)
        return uid


# Sent where the program says nothing: the official plugin leaves out empty texts and sets alone.
ZEROS = {"boolean": False, "integer": 0}


def _settings(item: Properties, integration: Integration) -> dict[str, Any]:
    settings = {}
    for name, field in integration.fields.items():
        value = item.get(name)
        if is_zero(value):
            value = ZEROS.get(field.type) if isinstance(field.type, str) else None
        if value is not None:
            settings[integration.renamed.get(name, name)] = ";".join(value) if name == "addresses" else value
    return settings | item.get("settings", {})


def _shown(point: dict[str, Any], integration: Integration) -> Properties:
    settings = dict(point["settings"])
    shown: Properties = {"uid": point["uid"], "disableResolveMessage": point.get("disableResolveMessage", False)}
    for name in integration.fields:
        value = settings.pop(integration.renamed.get(name, name), None)
        if value is not None:
            shown[name] = value.split(";") if name == "addresses" else value
    return {**shown, "settings": {name: str(value) for name, value in settings.items()}} if settings else shown


def _in_order(items: list[Properties], before: list[Properties]) -> list[Properties]:
    """As they were, with the secrets that Grafana does not give back; what is new comes last."""
    known = {item["uid"]: item for item in before if item.get("uid", UNKNOWN) != UNKNOWN}
    places = {uid: place for place, uid in enumerate(known)}
    ordered = sorted(items, key=lambda item: places.get(item["uid"], len(places)))
    return [
        {name: known.get(item["uid"], {}).get(name, value) if value == "[REDACTED]" else value for name, value in item.items()}
        for item in ordered
    ]


def _without_uid(item: Properties) -> Properties:
    return {name: value for name, value in item.items() if name != "uid"}
