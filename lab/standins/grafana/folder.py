"""grafana:oss/folder:Folder and grafana:oss/folderPermission:FolderPermission."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lab.standins.grafana.client import quoted
from lab.standins.grafana.resource import ORGANISATION, GrafanaResource, id_of, is_zero, parts_of
from lab.standins.plugin import Call, Failure
from lab.standins.properties import UNKNOWN, Properties
from lab.standins.schema import ListOf, Object, Problem, Property

FOLDER = {
    "title": Property(required=True),
    "uid": Property(replaces=True),
    "preventDestroyIfNotEmpty": Property(type="boolean", default=False),
    "orgId": ORGANISATION,
}
FOLDER_OUTPUTS = {"url": Property(required=True)}
PERMISSION = Object(
    "grafana:oss/FolderPermissionPermission:FolderPermissionPermission",
    {
        "permission": Property(required=True, values=("View", "Edit", "Admin")),
        "role": Property(values=("Viewer", "Editor", "Admin")),
        "teamId": Property(),
        "userId": Property(),
    },
)
PERMISSIONS = {
    "folderUid": Property(required=True, replaces=True),
    "permissions": Property(type=ListOf(PERMISSION)),
    "orgId": ORGANISATION,
}
SUBJECTS = {"role": "builtInRole", "teamId": "teamId", "userId": "userId"}
NO_OUTPUTS: dict[str, Property] = {}


class Folder(GrafanaResource):
    type_name = "grafana:oss/folder:Folder"
    inputs = FOLDER
    outputs = FOLDER_OUTPUTS
    computed = ("uid",)
    write_only = frozenset({"preventDestroyIfNotEmpty"})

    def check(self, inputs: Properties) -> Iterator[Problem]:
        uid = inputs.get("uid", UNKNOWN)
        if uid != UNKNOWN and not re.fullmatch(r"[a-zA-Z0-9\-_]+", uid):
            yield Problem("uid", "folder UIDs can only be alphanumeric, dashes, or underscores")

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        organisation = self.grafana.organisation(inputs)
        body = {"title": inputs["title"], "uid": inputs.get("uid", "")}
        try:
            made = self.grafana.change("POST", "/api/folders", organisation, body)
        except Failure as failure:
            raise Failure(f"failed to create folder: {failure}") from failure
        return id_of(organisation, made["uid"]), self._outputs(made)

    def update(self, call: Call, id: str, olds: Properties, news: Properties) -> Properties:
        organisation, uid = parts_of(id)
        path = f"/api/folders/{quoted(uid)}"
        return self._outputs(self.grafana.change("PUT", path, organisation, {"title": news["title"], "overwrite": True}))

    def read(self, call: Call, id: str, inputs: Properties, outputs: Properties) -> tuple[Properties, Properties] | None:
        organisation, uid = parts_of(id)
        found = self.grafana.find(f"/api/folders/{quoted(uid)}", organisation)
        if found is None:
            return None
        live = {"title": found["title"]}
        if not inputs or "uid" in inputs:
            live["uid"] = found["uid"]
        return self.refreshed(inputs, live), {**live, **self._outputs(found)}

    def delete(self, call: Call, id: str, outputs: Properties) -> None:
        organisation, uid = parts_of(id)
        if outputs.get("preventDestroyIfNotEmpty"):
            if inside := self.grafana.get("/api/search", organisation, folderUIDs=uid):
                titles = ", ".join(hit["title"] for hit in inside)
                raise Failure(
                    f"folder {uid} is not empty and prevent_destroy_if_not_empty is set. "
                    f"It contains the following dashboards and/or folders: {titles}"
                )
            query = ""
        else:
            query = "?forceDeleteRules=true"
        self.grafana.change("DELETE", f"/api/folders/{quoted(uid)}{query}", organisation, missing_ok=True)

    def _outputs(self, folder: dict[str, Any]) -> Properties:
        return {"uid": folder["uid"], "url": self.grafana.url + folder["url"]}


class FolderPermission(GrafanaResource):
    """All permissions of a folder: those that are not named are taken away."""

    type_name = "grafana:oss/folderPermission:FolderPermission"
    inputs = PERMISSIONS
    outputs = NO_OUTPUTS
    computed = ("orgId",)

    def comparable(self, inputs: Properties) -> Properties:
        result = super().comparable(inputs)
        if isinstance(result.get("permissions"), list):
            result["permissions"] = sorted(result["permissions"], key=str)
        return result

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        organisation = self.grafana.organisation(inputs)
        if self.grafana.find(f"/api/folders/{quoted(inputs['folderUid'])}", organisation) is None:
            raise Failure(f"Failed to get folder: there is no folder with the uid {inputs['folderUid']}")
        self._set(organisation, inputs["folderUid"], inputs.get("permissions", []))
        return id_of(organisation, inputs["folderUid"]), {"orgId": organisation}

    def update(self, call: Call, id: str, olds: Properties, news: Properties) -> Properties:
        organisation, uid = parts_of(id)
        self._set(organisation, uid, news.get("permissions", []))
        return {"orgId": organisation}

    def read(self, call: Call, id: str, inputs: Properties, outputs: Properties) -> tuple[Properties, Properties] | None:
        organisation, uid = parts_of(id)
        found = self.grafana.find(f"/api/access-control/folders/{quoted(uid)}", organisation)
        if found is None:
            return None
        listed = [_shown(item) for item in found if item["isManaged"] and not item["isInherited"]]
        live = {"folderUid": uid, "permissions": listed}
        return self.refreshed(inputs, live), {**live, "orgId": organisation}

    def delete(self, call: Call, id: str, outputs: Properties) -> None:
        organisation, uid = parts_of(id)
        if self.grafana.find(f"/api/folders/{quoted(uid)}", organisation) is not None:
            self._set(organisation, uid, [])

    def _set(self, organisation: str, uid: str, permissions: list[Properties]) -> None:
        path = f"/api/access-control/folders/{quoted(uid)}"
        wanted = [_command(permission) for permission in permissions]
        # Grafana leaves alone what a request does not name, so what has to go is named with no permission.
        present = [
            {name: item[name] for name in SUBJECTS.values() if item.get(name)}
            for item in self.grafana.get(path, organisation)
            if item["isManaged"] and not item["isInherited"]
        ]
        subjects = [{name: value for name, value in command.items() if name != "permission"} for command in wanted]
        going = [{**subject, "permission": ""} for subject in present if subject not in subjects]
        self.grafana.change("POST", path, organisation, {"permissions": going + wanted})


def _command(permission: Properties) -> Properties:
    command: Properties = {"permission": permission["permission"]}
    for name, subject in SUBJECTS.items():
        if value := permission.get(name):
            command[subject] = value if name == "role" else int(parts_of(value)[1])
    return command


def _shown(item: dict[str, Any]) -> Properties:
    subjects = {name: str(item[subject]) for name, subject in SUBJECTS.items() if not is_zero(item.get(subject))}
    return {**subjects, "permission": item["permission"]}
