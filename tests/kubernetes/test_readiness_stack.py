"""The readiness of nodes as a stack installs it, changes it and takes it away: real Pulumi, real API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpu_fleet.on_cluster.nodes import CONDITION, TAINT
from lab.kubernetes import Cluster
from lab.kubernetes.chart_packages import package
from tests.hosts.stack import Stack

NAMESPACE = "gpu-readiness"
OTHERS = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
OURS = {"key": TAINT, "value": "xid_79", "effect": "NoSchedule"}
CHARTS = {"dcgmExporter": "dcgm-exporter", "alloy": "alloy"}


@pytest.fixture(scope="module")
def stack(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("stack")
    charts = {key: {"chart": str(package(name, directory / "charts").relative_to(directory))} for key, name in CHARTS.items()}
    section = {"kubeconfig": str(cluster.kubeconfig), "namespace": NAMESPACE, "nodeExporter": "none", "kubeStateMetrics": "none"}
    config = {
        "datacenter": "lab-west",
        "cluster": "training",
        "metrics": {"url": "http://127.0.0.1:9009/api/v1/push"},
        "kubernetes": {**section, "timeout": 300, "charts": charts},
        "readiness": {"kubernetes": "taint"},
    }
    stack = Stack(directory, "readiness", config).create()
    yield stack
    stack.clear()


@pytest.fixture
def marked(cluster: Cluster) -> Iterator[str]:
    """A node that the program has marked, and others too."""
    name = "marked-node"
    node = cluster.add_node(name, gpus=8, taints=[OTHERS, OURS])
    cluster.wait_for("Ready", lambda: "Ready" in conditions(cluster, name))
    for kind in (CONDITION, "KernelDeadlock"):
        cluster.api.request(
            "PATCH",
            f"/api/v1/nodes/{name}/status",
            {"status": {"conditions": [{"type": kind, "status": "False"}]}},
            content="application/strategic-merge-patch+json",
        )
    yield name
    cluster.api.delete(node)


def conditions(cluster: Cluster, name: str) -> set[str]:
    return {one["type"] for one in cluster.api.read("v1", "Node", name)["status"].get("conditions", [])}


def taints(cluster: Cluster, name: str) -> list[str]:
    return [one["key"] for one in cluster.api.read("v1", "Node", name)["spec"].get("taints", [])]


def rules(cluster: Cluster) -> list[dict[str, Any]]:
    return cluster.api.read("rbac.authorization.k8s.io/v1", "ClusterRole", "gpu-fleet-ready")["rules"]


def test_what_the_program_sets_goes_when_the_stack_file_no_longer_asks_for_it(
    stack: Stack, cluster: Cluster, marked: str
) -> None:
    """node-problem-detector's issues 423, 470 and 1011: conditions stay for ever when what set them has gone."""
    assert f"Deployment {NAMESPACE}/" not in stack.pulumi("preview")
    stack.up()
    deployment = cluster.api.read("apps/v1", "Deployment", "gpu-fleet-ready", NAMESPACE)
    assert deployment["status"]["readyReplicas"] == 1
    tolerations = cluster.api.read("apps/v1", "DaemonSet", "dcgm-exporter", NAMESPACE)["spec"]["template"]["spec"]["tolerations"]
    assert TAINT in [one.get("key") for one in tolerations], "the exporter has to start on a tainted node, too"
    assert taints(cluster, marked) == ["nvidia.com/gpu", TAINT], "an installation changes no node"
    stack.up("--refresh")  # an old plugin for Kubernetes loses empty lists: tests/kubernetes/test_gpu_cluster.py
    stack.up_unchanged()

    stack.config["readiness"] = {"kubernetes": "condition"}
    stack.write()
    stack.up()
    assert taints(cluster, marked) == ["nvidia.com/gpu"]
    assert {CONDITION, "KernelDeadlock", "Ready"} <= conditions(cluster, marked)
    assert {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]} not in rules(cluster)

    stack.config["readiness"] = {}
    stack.write()
    stack.up()
    assert CONDITION not in conditions(cluster, marked) and {"KernelDeadlock", "Ready"} <= conditions(cluster, marked)
    assert rules(cluster) == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}], "a dry run reads alone"


def test_marks_and_permissions_go_with_the_stack(stack: Stack, cluster: Cluster, marked: str) -> None:
    stack.config["readiness"] = {"kubernetes": "taint"}
    stack.write()
    stack.up()
    del stack.config["kubernetes"], stack.config["readiness"]
    stack.write()
    stack.up()
    assert taints(cluster, marked) == ["nvidia.com/gpu"]
    assert CONDITION not in conditions(cluster, marked)
    assert cluster.api.read("rbac.authorization.k8s.io/v1", "ClusterRole", "gpu-fleet-ready") is None
