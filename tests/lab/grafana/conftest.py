"""The lab's Grafana with data sources that need no Mimir and no Loki, and a browser before it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dashboards import LOKI_UID, MIMIR_UID
from lab.grafana.browser import Browser
from tests.lab.grafana.data_sources import DataSources
from tests.standins.grafana_server import GrafanaServer


@pytest.fixture(scope="session")
def sources() -> Iterator[DataSources]:
    running = DataSources()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def grafana(sources: DataSources, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrafanaServer]:
    server = GrafanaServer(tmp_path_factory.mktemp("grafana"))
    for uid, kind, path in (
        (MIMIR_UID, "prometheus", "full"),
        (LOKI_UID, "loki", "full"),
        ("empty", "prometheus", "empty"),
        ("broken", "prometheus", "broken"),
    ):
        source = {"uid": uid, "name": uid, "type": kind, "access": "proxy", "url": f"{sources.url}/{path}"}
        assert server.ask("POST", "/api/datasources", source)[0] == 200
    yield server
    server.stop()


@pytest.fixture(scope="session")
def browser(grafana: GrafanaServer) -> Iterator[Browser]:
    with Browser() as browser:
        browser.log_in(*grafana.auth.split(":"))
        browser.size(1280, 1080)
        yield browser
