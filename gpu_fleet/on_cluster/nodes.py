"""The nodes of a cluster, and one Lease, as far as readiness reads and writes them. Uses the pod's own service account.

A condition is merged by its type, so the kubelet's and all the other ones stay. Taints are one list that everybody rewrites as a
whole: a change names the version of the node that it was made from, and where somebody was faster it is made again from theirs.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import urllib.parse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

CONDITION = "GpuFleetReady"  # True: pass or warn, False: fail, Unknown; as the node's own condition Ready has it
TAINT = "gpu-fleet/not-ready"  # holds no word by which alerts/rules/inventory.yaml takes a taint for a maintenance
EFFECT = "NoSchedule"  # pods that run go on
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
ANSWER_S = 30
TRIES = 5
# Device plugins' names; a node without any of them may still have GPUs that are handed out as dynamic resources.
_GPU = re.compile(r"nvidia\.com/(gpu(\.shared)?|mig-.+)|amd\.com/gpu")
# Taints that keep pods away from a node that is not in service; others are about who may use it (nvidia.com/gpu, dedicated=…).
_OUT_OF_SERVICE = re.compile(r"node\.kubernetes\.io/.+|.*(maintenance|drain|out-of-service|ToBeDeleted).*")

Json = Mapping[str, Any]


class ApiError(Exception):
    """`status`: of HTTP; 0: no API server answered."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Node(NamedTuple):
    """`version`: the API server's, which each change of the node renews. `condition`: ours, empty without one."""

    name: str
    version: str
    has_gpus: bool
    is_cordoned: bool
    taints: tuple[Json, ...]
    condition: Json

    @property
    def our_taint(self) -> Json | None:
        return next((taint for taint in self.taints if taint["key"] == TAINT), None)

    @property
    def is_schedulable(self) -> bool:
        """Whether pods that tolerate the node's usual taints may start there."""
        kept_away = (t["key"] for t in self.taints if t["effect"] != "PreferNoSchedule")
        return not self.is_cordoned and not any(key == TAINT or _OUT_OF_SERVICE.fullmatch(key) for key in kept_away)


def node_of(manifest: Json) -> Node:
    spec, status = manifest.get("spec", {}), manifest.get("status", {})
    conditions = [one for one in status.get("conditions") or () if one["type"] == CONDITION]
    return Node(
        name=manifest["metadata"]["name"],
        version=manifest["metadata"]["resourceVersion"],
        has_gpus=any(_GPU.fullmatch(name) and str(count) != "0" for name, count in status.get("capacity", {}).items()),
        is_cordoned=bool(spec.get("unschedulable")),
        taints=tuple(spec.get("taints") or ()),
        condition=conditions[0] if conditions else {},
    )


class Api:
    """Every method raises ApiError."""

    def __init__(self, environment: Mapping[str, str], prefix: str = "") -> None:
        self._host, self._port = environment["KUBERNETES_SERVICE_HOST"], int(environment["KUBERNETES_SERVICE_PORT"])
        self._connection: http.client.HTTPSConnection | None = None
        self._account = Path(prefix + ACCOUNT)

    def nodes(self, *, newest: bool = False) -> dict[str, Node]:
        """All of them, by name: from the API server's memory, which may be a moment behind, or the `newest`."""
        self._close()  # one connection for a round: the server ends those that are idle, and its authority may be renewed
        listed = self._request("GET", "/api/v1/nodes" + ("" if newest else "?resourceVersion=0"))
        return {node.name: node for node in map(node_of, listed["items"])}

    def set_condition(self, name: str, condition: Json) -> None:
        path = f"/api/v1/nodes/{urllib.parse.quote(name)}/status"
        self._request("PATCH", path, {"status": {"conditions": [condition]}}, "application/strategic-merge-patch+json")

    def set_taints(self, node: Node, changed: Callable[[Node], tuple[Json, ...]]) -> bool:
        """`changed`: the taints that a node is to have, called again when somebody else has changed the node meanwhile. False: it
        has them already."""
        path = f"/api/v1/nodes/{urllib.parse.quote(node.name)}"
        for attempt in range(TRIES):
            wanted = changed(node)
            if wanted == node.taints:
                return False
            change = {"metadata": {"resourceVersion": node.version}, "spec": {"taints": list(wanted)}}
            try:
                self._request("PATCH", path, change, "application/merge-patch+json")
            except ApiError as error:
                if error.status != 409 or attempt == TRIES - 1:
                    raise
                node = node_of(self._request("GET", path))
            else:
                return True
        return False

    def lease(self, name: str) -> Json:
        found: Json = self._request("GET", self._lease(name))
        return found

    def set_lease(self, name: str, change: Json) -> None:
        """Status 409: it is no longer the version that the change names."""
        self._request("PATCH", self._lease(name), change, "application/merge-patch+json")

    def _lease(self, name: str) -> str:
        namespace = (self._account / "namespace").read_text().strip()
        return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"

    def _request(self, method: str, path: str, body: Json | None = None, content: str = "application/json") -> Any:
        # Read again each time: the kubelet renews the token every hour.
        token = (self._account / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json", "Content-Type": content}
        try:
            if self._connection is None:
                self._connection = self._connected()
            self._connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = self._connection.getresponse()
            text = answer.read()
            if answer.status >= 300:
                raise ApiError(answer.status, _message(answer.status, text))
            return json.loads(text)
        except (OSError, ValueError, http.client.HTTPException) as error:
            self._close()
            raise ApiError(0, f"the API server does not answer: {error}") from None

    def _connected(self) -> http.client.HTTPSConnection:
        tls = ssl.create_default_context(cafile=os.fspath(self._account / "ca.crt"))
        return http.client.HTTPSConnection(self._host, self._port, timeout=ANSWER_S, context=tls)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _message(status: int, text: bytes) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return f"the API server answers {status}"
