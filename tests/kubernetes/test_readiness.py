"""The readiness of nodes on a real API server: the program as the cluster runs it, with its own permissions alone."""

from __future__ import annotations

import json
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from components.kubernetes import readiness
from components.kubernetes.values import ClusterPlan
from gpu_fleet.on_cluster.__main__ import Program
from gpu_fleet.on_cluster.marks import Settings
from gpu_fleet.on_cluster.nodes import ACCOUNT, CONDITION, TAINT, Api
from gpu_fleet.on_cluster.verdict import Store
from lab.kubernetes import Cluster
from tests.kubernetes.plans import plan

OTHERS = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


class Answers:
    """A store that answers each query of the table with what a test says of the nodes."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.fresh, self.failing, self.warnings, self.is_away = set(), {}, [], False
        self._fresh = {one["query"]: one["code"] for one in table["fresh"]}
        self._xids = table["signals"][0]["query"]
        self.headers: dict[str, str] = {}

    def __call__(self, query: str) -> list[dict[str, Any]]:
        if query in self._fresh:
            return [_sample({"instance": node}, 15) for node in self.fresh]
        if query == self._xids:
            labels = [{"instance": node, "pci": "0000:4b:00", "xid": xid, "class": ""} for node, xid in self.failing.items()]
            return [_sample(one, 99) for one in labels]
        return []


def _sample(labels: dict[str, str], value: float) -> dict[str, Any]:
    return {"metric": labels, "value": [time.time(), str(value)]}


@pytest.fixture
def store(wanted: ClusterPlan) -> Iterator[tuple[str, Answers]]:
    answers = Answers(json.loads(readiness.program_files(wanted)["gpu_fleet/on_cluster/table.json"]))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["query"][0]
            answers.headers = dict(self.headers)
            self.send_response(503 if answers.is_away else 200)
            self.end_headers()
            result = {
                "status": "success",
                "warnings": answers.warnings,
                "data": {"resultType": "vector", "result": answers(query)},
            }
            self.wfile.write(json.dumps(result).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", answers
        server.shutdown()


@pytest.fixture
def wanted(namespace: str) -> ClusterPlan:
    return plan(namespace=namespace, readiness={"kubernetes": "taint", "mostDrained": 20})


@pytest.fixture
def five(cluster: Cluster, namespace: str) -> Iterator[list[str]]:
    """Nodes of the test's own; the others of the cluster have no GPUs as far as it is concerned."""
    names = [f"{namespace}-{number}" for number in range(5)]
    for name in names:
        cluster.add_node(name, gpus=8, taints=[OTHERS])
    yield names
    for name in names:
        cluster.api.delete({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    for node in cluster.api.list("v1", "Node"):
        taints = [taint for taint in node["spec"].get("taints", []) if taint["key"] != TAINT]
        cluster.api.patch(node, {"spec": {"taints": taints}})


class Running:
    """The program with the service account of its objects. `round`: one, so many seconds from now."""

    def __init__(self, cluster: Cluster, wanted: ClusterPlan, url: str, directory: Path) -> None:
        self.cluster, self.directory = cluster, directory
        cluster.apply(*(one for one in readiness.objects(wanted) if one["kind"] != "Deployment"))
        namespace = wanted.section.namespace
        account = directory / ACCOUNT.lstrip("/")
        account.mkdir(parents=True)
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{readiness.NAME}/token"
        (account / "token").write_text(cluster.api.request("POST", path, request)["status"]["token"])
        (account / "ca.crt").write_bytes((cluster.directory / "ca.crt").read_bytes())
        address = urllib.parse.urlsplit(cluster.url)
        given = {one["name"]: one.get("value", "127.0.0.1") for one in readiness._environment(wanted)}
        self.environment = {
            **given,
            "GPU_FLEET_METRICS_QUERY_URL": url,
            "GPU_FLEET_METRICS_USERNAME": "",
            "KUBERNETES_SERVICE_HOST": str(address.hostname),
            "KUBERNETES_SERVICE_PORT": str(address.port),
            "GPU_FLEET_PREFIX": str(directory),
        }
        self.table = json.loads(readiness.program_files(wanted)["gpu_fleet/on_cluster/table.json"])
        self.settings = Settings(given["GPU_FLEET_READY_DOES"], float(given["GPU_FLEET_READY_MOST_DRAINED"]))
        self.api = Api(self.environment, str(directory))
        self.program = self.started()

    def started(self) -> Program:
        return Program(self.api, Store(self.environment, str(self.directory)), self.table, self.settings)

    def round(self, later_s: float = 0) -> None:
        self.program.round(time.time() + later_s)

    def node(self, name: str) -> dict[str, Any]:
        return self.cluster.api.read("v1", "Node", name) or {}

    def condition(self, name: str) -> dict[str, Any]:
        return next((one for one in self.node(name)["status"].get("conditions", []) if one["type"] == CONDITION), {})

    def taints(self, name: str) -> list[str]:
        return [taint["key"] for taint in self.node(name)["spec"].get("taints", [])]


@pytest.fixture
def running(
    cluster: Cluster, wanted: ClusterPlan, store: tuple[str, Answers], five: list[str], tmp_path: Path
) -> Iterator[Callable[..., Running]]:
    def run(does: str = "taint", most: float = 20) -> Running:
        section = {"kubernetes": does, "mostDrained": most}
        return Running(cluster, plan(namespace=wanted.section.namespace, readiness=section), store[0], tmp_path)

    store[1].fresh = set(five)
    yield run
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        cluster.api.delete({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": readiness.NAME}})


def test_a_node_that_fails_is_tainted_after_a_minute_and_freed_when_it_has_been_ready_for_five(
    running: Callable[..., Running], store: tuple[str, Answers], five: list[str]
) -> None:
    here, sick = running(), five[2]
    here.round()
    assert [here.condition(name)["status"] for name in five] == ["True"] * 5
    store[1].failing = {sick: "79"}
    here.round(10)
    condition = here.condition(sick)
    assert (condition["status"], condition["reason"]) == ("False", "Xid79")
    assert condition["message"].startswith("GPU 0000:4b:00: XID 79: Drain the node and reboot it")
    assert here.taints(sick) == ["nvidia.com/gpu"], "a failure of a moment taints nothing"
    here.round(75)
    assert here.taints(sick) == ["nvidia.com/gpu", TAINT]
    store[1].failing = {}
    here.round(100)
    assert (here.condition(sick)["status"], here.taints(sick)) == ("True", ["nvidia.com/gpu", TAINT])
    here.round(405)
    assert here.taints(sick) == ["nvidia.com/gpu"]
    assert "Ready" in [one["type"] for one in here.node(sick)["status"]["conditions"]], "the kubelet's own stay"
