"""GPU nodes: a pod's GPU has its name in the metrics of the exporter on its node, and the load that the pod puts on it."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lab.kubernetes import Cluster
from lab.kubernetes.gpu_nodes import GpuNodes

COUNTERS = "DCGM_FI_DEV_GPU_UTIL, gauge, Utilization\nDCGM_FI_PROF_PIPE_TENSOR_ACTIVE, gauge, Tensor\n"
TOLERATIONS = [{"operator": "Exists"}]


@pytest.fixture(scope="module")
def nodes(cluster: Cluster) -> Iterator[GpuNodes]:
    with GpuNodes(cluster, interval_s=0.1) as nodes:
        yield nodes


@pytest.fixture
def exporter(cluster: Cluster, namespace: str, nodes: GpuNodes) -> Callable[[str], list[str]]:
    """The lines of a metric that the exporters of all GPU nodes answer now."""
    mount = {"name": "counters", "mountPath": "/etc/dcgm-exporter/my.csv", "subPath": "my.csv"}
    container = {
        "name": "exporter",
        "image": "nvcr.io/nvidia/k8s/dcgm-exporter:4.5.3-4.8.2-distroless",
        "args": ["-f", "/etc/dcgm-exporter/my.csv"],
        "env": [{"name": "DCGM_EXPORTER_KUBERNETES", "value": "true"}, {"name": "DCGM_EXPORTER_LISTEN", "value": ":9400"}],
        "volumeMounts": [mount],
    }
    pod = {
        "tolerations": TOLERATIONS,
        "nodeSelector": {"nvidia.com/gpu.present": "true"},
        "containers": [container],
        "volumes": [{"name": "counters", "configMap": {"name": "counters", "items": [{"key": "metrics", "path": "my.csv"}]}}],
    }
    labels = {"app": "exporter"}
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
    meta = {"namespace": namespace}
    cluster.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**meta, "name": "counters"}, "data": {"metrics": COUNTERS}},
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {**meta, "name": "exporter"}, "spec": spec},
    )

    def lines(metric: str) -> list[str]:
        found = []
        for pod in cluster.api.list("v1", "Pod", namespace, "app=exporter"):
            try:
                with urllib.request.urlopen(f"http://{pod['status']['podIP']}:9400/metrics", timeout=60) as answer:
                    found += [line for line in answer.read().decode().splitlines() if line.startswith(f"{metric}{{")]
            except (OSError, KeyError):
                return []  # not up yet
        return found

    cluster.wait_for("the exporters", lambda: len(lines("DCGM_FI_DEV_GPU_UTIL")) == 16)
    return lines


def job(namespace: str, name: str, gpus: int, *command: str) -> dict[str, Any]:
    limits = {"limits": {"nvidia.com/gpu": gpus}}
    container = {"name": "main", "image": "registry.example/x:1", "command": list(command), "resources": limits}
    annotations = {"lab.gpu-fleet.invalid/runs-for": "60s"} if not command else {}
    template = {
        "metadata": {"annotations": annotations},
        "spec": {"restartPolicy": "Never", "tolerations": TOLERATIONS, "containers": [container]},
    }
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"backoffLimit": 0, "template": template}}


def value(line: str) -> float:
    return float(line.rsplit(" ", 1)[1])


def test_the_gpus_of_a_pod_carry_its_name_and_others_none(exporter: Callable, cluster: Cluster, namespace: str) -> None:
    cluster.apply(job(namespace, "train", 2))
    held = lambda: [line for line in exporter("DCGM_FI_DEV_GPU_UTIL") if f'namespace="{namespace}",pod="train-' in line]  # noqa: E731
    assert len(cluster.wait_for("two GPUs with a pod", lambda: len(held()) == 2 and held())) == 2
    lines = exporter("DCGM_FI_DEV_GPU_UTIL")
    assert len({re.search('UUID="([^"]+)"', line)[1] for line in lines}) == 16, "no two GPUs of a fleet are the same"
    assert all(value(line) == 0 for line in held()), "allocated and idle"


def test_a_load_test_is_seen_on_the_gpu_of_its_pod_and_ends(exporter: Callable, cluster: Cluster, namespace: str) -> None:
    cluster.apply(job(namespace, "load", 1, "dcgmproftester12", "--no-dcgm-validation", "-t", "1004", "-d", "8"))
    loaded = lambda: [line for line in exporter("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE") if value(line) == 0.87]  # noqa: E731
    (line,) = cluster.wait_for("a loaded GPU", loaded)
    assert f'container="main",namespace="{namespace}",pod="load-' in line
    cluster.wait_for("its end", lambda: not loaded())
