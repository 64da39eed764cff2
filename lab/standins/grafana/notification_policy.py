"""grafana:alerting/notificationPolicy:NotificationPolicy: the whole tree, of which an organisation has one."""

from __future__ import annotations

from typing import Any

from lab.standins.grafana.resource import ORGANISATION, GrafanaResource, id_of, is_zero, parts_of
from lab.standins.plugin import Call
from lab.standins.properties import Properties
from lab.standins.schema import ListOf, Object, Property

PATH = "/api/v1/provisioning/policies"
DEEPEST = 5  # levels below the root that the official plugin has types for
WAITS = {"groupWait": "group_wait", "groupInterval": "group_interval", "repeatInterval": "repeat_interval"}
FIELDS = {
    **WAITS,
    "contactPoint": "receiver",
    "groupBies": "group_by",
    "muteTimings": "mute_time_intervals",
    "activeTimings": "active_time_intervals",
    "continue": "continue",
}


def _policy(level: int) -> Object:
    """Every level is a type of its own, as Terraform, from which the official plugin is made, has no recursive ones."""
    name = "NotificationPolicy" + "Policy" * level
    matcher = Object(
        f"grafana:alerting/{name}Matcher:{name}Matcher",
        {
            "label": Property(required=True),
            "match": Property(required=True, values=("=", "!=", "=~", "!~")),
            "value": Property(required=True),
        },
    )
    deeper = {"policies": Property(type=ListOf(_policy(level + 1)))} if level < DEEPEST else {}
    return Object(
        f"grafana:alerting/{name}:{name}",
        {
            "contactPoint": Property(),
            "groupBies": Property(type=ListOf("string"), required=level == DEEPEST),
            "matchers": Property(type=ListOf(matcher)),
            "continue": Property(type="boolean"),
            "muteTimings": Property(type=ListOf("string")),
            "activeTimings": Property(type=ListOf("string")),
            **dict.fromkeys(WAITS, Property()),
            **deeper,
        },
    )


INPUTS = {
    "contactPoint": Property(required=True),
    "groupBies": Property(type=ListOf("string"), required=True),
    **dict.fromkeys(WAITS, Property()),
    "policies": Property(type=ListOf(_policy(1))),
    "disableProvenance": Property(type="boolean", default=False),
    "orgId": ORGANISATION,
}
OUTPUTS: dict[str, Property] = {}


class NotificationPolicy(GrafanaResource):
    type_name = "grafana:alerting/notificationPolicy:NotificationPolicy"
    inputs = INPUTS
    outputs = OUTPUTS

    def comparable(self, inputs: Properties) -> Properties:
        result = super().comparable(inputs)
        if isinstance(result.get("policies"), list):
            result["policies"] = [_comparable(policy) for policy in result["policies"]]
        return result

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        organisation = self.grafana.organisation(inputs)
        return id_of(organisation, "policy"), self._put(organisation, inputs)

    def update(self, call: Call, id: str, olds: Properties, news: Properties) -> Properties:
        return self._put(parts_of(id)[0], news)

    def read(self, call: Call, id: str, inputs: Properties, outputs: Properties) -> tuple[Properties, Properties] | None:
        """Of a tree without routes the official plugin reads none: those of the state stay, and their loss is not seen.
        Source: terraform-provider-grafana 4.44.0, packNotifPolicy."""
        tree = self.grafana.get(PATH, parts_of(id)[0])
        kept = {"policies": outputs["policies"]} if "policies" in outputs else {}
        live = {**kept, **_shown(tree), "disableProvenance": not tree.get("provenance")}
        return self.refreshed(inputs, live), live

    def delete(self, call: Call, id: str, outputs: Properties) -> None:
        """Back to the tree that a new Grafana has."""
        self.grafana.change("DELETE", PATH, parts_of(id)[0])

    def _put(self, organisation: str, inputs: Properties) -> Properties:
        self.grafana.change("PUT", PATH, organisation, _route(inputs), editable=bool(inputs.get("disableProvenance")))
        return {}


def _comparable(policy: Any) -> Any:
    """Matchers are a set; an alert has to match all of them."""
    if not isinstance(policy, dict):
        return policy
    policy = dict(policy)
    if isinstance(policy.get("matchers"), list):
        policy["matchers"] = sorted(policy["matchers"], key=str)
    if isinstance(policy.get("policies"), list):
        policy["policies"] = [_comparable(child) for child in policy["policies"]]
    return policy


def _route(policy: Properties) -> dict[str, Any]:
    route = {field: policy[name] for name, field in FIELDS.items() if not is_zero(policy.get(name))}
    if policy.get("matchers"):
        route["object_matchers"] = [[matcher["label"], matcher["match"], matcher["value"]] for matcher in policy["matchers"]]
    if policy.get("policies"):
        route["routes"] = [_route(child) for child in policy["policies"]]
    return route


def _shown(route: dict[str, Any]) -> Properties:
    shown = {name: route[field] for name, field in FIELDS.items() if not is_zero(route.get(field))}
    if route.get("object_matchers"):
        names = ("label", "match", "value")
        shown["matchers"] = [dict(zip(names, matcher, strict=True)) for matcher in route["object_matchers"]]
    if route.get("routes"):
        shown["policies"] = [_shown(child) for child in route["routes"]]
    return shown
