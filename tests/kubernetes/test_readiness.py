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
from gpu_fleet.on_cluster.lease import LEASE_S, Lease
from gpu_fleet.on_cluster.marks import HEARTBEAT_S, Settings
from gpu_fleet.on_cluster.nodes import ACCOUNT, CONDITION, TAINT, Api, ApiError
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
    """GPU nodes of the test's own. The cluster has two more, which its store does not know."""
    names = [f"{namespace}-{number}" for number in range(5)]
    for name in names:
        cluster.add_node(name, gpus=8, taints=[OTHERS])
    for name in names:
        cluster.wait_for(f"{name} to be ready", lambda name=name: _is_ready(cluster.api.read("v1", "Node", name)))
    yield names
    for name in names:
        cluster.api.delete({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    cleared(cluster)


def cleared(cluster: Cluster) -> None:
    """The nodes that every test uses, as they were."""
    for node in cluster.api.list("v1", "Node"):
        taints = [taint for taint in node["spec"].get("taints", []) if taint["key"] != TAINT]
        cluster.api.patch(node, {"spec": {"taints": taints}})
        gone = {"status": {"conditions": [{"$patch": "delete", "type": CONDITION}]}}
        path = f"/api/v1/nodes/{node['metadata']['name']}/status"
        cluster.api.request("PATCH", path, gone, content="application/strategic-merge-patch+json")
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        cluster.api.delete({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": readiness.NAME}})


def _is_ready(node: dict[str, Any]) -> bool:
    """And the node controller has seen it, and has removed the taint that every new node has."""
    return len(node["spec"]["taints"]) == 1 and "Ready" in [one["type"] for one in node["status"].get("conditions", [])]


class Running:
    """The program with the service account of its objects. `round`: one, so many seconds from now."""

    def __init__(self, cluster: Cluster, wanted: ClusterPlan, url: str, directory: Path) -> None:
        self.cluster, self.directory = cluster, directory
        cluster.apply(*(one for one in readiness.objects(wanted) if one["kind"] != "Deployment"))
        self.namespace = namespace = wanted.section.namespace
        account = directory / ACCOUNT.lstrip("/")
        account.mkdir(parents=True)
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{readiness.NAME}/token"
        (account / "namespace").write_text(namespace)
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
        store = Store(self.environment, str(self.directory))
        return Program(self.api, store, self.table, self.settings, Lease(self.api, "pod-a"))

    def beside(self, answers: Answers) -> Program:
        """Another pod, whose store gives other answers."""
        api = Api(self.environment, str(self.directory))
        store = lambda query: [(one["metric"], float(one["value"][1])) for one in answers(query)]  # noqa: E731
        return Program(api, store, self.table, self.settings, Lease(api, "pod-b"))

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
) -> Callable[..., Running]:
    def run(does: str = "taint", most: float = 20) -> Running:
        section = {"kubernetes": does, "mostDrained": most}
        return Running(cluster, plan(namespace=wanted.section.namespace, readiness=section), store[0], tmp_path)

    store[1].fresh = set(five)
    return run


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


def test_no_more_than_the_share_is_tainted_and_the_limit_holds_back_no_return(
    running: Callable[..., Running], store: tuple[str, Answers], five: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault of ours, or of a driver's release, must not empty a cluster. NVSentinel's breaker, once tripped, also kept
    recovered nodes from returning (its pull request 1852)."""
    here = running(most=40)
    store[1].failing = dict.fromkeys(five, "79")
    here.round()
    here.round(70)
    here.round(100)
    tainted = [name for name in five if TAINT in here.taints(name)]
    assert tainted == five[:2], "of seven nodes two are less than 40 percent, and three more"
    refused = {name: f'gpu_fleet_ready_drain_refused{{instance="{name}"}}' for name in five}
    assert [f"{series} {int(name not in tainted)}" in here.program.text for name, series in refused.items()] == [True] * 5
    said = f"of 7 GPU nodes no more than 2 may be by us: {five[4]}"
    assert capsys.readouterr().out.count(said) == 1, "once, and not every 30 seconds"
    assert here.condition(five[4])["status"] == "False", "the condition is no matter of a limit"

    store[1].failing = dict.fromkeys(five[1:], "79")
    here.round(130)
    here.round(435)
    assert [name for name in five if TAINT in here.taints(name)] == [five[1]], "one returns"
    here.round(465)
    assert [name for name in five if TAINT in here.taints(name)] == five[1:3], "another one is tainted in its place"


def test_a_dry_run_changes_nothing_says_what_it_would_do_and_may_do_no_more(
    running: Callable[..., Running], store: tuple[str, Answers], five: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    here = running("dry-run")
    store[1].failing = {five[0]: "79"}
    for later_s in (0, 70, 140):
        here.round(later_s)
    assert [(here.condition(name), here.taints(name)) for name in five] == [({}, ["nvidia.com/gpu"])] * 5
    assert capsys.readouterr().out.count(f"dry-run: would taint {five[0]}: GPU 0000:4b:00: XID 79") == 1
    assert f'gpu_fleet_ready_state{{instance="{five[0]}"}} 2' in here.program.text
    assert f'gpu_fleet_ready_schedulable{{instance="{five[0]}"}} 1' in here.program.text, "HostNotDrained fires"
    node = here.api.nodes()[five[0]]
    for change in (
        lambda: here.api.set_condition(five[0], {"type": CONDITION, "status": "True"}),
        lambda: here.api.set_taints(node, lambda node: ()),
    ):
        with pytest.raises(ApiError, match="cannot patch resource"):
            change()


def test_with_the_condition_alone_the_program_may_change_no_taint(
    running: Callable[..., Running], store: tuple[str, Answers], five: list[str]
) -> None:
    here = running("condition")
    store[1].failing = {five[0]: "79"}
    here.round()
    here.round(100)
    assert here.condition(five[0])["status"] == "False" and here.taints(five[0]) == ["nvidia.com/gpu"]
    with pytest.raises(ApiError, match="cannot patch resource"):
        here.api.set_taints(here.api.nodes()[five[0]], lambda node: ())


def test_what_is_not_known_is_neither_ready_nor_a_reason_to_taint(
    running: Callable[..., Running], store: tuple[str, Answers], five: list[str]
) -> None:
    here = running()
    store[1].failing = {five[1]: "79"}
    here.round()
    here.round(70)
    assert TAINT in here.taints(five[1])
    store[1].fresh, store[1].failing = set(five[1:]), {}
    here.round(100)
    unknown = here.condition(five[0])
    assert (unknown["status"], unknown["reason"]) == ("Unknown", "ExporterOld")
    store[1].is_away = True
    for later_s in (130, 500, 900):
        here.round(later_s)
    assert {here.condition(name)["status"] for name in five} == {"Unknown"}
    assert {here.condition(name)["message"] for name in five} == {"the store of the metrics does not answer"}
    assert [TAINT in here.taints(name) for name in five] == [False, True, False, False, False], (
        "unknown frees no node, and taints none"
    )
    store[1].is_away, store[1].warnings = False, ["a store of Thanos did not answer"]
    here.round(930)
    assert {here.condition(name)["status"] for name in five} == {"Unknown"}, "what a part of a store knows is not all"


def test_taints_of_somebody_else_at_the_same_moment_stay(
    running: Callable[..., Running], store: tuple[str, Answers], five: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ottoyiu/k8s-ec2-srcdst issue 18, kubernetes issue 126755: taints that were written between another one's read and write
    were lost, for the list is one value."""
    here, sick = running(), five[0]
    store[1].failing = {sick: "79"}
    here.round()
    theirs = {"key": "example.com/theirs", "value": "a", "effect": "NoExecute"}

    def between(key: str) -> None:
        """Somebody writes taints after the program has read the node and before it writes."""
        request = here.api._request

        def slow(method: str, path: str, *rest: Any) -> Any:
            if method == "PATCH" and not path.endswith("/status"):
                monkeypatch.setattr(here.api, "_request", request)
                node = here.node(sick)
                taints = [*node["spec"]["taints"], {**theirs, "key": key}]
                here.cluster.api.patch(node, {"spec": {"taints": taints}})
            return request(method, path, *rest)

        monkeypatch.setattr(here.api, "_request", slow)

    between("example.com/first")
    here.round(70)
    assert here.taints(sick) == ["nvidia.com/gpu", "example.com/first", TAINT]
    store[1].failing = {}
    here.round(100)
    between("example.com/second")
    here.round(405)
    assert here.taints(sick) == ["nvidia.com/gpu", "example.com/first", "example.com/second"]


def test_of_two_pods_whose_stores_differ_one_writes_and_the_share_holds(
    running: Callable[..., Running], store: tuple[str, Answers], five: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that lost its network keeps its pod while the Deployment makes another; a store may have replicas that differ."""
    here, now = running(most=20), time.time()
    first, answers = store[1], Answers(here.table)
    second = here.beside(answers)
    answers.fresh = set(five)
    first.failing = answers.failing = {five[0]: "79", five[3]: "79"}
    here.program.round(now)
    first.failing, answers.failing = {five[0]: "79"}, {five[3]: "79"}
    request = here.api._request

    def slow(method: str, path: str, *rest: Any) -> Any:
        if method == "PATCH" and "/nodes/" in path and not path.endswith("/status"):
            monkeypatch.setattr(here.api, "_request", request)
            second.round(now + 70)  # after the first has counted the taints, and before it sets one
        return request(method, path, *rest)

    monkeypatch.setattr(here.api, "_request", slow)
    here.program.round(now + 70)
    tainted = lambda: [name for name in five if TAINT in here.taints(name)]  # noqa: E731
    assert tainted() == [five[0]], "of seven nodes one is 20 percent"

    for later_s in range(100, 70 + LEASE_S, 30):
        second.round(now + later_s)
    assert here.condition(five[0])["status"] == "False", "the first may still be writing"
    second.round(now + 70 + LEASE_S)
    assert [here.condition(five[place])["status"] for place in (0, 3)] == ["True", "False"], "the first is gone"
    here.program.round(now + 75 + LEASE_S)
    assert here.condition(five[0])["status"] == "True", "the first is back, and only looks"
    second.round(now + 480 + LEASE_S)
    second.round(now + 510 + LEASE_S)
    assert tainted() == [five[3]]


def test_without_its_lease_nothing_is_written(
    running: Callable[..., Running], store: tuple[str, Answers], five: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    here = running()
    lease = here.cluster.api.read("coordination.k8s.io/v1", "Lease", readiness.NAME, here.namespace)
    here.cluster.api.delete(lease)
    here.round()
    here.round(30)
    assert here.condition(five[0]) == {} and f'gpu_fleet_ready_state{{instance="{five[0]}"}} 0' in here.program.text
    assert capsys.readouterr().out.count("nothing is written: the Lease gpu-fleet-ready is not available: ") == 1


def test_a_cordon_of_somebody_else_is_left_and_needs_no_taint(
    running: Callable[..., Running], store: tuple[str, Answers], five: list[str]
) -> None:
    """NVSentinel issue 1424: a node that somebody had cordoned was made schedulable when its own fault was over."""
    here = running(most=100)
    store[1].failing = dict.fromkeys(five[:2], "79")
    here.cluster.api.patch(here.node(five[0]), {"spec": {"unschedulable": True}})
    here.round()
    here.round(70)
    assert [TAINT in here.taints(name) for name in five[:2]] == [False, True]
    here.cluster.api.patch(here.node(five[1]), {"spec": {"unschedulable": True}})
    store[1].failing = {}
    here.round(100)
    here.round(405)
    assert [here.node(name)["spec"].get("unschedulable") for name in five[:2]] == [True, True]
    assert TAINT not in here.taints(five[1])
    assert f'gpu_fleet_ready_schedulable{{instance="{five[1]}"}} 0' in here.program.text, "HostDrainedButReady will fire"


def test_a_restarted_program_goes_on_where_the_old_one_stopped(
    running: Callable[..., Running], store: tuple[str, Answers], five: list[str]
) -> None:
    """node-problem-detector issue 304: each restart set all conditions to their first value until they were found again."""
    here, sick = running(), five[0]
    store[1].failing = {sick: "79"}
    here.round()
    before = here.condition(sick)
    here.program, store[1].is_away = here.started(), True
    here.round(30)
    assert here.condition(sick)["status"] == "Unknown", "known to nobody: never ready"
    store[1].is_away = False
    here.round(60)
    here.program = here.started()
    here.round(130)
    assert TAINT in here.taints(sick) and here.condition(sick)["message"] == before["message"]


def test_a_node_is_written_when_something_changes_and_every_five_minutes(
    running: Callable[..., Running], store: tuple[str, Answers], five: list[str]
) -> None:
    """Each write of a condition is one of the whole node, to every watcher of it."""
    here = running("condition")
    store[1].failing = {five[0]: "79"}
    here.round()
    before = [here.condition(name) for name in five]
    for later_s in range(30, HEARTBEAT_S // 2, 30):  # the rest is for a machine on which the rounds themselves take long
        here.round(later_s)
    assert [here.condition(name) for name in five] == before
    here.round(HEARTBEAT_S + 1)
    after = [here.condition(name) for name in five]
    assert [one["lastHeartbeatTime"] for one in after] > [one["lastHeartbeatTime"] for one in before]
    assert [one["lastTransitionTime"] for one in after] == [one["lastTransitionTime"] for one in before]


def test_nodes_without_gpus_get_nothing(running: Callable[..., Running], store: tuple[str, Answers], five: list[str]) -> None:
    here = running()
    here.round()
    assert here.condition("cpu-node-1") == {} and "cpu-node-1" not in here.program.text
    assert f'gpu_fleet_ready_state{{instance="{five[0]}"}} 0' in here.program.text
