"""grafana:alerting/messageTemplate:MessageTemplate: a group of notification templates."""

from __future__ import annotations

from lab.standins.grafana.client import quoted
from lab.standins.grafana.resource import ORGANISATION, GrafanaResource, id_of, parts_of
from lab.standins.plugin import Call
from lab.standins.properties import Properties
from lab.standins.schema import Property

PATH = "/api/v1/provisioning/templates"
INPUTS = {
    "name": Property(replaces=True),
    "template": Property(required=True),
    "disableProvenance": Property(type="boolean", default=False, replaces=True),
    "orgId": ORGANISATION,
}
OUTPUTS: dict[str, Property] = {}


class MessageTemplate(GrafanaResource):
    type_name = "grafana:alerting/messageTemplate:MessageTemplate"
    inputs = INPUTS
    outputs = OUTPUTS
    autonamed = "name"
    computed = ("orgId",)

    def comparable(self, inputs: Properties) -> Properties:
        """Space around the text means nothing: a heredoc ends in a newline."""
        result = super().comparable(inputs)
        return {**result, "template": result["template"].strip()} if "template" in result else result

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        organisation = self.grafana.organisation(inputs)
        return id_of(organisation, inputs["name"]), self._put(organisation, inputs)

    def update(self, call: Call, id: str, olds: Properties, news: Properties) -> Properties:
        return self._put(parts_of(id)[0], news)

    def read(self, call: Call, id: str, inputs: Properties, outputs: Properties) -> tuple[Properties, Properties] | None:
        organisation, name = parts_of(id)
        found = self.grafana.find(f"{PATH}/{quoted(name)}", organisation)
        if found is None:
            return None
        live = {"name": name, "template": found["template"], "disableProvenance": not found.get("provenance")}
        return self.refreshed(inputs, live), {**live, "orgId": organisation}

    def delete(self, call: Call, id: str, outputs: Properties) -> None:
        organisation, name = parts_of(id)
        self.grafana.change("DELETE", f"{PATH}/{quoted(name)}", organisation, missing_ok=True)

    def _put(self, organisation: str, inputs: Properties) -> Properties:
        path = f"{PATH}/{quoted(inputs['name'])}"
        body = {"template": inputs["template"].strip()}
        self.grafana.change("PUT", path, organisation, body, editable=bool(inputs.get("disableProvenance")))
        return {"orgId": organisation}
