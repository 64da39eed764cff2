"""The kubernetes plugin, for the stand-in and where it is for the official one, with the cluster that all tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.kubernetes import Cluster
from tests.standins.running import RunningPlugin, binaries, name_of


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kubernetes_binary" in metafunc.fixturenames:
        found = binaries("pulumi-resource-kubernetes")
        metafunc.parametrize("kubernetes_binary", found, ids=name_of, scope="session")


@pytest.fixture(scope="session")
def started(kubernetes_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], RunningPlugin]]:
    plugins = []

    def start() -> RunningPlugin:
        plugins.append(RunningPlugin(kubernetes_binary, tmp_path_factory.mktemp("kubernetes")))
        return plugins[-1]

    yield start
    for plugin in plugins:
        plugin.stop()


@pytest.fixture(scope="session")
def kubernetes(started: Callable[[], RunningPlugin], cluster: Cluster) -> RunningPlugin:
    plugin = started()
    plugin.configure({"kubeconfig": str(cluster.kubeconfig)})
    return plugin


@pytest.fixture(scope="session")
def mutable(started: Callable[[], RunningPlugin], cluster: Cluster) -> RunningPlugin:
    """Configured to change ConfigMaps and Secrets in place."""
    plugin = started()
    settings = {"enableConfigMapMutable": "true", "enableSecretMutable": "true"}
    plugin.configure({"kubeconfig": cluster.kubeconfig.read_text(), **settings})
    return plugin


@pytest.fixture(scope="session")
def configured(started: Callable[[], RunningPlugin]) -> Callable[..., RunningPlugin]:
    """One more each time, as the engine starts one for each configuration."""

    def configure(**config: str) -> RunningPlugin:
        plugin = started()
        plugin.configure(config)
        return plugin

    return configure
