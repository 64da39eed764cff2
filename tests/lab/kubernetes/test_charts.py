"""The lab's own charts: the API server takes what they make, and helm takes all of it away again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.kubernetes import Cluster
from lab.kubernetes.chart_packages import package
from tests.helm import helm
from toolchain.versions import chart

# The stack first: its CRDs are what the monitors of the others are made of.
CHARTS = (
    *("kube-prometheus-stack", "dcgm-exporter", "gpu-operator", "alloy", "node-exporter", "kube-state-metrics"),
    "prometheus-adapter",
)
WITH_MONITORS = {
    "gpu-operator": "dcgmExporter.serviceMonitor.enabled=true",
    "node-exporter": "prometheus.monitor.enabled=true",
    "kube-state-metrics": "prometheus.monitor.enabled=true",
    "dcgm-exporter": "customMetrics=DCGM_FI_DEV_GPU_TEMP\\, gauge\\, Temperature",
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[dict[str, Path]]:
    directory = tmp_path_factory.mktemp("charts")
    yield {name: package(name, directory) for name in CHARTS}
    for crd in cluster.api.list("apiextensions.k8s.io/v1", "CustomResourceDefinition"):  # helm leaves them
        cluster.api.delete(crd)


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_is_installed_and_uninstalled(name: str, packages: dict[str, Path], cluster: Cluster, namespace: str) -> None:
    settings = ["--set", WITH_MONITORS[name]] if name in WITH_MONITORS else []
    helm(cluster, "install", name, packages[name], "--namespace", namespace, *settings)
    kinds = {document.split()[0] for document in helm(cluster, "get", "manifest", name, "-n", namespace).split("\nkind: ")[1:]}
    assert kinds & {"DaemonSet", "Deployment"}
    assert ("ServiceMonitor" in kinds) == (name not in ("alloy", "prometheus-adapter")), "monitors are what the tests are about"
    helm(cluster, "uninstall", name, "--namespace", namespace)
    assert helm(cluster, "list", "--all", "--short", "--namespace", namespace) == ""


def test_a_package_has_the_version_that_is_pinned_for_the_official_chart(packages: dict[str, Path]) -> None:
    assert {name: file.name for name, file in packages.items()} == {
        name: f"{chart(name).chart}-{chart(name).version}.tgz" for name in CHARTS
    }
