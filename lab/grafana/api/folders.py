"""Folders and their permissions: /api/folders and /api/access-control/folders."""

from __future__ import annotations

from typing import Any

from lab.grafana.api.call import Answer, Call, Route
from lab.grafana.api.uids import checked_uid, slug
from lab.grafana.errors import ApiError
from lab.grafana.store import Store, now

# What Grafana gives every new folder at the top.
DEFAULT_PERMISSIONS = [{"builtInRole": "Editor", "permission": "Edit"}, {"builtInRole": "Viewer", "permission": "View"}]
SUBJECTS = ("builtInRole", "teamId", "userId")


class Folders:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._folders: dict[str, Any] = store.data["folders"]

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/folders", self.all),
            Route("POST", "/api/folders", self.create),
            Route("GET", "/api/folders/{uid}", self.one),
            Route("PUT", "/api/folders/{uid}", self.update),
            Route("DELETE", "/api/folders/{uid}", self.delete),
            Route("GET", "/api/access-control/folders/{uid}", self.permissions),
            Route("POST", "/api/access-control/folders/{uid}", self.set_permissions),
        ]

    def find(self, uid: str) -> dict[str, Any]:
        if uid not in self._folders:
            raise ApiError(404, "folder not found", status="not-found")
        return self._folders[uid]

    def all(self, call: Call) -> Answer:
        parent = call.query.get("parentUid", "")
        found = [folder for folder in self._folders.values() if folder["parentUid"] == parent]
        return Answer([{"id": folder["id"], "uid": folder["uid"], "title": folder["title"]} for folder in found])

    def one(self, call: Call) -> Answer:
        return Answer(_shown(self.find(call.path["uid"])))

    def create(self, call: Call) -> Answer:
        given = call.document()
        title, parent = given.get("title"), given.get("parentUid") or ""
        if not title:
            raise ApiError(400, "folder title cannot be empty")
        uid = checked_uid(given.get("uid"))
        if uid in self._folders:
            raise ApiError(409, "a folder/dashboard with the same uid already exists")
        if parent:
            self.find(parent)
        folder = {
            "id": self._store.next_id(),
            "uid": uid,
            "title": title,
            "parentUid": parent,
            "version": 1,
            "created": now(),
            "updated": now(),
            "permissions": [] if parent else list(DEFAULT_PERMISSIONS),
        }
        self._folders[uid] = folder
        self._store.save()
        return Answer(_shown(folder))

    def update(self, call: Call) -> Answer:
        given, folder = call.document(), self.find(call.path["uid"])
        if not given.get("title"):
            raise ApiError(400, "folder title cannot be empty")
        if not given.get("overwrite") and given.get("version") != folder["version"]:
            raise ApiError(412, "the folder has been changed by someone else", status="version-mismatch")
        folder.update(title=given["title"], version=folder["version"] + 1, updated=now())
        self._store.save()
        return Answer(_shown(folder))

    def delete(self, call: Call) -> Answer:
        """With everything in it; alert rules only when the caller says so."""
        folder = self.find(call.path["uid"])
        going = self._with_descendants(folder["uid"])
        data = self._store.data
        rules = [key for key, group in data["rule_groups"].items() if group["folderUid"] in going]
        if rules and call.query.get("forceDeleteRules") != "true":
            raise ApiError(400, "Folder cannot be deleted: folder is not empty")
        for key in rules:
            del data["rule_groups"][key]
        for uid in [uid for uid, kept in data["dashboards"].items() if kept["folderUid"] in going]:
            del data["dashboards"][uid]
        for uid in going:
            del self._folders[uid]
        self._store.save()
        return Answer({"id": folder["id"], "title": folder["title"], "message": f"Folder {folder['title']} deleted"})

    def permissions(self, call: Call) -> Answer:
        listed = []
        for permission in self.find(call.path["uid"])["permissions"]:
            subject = next(name for name in SUBJECTS if permission.get(name))
            listed.append(
                {
                    "id": len(listed) + 1,
                    "roleName": f"managed:{subject}:{permission[subject]}:permissions",
                    "isManaged": True,
                    "isInherited": False,
                    subject: permission[subject],
                    "permission": permission["permission"],
                }
            )
        return Answer(listed)

    def set_permissions(self, call: Call) -> Answer:
        """Each entry sets the permission of one role, team or user; an empty permission takes it away."""
        folder = self.find(call.path["uid"])
        kept = {_subject(permission): permission for permission in folder["permissions"]}
        for given in call.document().get("permissions", []):
            if given.get("permission", "") not in ("", "View", "Edit", "Admin"):
                raise ApiError(400, f"invalid permission: {given['permission']}")
            if given.get("builtInRole", "Viewer") not in ("Viewer", "Editor", "Admin"):
                raise ApiError(400, f"invalid role: {given['builtInRole']}")
            if not any(given.get(name) for name in SUBJECTS):
                raise ApiError(400, "permission has no role, team or user")
            kept.pop(_subject(given), None)
            if given.get("permission"):
                kept[_subject(given)] = {name: given[name] for name in (*SUBJECTS, "permission") if given.get(name)}
        folder["permissions"] = list(kept.values())
        self._store.save()
        return Answer({"message": "Permissions updated"})

    def _with_descendants(self, uid: str) -> set[str]:
        children = [child["uid"] for child in self._folders.values() if child["parentUid"] == uid]
        return {uid}.union(*(self._with_descendants(child) for child in children))


def _subject(permission: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(permission.get(name) for name in SUBJECTS)


def _shown(folder: dict[str, Any]) -> dict[str, Any]:
    shown = {key: value for key, value in folder.items() if key != "permissions" and value != ""}
    rights = dict.fromkeys(("canSave", "canEdit", "canAdmin", "canDelete"), True)
    return {**shown, "orgId": 1, "url": f"/dashboards/f/{folder['uid']}/{slug(folder['title'])}", "hasAcl": False, **rights}
