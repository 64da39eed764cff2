"""Contact points: /api/v1/provisioning/contact-points. Several with one name are one receiver with several integrations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lab.grafana.api.call import Answer, Call, Route
from lab.grafana.api.policies import receivers_of
from lab.grafana.errors import ApiError
from lab.grafana.store import Store, new_uid

REDACTED = "[REDACTED]"


@dataclass(frozen=True)
class Integration:
    """`needs`: a setting it cannot be without, and what Grafana says then. `secret`: settings that are never shown."""

    needs: Mapping[str, str]
    secret: tuple[str, ...] = ()


INTEGRATIONS = {
    "email": Integration({"addresses": "could not find addresses in settings"}),
    "pagerduty": Integration({"integrationKey": "could not find integration key property in settings"}, ("integrationKey",)),
    "slack": Integration({}, ("token", "url")),
    "teams": Integration({"url": "could not find url property in settings"}, ("url",)),
    "webhook": Integration({"url": "required field 'url' is not specified"}, ("password", "authorization_credentials")),
}


class ContactPoints:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._points: list[dict[str, Any]] = store.data["contact_points"]

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/provisioning/contact-points", self.all),
            Route("POST", "/api/v1/provisioning/contact-points", self.create),
            Route("PUT", "/api/v1/provisioning/contact-points/{uid}", self.update),
            Route("DELETE", "/api/v1/provisioning/contact-points/{uid}", self.delete),
        ]

    def all(self, call: Call) -> Answer:
        name = call.query.get("name")
        found = [point for point in self._points if name in (None, point["name"])]
        return Answer([_shown(point) for point in sorted(found, key=lambda point: point["name"])])

    def create(self, call: Call) -> Answer:
        point = {**_checked(call.document()), "uid": call.document().get("uid") or new_uid(), "provenance": call.provenance}
        if any(other["uid"] == point["uid"] for other in self._points):
            raise _invalid(f"contact point with uid '{point['uid']}' exists already")
        self._points.append(point)
        self._store.save()
        return Answer(_shown(point), 202)

    def update(self, call: Call) -> Answer:
        kept = self._find(call.path["uid"])
        given = call.document()
        settings = {
            name: kept["settings"].get(name) if value == REDACTED else value
            for name, value in (given.get("settings") or {}).items()
        }
        if kept.get("provenance") and kept["provenance"] != call.provenance:
            raise ApiError(403, f"cannot change provenance from '{kept['provenance']}' to '{call.provenance}'")
        kept.update(_checked({**given, "settings": settings}), provenance=call.provenance)
        self._store.save()
        return Answer({"message": "contactpoint updated"}, 202)

    def delete(self, call: Call) -> Answer:
        point = self._find(call.path["uid"])
        is_last = sum(other["name"] == point["name"] for other in self._points) == 1
        if is_last and point["name"] in receivers_of(self._store.data["policy"]):
            raise ApiError(
                409,
                "Contact point is currently referenced by a notification policy.",
                messageId="alerting.notifications.contact-points.referenced",
            )
        self._points.remove(point)
        self._store.save()
        return Answer({"message": "contactpoint deleted"}, 202)

    def _find(self, uid: str) -> dict[str, Any]:
        for point in self._points:
            if point["uid"] == uid:
                return point
        raise ApiError(404, f"contact point with uid '{uid}' not found")


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    kind, settings = given.get("type"), given.get("settings")
    if not kind:
        raise _invalid("type should not be an empty string")
    if not isinstance(settings, dict):
        raise _invalid("settings should not be empty")
    if not given.get("name"):
        raise _invalid("name is required")
    if kind not in INTEGRATIONS:
        raise _invalid(f"unknown type '{kind}' (this stand-in knows {', '.join(INTEGRATIONS)})")
    for setting, complaint in INTEGRATIONS[kind].needs.items():
        if not settings.get(setting):
            raise _invalid(complaint)
    if kind == "slack" and not settings.get("url"):
        for setting in ("recipient", "token"):
            if not settings.get(setting):
                raise _invalid(f"{setting} must be specified when using the Slack chat API")
    return {
        "name": given["name"],
        "type": kind,
        "settings": settings,
        "disableResolveMessage": bool(given.get("disableResolveMessage")),
    }


def _shown(point: Mapping[str, Any]) -> dict[str, Any]:
    secret = INTEGRATIONS[point["type"]].secret
    settings = {name: REDACTED if name in secret and value else value for name, value in point["settings"].items()}
    return {**point, "settings": settings}


def _invalid(what: str) -> ApiError:
    return ApiError(400, f"invalid object specification: contact point is not valid: {what}")
