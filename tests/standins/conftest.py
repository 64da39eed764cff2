"""The plugins under test and what they act on; plugin tests run for the stand-in and, where it is, for the official one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standins.grafana_server import GrafanaServer
from tests.standins.project import Project
from tests.standins.running import RunningPlugin, binaries, name_of


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for plugin in ("command", "grafana"):
        if f"{plugin}_binary" in metafunc.fixturenames:
            found = binaries(f"pulumi-resource-{plugin}")
            metafunc.parametrize(f"{plugin}_binary", found, ids=name_of, scope="session")


@pytest.fixture(scope="session")
def command(command_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlugin]:
    plugin = RunningPlugin(command_binary, tmp_path_factory.mktemp("command"))
    plugin.configure({})
    yield plugin
    plugin.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrafanaServer]:
    server = GrafanaServer(tmp_path_factory.mktemp("grafana"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def running_grafana_plugin(
    grafana_binary: Path, server: GrafanaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningPlugin]:
    # The stand-in gives up on a refused rule group sooner; the official one takes its two minutes.
    plugin = RunningPlugin(grafana_binary, tmp_path_factory.mktemp("grafana-plugin"), {"GPU_FLEET_STANDIN_RETRY_S": "15"})
    plugin.configure({"url": server.url, "auth": server.auth, "retries": "0"})
    yield plugin
    plugin.stop()


@pytest.fixture
def grafana(running_grafana_plugin: RunningPlugin, server: GrafanaServer) -> RunningPlugin:
    """With a Grafana that holds nothing."""
    server.empty()
    return running_grafana_plugin


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    yield Project(tmp_path).create()
