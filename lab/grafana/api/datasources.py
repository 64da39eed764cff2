"""Data sources: /api/datasources. Secrets go in and never come out; the proxy alone reads them."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from lab.grafana.api.call import Answer, Call, Route
from lab.grafana.api.uids import checked_uid
from lab.grafana.errors import ApiError
from lab.grafana.store import Store

FIELDS = {
    "name": "",
    "type": "",
    "access": "proxy",
    "url": "",
    "user": "",
    "database": "",
    "basicAuth": False,
    "basicAuthUser": "",
    "withCredentials": False,
    "isDefault": False,
    "jsonData": {},
}


class DataSources:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._sources: dict[str, Any] = store.data["datasources"]

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/datasources", self.all),
            Route("POST", "/api/datasources", self.create),
            Route("GET", "/api/datasources/uid/{uid}", self.one),
            Route("PUT", "/api/datasources/uid/{uid}", self.update),
            Route("DELETE", "/api/datasources/uid/{uid}", self.delete),
            Route("GET", "/api/datasources/name/{name}", self.by_name),
        ]

    def find(self, uid: str) -> dict[str, Any]:
        if uid not in self._sources:
            raise ApiError(404, "Data source not found")
        return self._sources[uid]

    def all(self, call: Call) -> Answer:
        return Answer([_shown(source) for source in self._sources.values()])

    def one(self, call: Call) -> Answer:
        return Answer(_shown(self.find(call.path["uid"])))

    def by_name(self, call: Call) -> Answer:
        for source in self._sources.values():
            if source["name"] == call.path["name"]:
                return Answer(_shown(source))
        raise ApiError(404, "Data source not found")

    def create(self, call: Call) -> Answer:
        given = call.document()
        uid = checked_uid(given.get("uid"))
        if uid in self._sources:
            raise ApiError(409, "data source with the same uid already exists")
        return self._save(given, {"id": self._store.next_id(), "uid": uid, "version": 0, "secureJsonData": {}}, "added")

    def update(self, call: Call) -> Answer:
        return self._save(call.document(), self.find(call.path["uid"]), "updated")

    def delete(self, call: Call) -> Answer:
        source = self.find(call.path["uid"])
        del self._sources[source["uid"]]
        self._store.save()
        return Answer({"id": source["id"], "message": "Data source deleted"})

    def _save(self, given: dict[str, Any], kept: dict[str, Any], done: str) -> Answer:
        if not given.get("name") or not given.get("type"):
            raise ApiError(400, "bad request data")
        if any(other["name"] == given["name"] and other["uid"] != kept["uid"] for other in self._sources.values()):
            raise ApiError(409, "data source with the same name already exists")
        if (url := given.get("url")) and not urlsplit(url if "://" in url else f"http://{url}").hostname:
            raise ApiError(400, f"Validation error, invalid URL: {url!r}")
        if given.get("isDefault"):
            for other in self._sources.values():
                other["isDefault"] = False
        source = {
            **{name: given.get(name) or default for name, default in FIELDS.items()},
            "id": kept["id"],
            "uid": kept["uid"],
            "version": kept["version"] + 1,
            # What an update does not mention stays: nobody can read a secret to send it back.
            "secureJsonData": {**kept["secureJsonData"], **(given.get("secureJsonData") or {})},
        }
        self._sources[kept["uid"]] = source
        self._store.save()
        return Answer({"id": source["id"], "name": source["name"], "message": f"Datasource {done}", "datasource": _shown(source)})


def _shown(source: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in source.items() if name != "secureJsonData"}
    return {**shown, "orgId": 1, "secureJsonFields": dict.fromkeys(source["secureJsonData"], True), "readOnly": False}
