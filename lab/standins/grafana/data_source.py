"""grafana:oss/dataSource:DataSource."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lab.standins.grafana.client import quoted
from lab.standins.grafana.resource import ORGANISATION, GrafanaResource, compact, id_of, is_json_object, parsed, parts_of
from lab.standins.plugin import Call
from lab.standins.properties import Properties
from lab.standins.schema import MapOf, Problem, Property

INPUTS = {
    "name": Property(),
    "type": Property(required=True),
    "uid": Property(replaces=True),
    "url": Property(),
    "accessMode": Property(default="proxy"),
    "isDefault": Property(type="boolean", default=False),
    "basicAuthEnabled": Property(type="boolean", default=False),
    "basicAuthUsername": Property(),
    "databaseName": Property(),
    "username": Property(),
    "httpHeaders": Property(type=MapOf("string"), secret=True),
    "jsonDataEncoded": Property(),
    "secureJsonDataEncoded": Property(secret=True),
    "orgId": ORGANISATION,
}
OUTPUTS: dict[str, Property] = {}
# Our name, and the API's.
FIELDS = {
    "name": "name",
    "type": "type",
    "url": "url",
    "accessMode": "access",
    "isDefault": "isDefault",
    "basicAuthEnabled": "basicAuth",
    "basicAuthUsername": "basicAuthUser",
    "databaseName": "database",
    "username": "user",
}
# A header is a pair of numbered settings, its value among the secrets.
HEADER_NAME, HEADER_VALUE = "httpHeaderName", "httpHeaderValue"


class DataSource(GrafanaResource):
    type_name = "grafana:oss/dataSource:DataSource"
    inputs = INPUTS
    outputs = OUTPUTS
    autonamed = "name"
    computed = ("uid",)
    write_only = frozenset({"secureJsonDataEncoded", "httpHeaders"})

    def check(self, inputs: Properties) -> Iterator[Problem]:
        for name, reserved in (("jsonDataEncoded", HEADER_NAME), ("secureJsonDataEncoded", HEADER_VALUE)):
            text = inputs.get(name, "{}")
            if not is_json_object(text):
                yield Problem(name, "must be JSON: an object")
            elif reserved in text:
                yield Problem(name, f"{reserved}{{num}} is a reserved key and cannot be used here. Use httpHeaders instead")

    def comparable(self, inputs: Properties) -> Properties:
        result = super().comparable(inputs)
        for name in ("jsonDataEncoded", "secureJsonDataEncoded"):
            if name in result:
                text = parsed(result.pop(name))
                if text != {}:
                    result[name] = text if isinstance(text, str) else compact(text)
        return result

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        organisation = self.grafana.organisation(inputs)
        made = self.grafana.change("POST", "/api/datasources", organisation, _command(inputs))["datasource"]
        return id_of(organisation, made["uid"]), {"uid": made["uid"]}

    def update(self, call: Call, id: str, olds: Properties, news: Properties) -> Properties:
        organisation, uid = parts_of(id)
        self.grafana.change("PUT", f"/api/datasources/uid/{quoted(uid)}", organisation, {**_command(news), "uid": uid})
        return {"uid": uid}

    def read(self, call: Call, id: str, inputs: Properties, outputs: Properties) -> tuple[Properties, Properties] | None:
        organisation, uid = parts_of(id)
        found = self.grafana.find(f"/api/datasources/uid/{quoted(uid)}", organisation)
        if found is None:
            return None
        settings = {name: value for name, value in found["jsonData"].items() if not name.startswith(HEADER_NAME)}
        live = {name: found.get(field) for name, field in FIELDS.items()} | {"jsonDataEncoded": compact(settings)}
        if not inputs or "uid" in inputs:
            live["uid"] = uid
        kept = {name: outputs[name] for name in self.write_only if name in outputs}
        return self.refreshed(inputs, live), {**live, **kept, "uid": uid}

    def delete(self, call: Call, id: str, outputs: Properties) -> None:
        organisation, uid = parts_of(id)
        self.grafana.change("DELETE", f"/api/datasources/uid/{quoted(uid)}", organisation, missing_ok=True)


def _command(inputs: Properties) -> dict[str, Any]:
    settings, secret = parsed(inputs.get("jsonDataEncoded", "{}")), parsed(inputs.get("secureJsonDataEncoded", "{}"))
    for number, (name, value) in enumerate(sorted(inputs.get("httpHeaders", {}).items()), start=1):
        settings[f"{HEADER_NAME}{number}"] = name
        secret[f"{HEADER_VALUE}{number}"] = value
    fields = {field: inputs[name] for name, field in FIELDS.items() if name in inputs}
    return {**fields, "uid": inputs.get("uid", ""), "jsonData": settings, "secureJsonData": secret}
