"""A cluster for the tests of each file that asks for one."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from lab.kubernetes import Cluster

GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One for the tests of a file: a test works in a namespace of its own, and takes away what belongs to none."""
    with Cluster.up() as cluster:
        cluster.add_node("cpu-node-1")
        for name in ("gpu-node-1", "gpu-node-2"):
            cluster.add_node(name, gpus=8, taints=[GPU_TAINT])
        yield cluster


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own. The GPUs of its pods are released afterwards."""
    name = cluster.namespace(f"test-{secrets.token_hex(4)}")
    yield name
    cluster.api.delete({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
