"""The objects of the readiness program: what its pod may do, what it runs, and who reaches it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from components.kubernetes import readiness, values
from gpu_fleet.on_cluster import marks
from gpu_fleet.on_cluster.__main__ import PORT
from gpu_fleet.on_cluster.lease import LEASE
from gpu_fleet.on_cluster.marks import Plan, Settings
from gpu_fleet.on_cluster.nodes import TAINT, Node
from gpu_fleet.on_cluster.verdict import Reason
from gpu_fleet.toolchain.versions import image
from lab.ports import free_ports
from tests.kubernetes.plans import MIMIR, plan

MIRROR = f"registry.example.com/library/python@sha256:{'1' * 64}"


def pod(**section: Any) -> dict[str, Any]:
    metrics = {**MIMIR, "bearerToken": True, "tls": {"ca": "ca.pem"}}
    wanted = plan(metrics=metrics, readiness=section, tolerations=[{"key": "sku", "operator": "Exists"}])
    (deployment,) = [one for one in readiness.objects(wanted) if one["kind"] == "Deployment"]
    return deployment["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("does", "verbs"),
    [
        ("dry-run", {"nodes": {"list"}}),
        ("condition", {"nodes": {"list", "get"}, "nodes/status": {"patch"}}),
        ("taint", {"nodes": {"list", "get", "patch"}, "nodes/status": {"patch"}}),
    ],
)
def test_the_program_may_do_with_nodes_what_the_stack_file_asks_for(does: str, verbs: dict[str, set[str]]) -> None:
    found: dict[str, set[str]] = {}
    for rule in readiness.rules(does):
        assert rule["apiGroups"] == [""]
        for resource in rule["resources"]:
            found.setdefault(resource, set()).update(rule["verbs"])
    assert found == verbs
    of_namespace = [one["rules"] for one in readiness.objects(plan(readiness={"kubernetes": does})) if one["kind"] == "Role"]
    lease = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [LEASE], "verbs": ["get", "patch"]}
    assert of_namespace == ([] if does == "dry-run" else [[lease]])
    given = pod(kubernetes=does)
    (container,) = given["containers"]
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]} and given["securityContext"]["runAsNonRoot"]


def test_the_image_is_pinned_by_its_digest_or_the_one_of_the_stack_file() -> None:
    assert pod()["containers"][0]["image"] == image("python").reference and "@sha256:" in image("python").reference
    assert pod(image=MIRROR)["containers"][0]["image"] == MIRROR


def test_passwords_are_files_of_the_secret_and_in_no_variable() -> None:
    (container,) = pod()["containers"]
    given = {one["name"]: one.get("value") for one in container["env"]}
    assert given["GPU_FLEET_METRICS_PASSWORD_FILE"] == "/etc/gpu-fleet/secrets/metrics-password"
    assert given["GPU_FLEET_METRICS_BEARER_TOKEN_FILE"] == "/etc/gpu-fleet/secrets/metrics-bearer-token"
    assert given["GPU_FLEET_METRICS_CA_FILE"] == "/etc/gpu-fleet/secrets/metrics-ca.pem"
    assert given["GPU_FLEET_METRICS_QUERY_URL"] == "https://mimir.example.com/prometheus"
    assert "/etc/gpu-fleet/secrets" in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_it_finds_a_place_where_every_node_has_a_taint() -> None:
    assert {"sku", TAINT} <= {one["key"] for one in pod()["tolerations"]}


def test_an_exporter_starts_on_a_tainted_node_only_where_we_taint() -> None:
    """Otherwise one that is restarted there says nothing more, the node stays unknown, and the taint for ever."""
    for does, expected in (("taint", True), ("condition", False)):
        wanted = plan(readiness={"kubernetes": does})
        tolerations = values.dcgm_exporter(wanted)["tolerations"], values.gpu_operator(wanted)["daemonsets"]["tolerations"]
        assert [TAINT in [one.get("key") for one in found] for found in tolerations] == [expected] * 2


def test_only_the_scraper_may_connect_to_it() -> None:
    def covered(**section: Any) -> list[str]:
        policy = values.network_policies(plan(**section))[0]
        return policy["spec"]["podSelector"]["matchExpressions"][0]["values"]

    assert "gpu-fleet-ready" in covered(readiness={}) and "gpu-fleet-ready" not in covered()


def test_with_an_operator_a_pod_monitor_keeps_the_node_of_each_series() -> None:
    (monitor,) = values.monitors(plan(prometheusOperator="install", readiness={}))
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert monitor["metadata"]["name"] == "gpu-fleet-ready" and endpoint["honorLabels"]
    labels = {one["targetLabel"]: one["replacement"] for one in endpoint["relabelings"] if "replacement" in one}
    assert labels["job"] == labels["instance"] == "gpu-fleet-ready" and labels["cluster"] == "training"


def test_a_pod_whose_clock_was_ahead_holds_back_no_taint() -> None:
    """An hour: the Lease went to a pod on another node."""
    fails, settings, now = {"n": [Reason("fail", "xid_79", "", "XID 79")]}, Settings("taint", 100), 1_800_000_000.0
    node = Node("n", "1", has_gpus=True, is_cordoned=False, taints=(), condition={})
    ahead = changes(node, fails, settings, now + 3600)
    node = node._replace(condition=ahead.conditions["n"])
    assert ahead.taint == {}
    at_once = changes(node, fails, settings, now)
    assert at_once.conditions["n"]["lastTransitionTime"] == "2027-01-15T08:00:00Z" and at_once.taint == {}
    node = node._replace(condition=at_once.conditions["n"])
    assert list(changes(node, fails, settings, now + 60).taint) == ["n"]


def changes(node: Node, found: dict[str, list[Reason]], settings: Settings, now: float) -> Plan:
    return marks.plan({node.name: node}, found, settings, now)


def test_the_mounted_files_are_a_whole_program_of_the_standard_library(tmp_path: Path) -> None:
    """As the pod starts it: without this project, with the variables of the pod."""
    wanted = plan(metrics={"url": MIMIR["url"]}, readiness={})
    files = readiness.program_files(wanted)
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        if path.endswith(".py"):
            imported = {name for node in ast.walk(ast.parse(text)) for name in _absolute(node)}
            assert imported <= set(sys.stdlib_module_names), path
    (deployment,) = [one for one in readiness.objects(wanted) if one["kind"] == "Deployment"]
    spec = deployment["spec"]["template"]["spec"]
    assert [one["path"] for one in spec["volumes"][0]["configMap"]["items"]] == list(files)
    (container,) = spec["containers"]
    (nowhere,) = free_ports(1)
    # A whole network of addresses is on loopback: another test may use the port on another one.
    address = f"127.77.{nowhere >> 8}.{nowhere & 255}"
    environment = {one["name"]: one.get("value", address) for one in container["env"]}
    environment |= {"PYTHONPATH": str(tmp_path), "GPU_FLEET_PREFIX": str(tmp_path / "root")}
    environment |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(nowhere)}
    account = tmp_path / "root/var/run/secrets/kubernetes.io/serviceaccount"
    account.mkdir(parents=True)
    (account / "token").write_text("token")
    (account / "ca.crt").write_text(Path("/etc/ssl/certs/ca-certificates.crt").read_text())
    process = subprocess.Popen(
        [sys.executable, *container["command"][1:]],
        env={"PATH": os.environ["PATH"], **environment},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("the nodes cannot be read: the API server does not answer")
        with urllib.request.urlopen(f"http://{address}:{PORT}/healthz", timeout=10) as answer:
            assert answer.read() == b"ok\n", "an API server that is away is no reason to restart"
        with urllib.request.urlopen(f"http://{address}:{PORT}/metrics", timeout=10) as answer:
            assert answer.read() == b"", "what nobody evaluated is not served"
        process.terminate()
        assert process.wait(5) == 0, "the kubelet would wait for half a minute"
    finally:
        process.kill()
        process.wait()


def _absolute(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level and node.module:
        return [node.module.partition(".")[0]]
    return []
