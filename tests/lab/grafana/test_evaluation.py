"""Alert rules evaluated as Grafana documents it: what fires, what is normal, the states for no data and errors."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from alerts.grafana_rules import GrafanaRule
from tests.standins.grafana_server import GrafanaServer

HOST = {"instance": "gpu-node-001"}


class Prometheus:
    """Answers every instant query with `rows`, or refuses it."""

    def __init__(self) -> None:
        self.rows: list[tuple[dict[str, str], str]] | None = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"prometheus": self}))
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    prometheus: Prometheus

    def do_GET(self) -> None:
        rows = self.prometheus.rows
        result = [{"metric": labels, "value": [0, value]} for labels, value in rows or ()]
        body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()
        self.send_response(200 if rows is not None else 503)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrafanaServer]:
    server = GrafanaServer(tmp_path_factory.mktemp("grafana"))
    server.ask("POST", "/api/folders", {"uid": "alerts", "title": "Alerts"})
    yield server
    server.stop()


@pytest.fixture
def prometheus(server: GrafanaServer) -> Iterator[Prometheus]:
    prometheus = Prometheus()
    server.ask("DELETE", "/api/datasources/uid/mimir")
    server.ask("POST", "/api/datasources", {"uid": "mimir", "name": "Mimir", "type": "prometheus", "url": prometheus.url})
    yield prometheus
    prometheus.close()


def evaluated(server: GrafanaServer, **changes: Any) -> dict[str, Any]:
    """One of our rules over `up == 0`, stored and evaluated; `changes` as the provisioning API names them."""
    rule = GrafanaRule(
        title="ExporterDown",
        source="mimir",
        expr="up == 0",
        severity="critical",
        for_="0s",
        keep_firing_for="0s",
        labels={"severity": "critical"},
        annotations={},
    )
    kept = {
        "uid": "down",
        "title": rule.title,
        "condition": rule.condition,
        "data": rule.nodes("mimir"),
        "for": rule.for_,
        "labels": dict(rule.labels),
        "noDataState": "OK",
        "execErrState": rule.on_error,
        **changes,
    }
    group = {"title": "exporters", "folderUid": "alerts", "interval": 30, "rules": [kept]}
    status, answer = server.ask("PUT", "/api/v1/provisioning/folder/alerts/rule-groups/exporters", group)
    assert status == 200, answer
    return state(server)


def state(server: GrafanaServer) -> dict[str, Any]:
    (group,) = server.get("/api/prometheus/grafana/api/v1/rules")["data"]["groups"]
    return group["rules"][0]


@pytest.mark.parametrize("value", ["0", "1", "-3", "NaN", "+Inf"])
def test_a_row_fires_whatever_its_value(server: GrafanaServer, prometheus: Prometheus, value: str) -> None:
    prometheus.rows = [(HOST, value)]
    rule = evaluated(server)
    assert (rule["state"], rule["health"]) == ("firing", "ok")
    assert rule["alerts"][0]["labels"] == {**HOST, "severity": "critical", "alertname": "ExporterDown"}


def test_without_the_expressions_a_dead_exporter_would_be_normal(server: GrafanaServer, prometheus: Prometheus) -> None:
    prometheus.rows = [(HOST, "0")]
    assert evaluated(server, condition="query")["state"] == "inactive", "this is why the expressions exist"


def test_every_row_is_an_alert_of_its_own(server: GrafanaServer, prometheus: Prometheus) -> None:
    prometheus.rows = [({"instance": f"gpu-node-{n}"}, "0") for n in range(3)]
    assert len(evaluated(server)["alerts"]) == 3


@pytest.mark.parametrize(("says", "expected"), [("OK", "inactive"), ("NoData", "firing"), ("Alerting", "firing")])
def test_an_empty_result_has_the_no_data_state_of_the_rule(
    server: GrafanaServer, prometheus: Prometheus, says: str, expected: str
) -> None:
    prometheus.rows = []
    rule = evaluated(server, noDataState=says)
    assert (rule["state"], rule["health"]) == (expected, "nodata")


@pytest.mark.parametrize(
    ("says", "expected", "name"), [("Error", "firing", "DatasourceError"), ("KeepLast", "inactive", "ExporterDown")]
)
def test_a_failing_query_has_the_error_state_of_the_rule(
    server: GrafanaServer, prometheus: Prometheus, says: str, expected: str, name: str
) -> None:
    prometheus.rows = None
    rule = evaluated(server, execErrState=says)
    assert (rule["state"], rule["health"]) == (expected, "error")
    assert "503" in rule["lastError"]
    assert rule["alerts"][0]["labels"] == {"severity": "critical", "alertname": name}


def test_an_alert_is_pending_for_the_period_of_the_rule_and_resolved_when_its_row_is_gone(
    server: GrafanaServer, prometheus: Prometheus
) -> None:
    prometheus.rows = [(HOST, "0")]
    assert evaluated(server, **{"for": "1h"})["state"] == "pending"
    prometheus.rows = []
    assert state(server)["state"] == "inactive"


def test_an_expression_that_the_stand_in_does_not_know_is_reported(server: GrafanaServer, prometheus: Prometheus) -> None:
    prometheus.rows = [(HOST, "0")]
    known = evaluated(server)
    assert known["lastError"] == ""
    nodes = server.get("/api/v1/provisioning/alert-rules/down")["data"]
    nodes[1]["model"]["expression"] = "$query * 2"
    assert "does not know the expression math" in evaluated(server, data=nodes)["lastError"]
