"""Dashboards: /api/dashboards and /api/search. The JSON itself is kept as it is given, as Grafana does."""

from __future__ import annotations

from typing import Any

from lab.grafana.api.call import Answer, Call, Route
from lab.grafana.api.folders import Folders
from lab.grafana.api.uids import checked_uid, slug
from lab.grafana.errors import ApiError
from lab.grafana.store import Store, now


class Dashboards:
    def __init__(self, store: Store, folders: Folders) -> None:
        self._store = store
        self._folders = folders
        self._dashboards: dict[str, Any] = store.data["dashboards"]

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/api/dashboards/db", self.save),
            Route("GET", "/api/dashboards/uid/{uid}", self.one),
            Route("DELETE", "/api/dashboards/uid/{uid}", self.delete),
            Route("GET", "/api/search", self.search),
        ]

    def find(self, uid: str) -> dict[str, Any]:
        if uid not in self._dashboards:
            raise ApiError(404, "Dashboard not found", status="not-found")
        return self._dashboards[uid]

    def save(self, call: Call) -> Answer:
        given = call.document()
        model = given.get("dashboard")
        if not isinstance(model, dict):
            raise ApiError(400, "bad request data")
        if not model.get("title"):
            raise ApiError(400, "Dashboard title cannot be empty", status="empty-name")
        folder = given.get("folderUid") or ""
        if folder and folder not in self._store.data["folders"]:
            raise ApiError(400, "Folder not found")
        kept = self._kept(model)
        version = kept["model"]["version"] if kept else 0
        if kept and not given.get("overwrite") and model.get("version", 0) != version:
            raise ApiError(412, "The dashboard has been changed by someone else", status="version-mismatch")
        uid = kept["model"]["uid"] if kept else checked_uid(model.get("uid"))
        id = kept["model"]["id"] if kept else self._store.next_id()
        saved = {
            "model": {**model, "id": id, "uid": uid, "version": version + 1},
            "folderUid": folder,
            "message": given.get("message", ""),
            "created": kept["created"] if kept else now(),
            "updated": now(),
        }
        self._dashboards[uid] = saved
        self._store.save()
        answer = {"id": id, "uid": uid, "url": _url(saved), "status": "success", "version": version + 1}
        return Answer({**answer, "slug": slug(model["title"]), "folderUid": folder})

    def one(self, call: Call) -> Answer:
        kept = self.find(call.path["uid"])
        folder = self._store.data["folders"].get(kept["folderUid"], {"title": "General", "uid": ""})
        meta = {
            "type": "db",
            **dict.fromkeys(("canSave", "canEdit", "canAdmin", "canStar", "canDelete"), True),
            "slug": slug(kept["model"]["title"]),
            "url": _url(kept),
            "version": kept["model"]["version"],
            "created": kept["created"],
            "updated": kept["updated"],
            "folderUid": folder["uid"],
            "folderTitle": folder["title"],
            "provisioned": False,
        }
        return Answer({"meta": meta, "dashboard": kept["model"]})

    def delete(self, call: Call) -> Answer:
        kept = self.find(call.path["uid"])
        del self._dashboards[call.path["uid"]]
        self._store.save()
        title = kept["model"]["title"]
        return Answer({"title": title, "message": f"Dashboard {title} deleted", "id": kept["model"]["id"]})

    def search(self, call: Call) -> Answer:
        """Of the query's filters: type, query (a part of the title), folderUIDs."""
        kind, text = call.query.get("type"), call.query.get("query", "").lower()
        inside = [uid for uid in call.query.get("folderUIDs", "").split(",") if uid]
        found = []
        if kind in (None, "dash-folder"):
            for folder in self._store.data["folders"].values():
                url = f"/dashboards/f/{folder['uid']}/{slug(folder['title'])}"
                found.append((folder["parentUid"], {**_hit(folder, "dash-folder"), "url": url}))
        if kind in (None, "dash-db"):
            for kept in self._dashboards.values():
                hit = {**_hit(kept["model"], "dash-db"), "url": _url(kept), "tags": kept["model"].get("tags", [])}
                found.append((kept["folderUid"], {**hit, "folderUid": kept["folderUid"]}))
        return Answer([hit for parent, hit in found if text in hit["title"].lower() and (not inside or parent in inside)])

    def _kept(self, model: dict[str, Any]) -> dict[str, Any] | None:
        """The stored dashboard that this one would take the place of: by its id, else by its uid."""
        if id := model.get("id"):
            for kept in self._dashboards.values():
                if kept["model"]["id"] == id:
                    return kept
            raise ApiError(404, "Dashboard not found", status="not-found")
        return self._dashboards.get(model.get("uid") or "")


def _hit(found: dict[str, Any], kind: str) -> dict[str, Any]:
    return {"id": found["id"], "uid": found["uid"], "title": found["title"], "type": kind, "isStarred": False}


def _url(kept: dict[str, Any]) -> str:
    return f"/d/{kept['model']['uid']}/{slug(kept['model']['title'])}"
