"""The HTTP API of a cluster, in the few calls that the lab needs. Objects are plain dicts, as in a manifest."""

from __future__ import annotations

import json
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from lab.kubernetes.kubeconfig import Connection

ANSWER_S = 60.0  # the API server itself gives up on an admission webhook after half of that
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"

Manifest = dict[str, Any]


class ApiError(Exception):
    """The API server refused. `code` is the HTTP status, 0 when it could not be reached; `reason` its word for the cause."""

    def __init__(self, message: str, *, code: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


class Api:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=connection.tls)
        )
        self._kinds: dict[str, dict[str, Manifest]] = {}  # apiVersion -> kind -> what discovery says of it
        self._lock = threading.Lock()

    def get(self, path: str, **query: str) -> Manifest:
        return self.request("GET", path, **query)

    def request(
        self, method: str, path: str, body: Manifest | None = None, *, content: str = "application/json", **query: str
    ) -> Manifest:
        """Raises ApiError with the API server's own words."""
        with self._open(method, path, body, content, query) as answer:
            return json.load(answer)

    def text(self, path: str) -> str:
        """What is no object: /readyz, /metrics, a pod's log."""
        with self._open("GET", path, None, "", {}) as answer:
            return answer.read().decode()

    def read(self, api_version: str, kind: str, name: str, namespace: str = "") -> Manifest | None:
        """None when there is no such object."""
        try:
            return self.get(self.path(api_version, kind, name, namespace))
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def list(self, api_version: str, kind: str, namespace: str = "", selector: str = "") -> list[Manifest]:
        """Those of `namespace`, or of all; `selector` is one of labels."""
        query = {"labelSelector": selector} if selector else {}
        items = self.get(self.path(api_version, kind, namespace=namespace), **query)["items"]
        return [{"apiVersion": api_version, "kind": kind, **item} for item in items]

    def create(self, manifest: Manifest) -> Manifest:
        return self.request("POST", self.path_of(manifest, of_list=True), manifest)

    def apply(self, manifest: Manifest, *, manager: str = "lab", force: bool = False, dry_run: bool = False) -> Manifest:
        """Server-side apply. A field that another manager owns is a conflict (409), unless `force`."""
        query = {"fieldManager": manager, "force": str(force).lower(), "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        return self.request("PATCH", self.path_of(manifest), manifest, content=APPLY, **query)

    def patch(self, manifest: Manifest, change: Manifest, subresource: str = "") -> Manifest:
        """A JSON merge patch of the object that `manifest` names."""
        path = self.path_of(manifest) + (f"/{subresource}" if subresource else "")
        return self.request("PATCH", path, change, content=MERGE)

    def delete(self, manifest: Manifest, propagation: str = "Background") -> None:
        """Gone already is no error."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        try:
            self.request("DELETE", self.path_of(manifest), options)
        except ApiError as error:
            if error.code != 404:
                raise

    def path_of(self, manifest: Manifest, *, of_list: bool = False) -> str:
        """The path of an object, or of the list it is created in. Without a namespace it is in that of the connection."""
        metadata = manifest["metadata"]
        api_version, kind = manifest["apiVersion"], manifest["kind"]
        namespace = ""
        if self.is_namespaced(api_version, kind):
            namespace = metadata.get("namespace") or self.connection.namespace
        return self.path(api_version, kind, "" if of_list else metadata["name"], namespace)

    def path(self, api_version: str, kind: str, name: str = "", namespace: str = "") -> str:
        parts = [_root(api_version)]
        if namespace and self.is_namespaced(api_version, kind):
            parts += ["namespaces", namespace]
        parts += [self._kind(api_version, kind)["name"], *filter(None, [name])]
        return "/".join(urllib.parse.quote(part, safe="/:") for part in parts)

    def is_namespaced(self, api_version: str, kind: str) -> bool:
        return self._kind(api_version, kind)["namespaced"]

    def serves(self, api_version: str, kind: str) -> bool:
        """Now: a CRD's kind is served some time after it was created, and its group before that answers 404."""
        return kind in self._discovered(api_version)

    def _kind(self, api_version: str, kind: str) -> Manifest:
        with self._lock:
            if kind not in self._kinds.get(api_version, {}):  # asked again: a CRD may have come since
                self._kinds[api_version] = self._discovered(api_version)
            if kind not in self._kinds[api_version]:
                raise ApiError(f'no matches for kind "{kind}" in version "{api_version}"', code=404, reason="NotFound")
            return self._kinds[api_version][kind]

    def _discovered(self, api_version: str) -> dict[str, Manifest]:
        try:
            resources = self.get(_root(api_version))["resources"]
        except ApiError as error:
            if error.code == 404:
                return {}
            raise
        return {resource["kind"]: resource for resource in resources if "/" not in resource["name"]}

    def _open(self, method: str, path: str, body: Manifest | None, content: str, query: Mapping[str, str]) -> Any:
        url = self.connection.server + path + (f"?{urllib.parse.urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        headers = {**self.connection.headers, "Accept": "application/json", **({"Content-Type": content} if body else {})}
        request = urllib.request.Request(url, data=data, method=method, headers=headers)  # noqa: S310 - of a kubeconfig
        try:
            return self._opener.open(request, timeout=ANSWER_S)
        except urllib.error.HTTPError as error:
            raise _refusal(error) from None
        except (urllib.error.URLError, ssl.SSLError, OSError) as error:
            cause = getattr(error, "reason", error)
            raise ApiError(f"{self.connection.server} cannot be reached: {cause}") from None


def _root(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _refusal(error: urllib.error.HTTPError) -> ApiError:
    text = error.read().decode(errors="replace")
    try:
        status = json.loads(text)
    except ValueError:
        return ApiError(text.strip() or error.reason, code=error.code, reason=error.reason)
    return ApiError(status.get("message", text), code=error.code, reason=status.get("reason", ""))
