"""grafana:oss/dashboard:Dashboard, by the API that Grafana has up to version 12."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lab.standins.differences import Kind
from lab.standins.grafana.client import quoted
from lab.standins.grafana.resource import ORGANISATION, GrafanaResource, compact, id_of, is_json_object, parsed, parts_of
from lab.standins.plugin import Call
from lab.standins.properties import Properties
from lab.standins.schema import Problem, Property

INPUTS = {
    "configJson": Property(required=True),
    "folder": Property(),
    "message": Property(),
    "overwrite": Property(type="boolean"),
    "orgId": ORGANISATION,
}
META = "__meta"  # the bridge's own property of every resource
OUTPUTS = {
    "uid": Property(required=True),
    "dashboardId": Property(type="integer", required=True),
    "url": Property(required=True),
    "version": Property(type="integer", required=True),
}


class Dashboard(GrafanaResource):
    type_name = "grafana:oss/dashboard:Dashboard"
    inputs = INPUTS
    outputs = OUTPUTS
    write_only = frozenset({"message", "overwrite"})

    def check(self, inputs: Properties) -> Iterator[Problem]:
        if not is_json_object(inputs["configJson"]):
            yield Problem("", "must be the JSON of a dashboard: an object")  # the official plugin names no property either

    def comparable(self, inputs: Properties) -> Properties:
        result = super().comparable(inputs)
        if "configJson" in result:
            result["configJson"] = normal(inputs["configJson"])
        if "folder" in result:
            result["folder"] = parts_of(result["folder"])[1]
        return result

    def changes(self, olds: Properties, news: Properties, outputs: Properties) -> Mapping[str, int]:
        """The JSON is compared with what the state holds, which a refresh brings up to date while the inputs stay as written.

        When the uid is not the one that the state's JSON names, the dashboard is replaced; the property that says so is `__meta`.
        """
        found = {path: kind for path, kind in super().changes(olds, news, outputs).items() if path != "configJson"}
        if news["configJson"] != outputs["configJson"]:
            found["configJson"] = Kind.UPDATE
            if _uid(outputs["configJson"]) != _uid(news["configJson"]):
                found[META] = Kind.UPDATE
        return found

    def replacing(self, changes: Mapping[str, int], olds: Properties, news: Properties) -> set[str]:
        return super().replacing(changes, olds, news) | ({META} & changes.keys())

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        organisation = self.grafana.organisation(inputs)
        body = _command(inputs, bool(inputs.get("overwrite")))
        saved = self.grafana.change("POST", "/api/dashboards/db", organisation, body)
        return id_of(organisation, saved["uid"]), self._outputs(self._find(organisation, saved["uid"]), inputs)

    def update(self, call: Call, id: str, olds: Properties, news: Properties) -> Properties:
        organisation, uid = parts_of(id)
        if (
            normal(news["configJson"]) == olds["configJson"]
        ):  # the official plugin then sends what the state has, without panel ids
            news = {**news, "configJson": olds["configJson"]}
        body = _command(news, overwrite=True)
        body["dashboard"]["id"] = olds["dashboardId"]
        self.grafana.change("POST", "/api/dashboards/db", organisation, body)
        return self._outputs(self._find(organisation, uid), news)

    def read(self, call: Call, id: str, inputs: Properties, outputs: Properties) -> tuple[Properties, Properties] | None:
        organisation, uid = parts_of(id)
        found = self._find(organisation, uid)
        if found is None:
            return None
        live = {"configJson": self._text(found["dashboard"], inputs), "folder": found["meta"]["folderUid"]}
        refreshed = self.refreshed(inputs, live)
        if inputs:
            refreshed["configJson"] = inputs["configJson"]
        return refreshed, {**live, **self._outputs(found, inputs)}

    def delete(self, call: Call, id: str, outputs: Properties) -> None:
        organisation, uid = parts_of(id)
        self.grafana.change("DELETE", f"/api/dashboards/uid/{quoted(uid)}", organisation, missing_ok=True)

    def _find(self, organisation: str, uid: str) -> Any:
        return self.grafana.find(f"/api/dashboards/uid/{quoted(uid)}", organisation)

    def _text(self, model: dict[str, Any], inputs: Properties) -> str:
        """Grafana's copy; without the uid where Grafana chose it."""
        given = parsed(inputs.get("configJson"))
        if isinstance(given, dict) and "uid" not in given:
            model = {name: value for name, value in model.items() if name != "uid"}
        return normal(compact(model))

    def _outputs(self, found: dict[str, Any], inputs: Properties) -> Properties:
        model = found["dashboard"]
        return {
            "uid": model["uid"],
            "dashboardId": model["id"],
            "version": model["version"],
            "url": self.grafana.url + found["meta"]["url"],
            "configJson": self._text(model, inputs),
        }


def normal(text: str) -> str:
    """Without what Grafana sets by itself: the numbers of dashboard, version and panels, and copies of library panels."""
    model = parsed(text)
    if not isinstance(model, dict):
        return text
    model = {name: value for name, value in model.items() if name not in ("id", "version")}
    if isinstance(model.get("panels"), list):
        model["panels"] = [_panel(panel) for panel in model["panels"]]
    return compact(model)


def _uid(text: str) -> str:
    model = parsed(text)
    return str(model.get("uid", "")) if isinstance(model, dict) else ""


def _panel(panel: Any) -> Any:
    if not isinstance(panel, dict):
        return panel
    panel = {name: value for name, value in panel.items() if name != "id"}
    if isinstance(library := panel.get("libraryPanel"), dict):
        panel["libraryPanel"] = {name: library[name] for name in ("name", "uid") if name in library}
    return panel


def _command(inputs: Properties, overwrite: bool) -> dict[str, Any]:
    model = {name: value for name, value in parsed(inputs["configJson"]).items() if name != "id"}
    folder = parts_of(inputs.get("folder", ""))[1]
    return {"dashboard": model, "folderUid": folder, "overwrite": overwrite, "message": inputs.get("message", "")}
