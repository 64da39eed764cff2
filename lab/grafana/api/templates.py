"""Notification templates: /api/v1/provisioning/templates. Only the shape of a template is checked: it is never rendered."""

from __future__ import annotations

import re
from typing import Any

from lab.grafana.api.call import Answer, Call, Route
from lab.grafana.errors import ApiError
from lab.grafana.store import Store

OPENING = ("define", "block", "if", "range", "with")


class Templates:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._templates: dict[str, Any] = store.data["templates"]

    def routes(self) -> list[Route]:
        one = "/api/v1/provisioning/templates/{name}"
        return [
            Route("GET", "/api/v1/provisioning/templates", self.all),
            Route("GET", one, self.one),
            Route("PUT", one, self.replace),
            Route("DELETE", one, self.delete),
        ]

    def all(self, call: Call) -> Answer:
        return Answer(list(self._templates.values()))

    def one(self, call: Call) -> Answer:
        name = call.path["name"]
        if name not in self._templates:
            raise ApiError(404, f"Template {name} not found", messageId="alerting.notifications.templates.notFound")
        return Answer(self._templates[name])

    def replace(self, call: Call) -> Answer:
        name, text = call.path["name"], (call.document().get("template") or "").strip()
        _check(text)
        if not re.search(r"{{-?\s*define\b", text):  # Grafana makes one named like the group
            text = f'{{{{ define "{name}" }}}}\n{text}\n{{{{ end }}}}'
        self._templates[name] = {"name": name, "template": text, "version": "", "provenance": call.provenance}
        self._store.save()
        return Answer(self._templates[name], 202)

    def delete(self, call: Call) -> Answer:
        self._templates.pop(call.path["name"], None)
        self._store.save()
        return Answer(None, 204)


def _check(text: str) -> None:
    if not text:
        raise _invalid("template must have content")
    if text.count("{{") != text.count("}}"):
        raise _invalid("unclosed action")
    depth = 0
    for action in re.findall(r"{{-?\s*(\w+)", text):
        depth += 1 if action in OPENING else -1 if action == "end" else 0
        if depth < 0:
            raise _invalid("unexpected {{end}}")
    if depth:
        raise _invalid("unexpected EOF")


def _invalid(what: str) -> ApiError:
    return ApiError(
        400,
        "Template is in invalid format. Correct the payload and try again.",
        messageId="alerting.notifications.templates.invalidFormat",
        extra={"Error": what},
    )
