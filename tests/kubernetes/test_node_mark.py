"""The removal of what the readiness program has set on nodes, by the provider, from a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_fleet.on_cluster.nodes import TAINT
from gpu_fleet.provider.kubernetes import ClusterApi
from gpu_fleet.provider.resources.node_mark import NodeMark
from gpu_fleet.provider.resources.resource import Call, ResourceError
from lab.kubernetes import Cluster

INPUTS = {"kind": "taint", "mark": TAINT}
OURS = {"key": TAINT, "value": "xid_79", "effect": "NoSchedule"}


@pytest.fixture
def node(cluster: Cluster, namespace: str) -> Iterator[str]:
    made = cluster.add_node(f"{namespace}-marked", gpus=8, taints=[OURS])
    yield made["metadata"]["name"]
    cluster.api.delete({"apiVersion": "v1", "kind": "Node", "metadata": {"name": made["metadata"]["name"]}})


def taints(cluster: Cluster, name: str) -> set[str]:
    return {taint["key"] for taint in cluster.api.read("v1", "Node", name)["spec"].get("taints", [])}


def delete(mark: NodeMark, **inputs: Any) -> list[str]:
    """The warnings."""
    said: list[str] = []
    nothing = lambda *_: None  # noqa: E731
    call = Call("urn", False, None, progress=nothing, info=nothing, warning=said.append, sending=nothing)
    asyncio.run(mark.delete("id", {**INPUTS, **inputs}, {}, call))
    return said


def test_a_taint_that_somebody_sets_during_the_removal_stays(
    cluster: Cluster, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = ClusterApi(file=str(cluster.kubeconfig))
    patch = api.patch

    def slow(path: str, change: Any, content: str) -> None:
        monkeypatch.setattr(api, "patch", patch)
        now = cluster.api.read("v1", "Node", node)
        theirs = {"key": "example.com/theirs", "effect": "NoExecute"}
        cluster.api.patch(now, {"spec": {"taints": [*now["spec"]["taints"], theirs]}})
        patch(path, change, content)

    monkeypatch.setattr(api, "patch", slow)
    assert delete(NodeMark(api)) == []
    assert TAINT not in taints(cluster, node) and "example.com/theirs" in taints(cluster, node)


def test_a_cluster_that_does_not_answer_fails_the_removal_and_one_that_nobody_names_is_a_warning(
    cluster: Cluster, node: str
) -> None:
    with pytest.raises(ResourceError, match=f"the taint {TAINT} was not removed from every node"):
        delete(NodeMark(None), place={"kubeconfig": "/nowhere/kubeconfig"})
    assert "stays on the nodes that have it" in delete(NodeMark(None))[0]
    assert TAINT in taints(cluster, node)
    assert delete(NodeMark(None), place={"kubeconfig": str(cluster.kubeconfig)}) == []
    assert TAINT not in taints(cluster, node), "the section was removed, and the state still knows where the cluster is"
