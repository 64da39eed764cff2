"""`make test-alert` with a real Prometheus of one's own: what it evaluates, and the Alertmanager that it names."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gpu_fleet.operations import alert_path
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.stackfile.config import StackConfig
from lab.showcase.remote_write import push
from tests.checkout import REPO
from tests.prometheus_server import PrometheusServer
from tests.stackfile.stacks import REMOVED, stack, write_known_hosts

HOST = "gpu-node-001"
WRITE = "--web.enable-remote-write-receiver"


class Alertmanager:
    """Takes alerts from Prometheus under a path of its own, and says that it notified the receiver `oncall` of each."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        manager = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                manager.alerts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(b"")

            def do_GET(self) -> None:
                held = [{**one, "receivers": [{"name": "oncall"}], "status": {"state": "active"}} for one in manager.alerts]
                config = "receivers: [{name: oncall, slack_configs: [{api_url: <secret>}]}]"
                sent = f'alertmanager_notification_requests_total{{integration="slack"}} {len(held)}\n'
                answers = {
                    "/am/api/v2/alerts": json.dumps(held),
                    "/am/api/v2/status": json.dumps({"config": {"original": config}}),
                    "/am/metrics": sent,
                }
                self._answer(answers[urlsplit(self.path).path].encode())

            def _answer(self, body: bytes) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def alertmanager() -> Iterator[Alertmanager]:
    made = Alertmanager()
    yield made
    made.server.shutdown()
    made.server.server_close()


def config_of(server: PrometheusServer, directory: Path) -> StackConfig:
    write_known_hosts(directory)
    return StackConfig.load(stack(rulers=REMOVED, alerts=REMOVED, metrics={"url": f"{server.url}/api/v1/write"}), directory)


def test_the_alert_is_followed_from_the_host_to_the_receivers(
    tmp_path: Path, alertmanager: Alertmanager, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager.server.server_port}"]}], "path_prefix": "/am"}]
    settings = {"rule_files": [str(REPO / "alerts/rules/test-alert.yaml")], "alerting": {"alertmanagers": targets}}
    with PrometheusServer(tmp_path, settings, WRITE) as server:
        config = config_of(server, tmp_path)
        host = alert_path.host_of(config, HOST)
        server.wait_for("its Alertmanager", lambda: server.get("/api/v1/alertmanagers")["activeAlertmanagers"])
        test, host = alert_path.prepared_for_prometheus(config, "s", host, "critical")
        test.started = int(time.time())
        labels = {name: value for name, value in test.labels.items() if name != "alertname"}
        push(f"{server.url}/api/v1/write", {(("__name__", alert_path.METRIC), *labels.items()): [(time.time(), test.started)]})
        assert alert_path.follow(list(alert_path.prometheus_stages(test, host)), time.monotonic()), capsys.readouterr().out
        shown = capsys.readouterr().out
        assert "the alert fires in Prometheus\n" in shown and "Mimir" not in shown
        assert "Alertmanager has the alert: for oncall (slack)" in shown
        assert "the receivers are notified: each channel accepted a notification" in shown
        with pytest.raises(OperationError, match="is still active: wait until it is resolved"):
            alert_path.prepared_for_prometheus(config, "s", host, "critical")


def test_a_prometheus_that_notifies_nobody_or_has_no_rule_is_named_before_anything_is_written(
    tmp_path: Path, alertmanager: Alertmanager
) -> None:
    with PrometheusServer(tmp_path, {}, WRITE) as server:
        config = config_of(server, tmp_path)
        host = alert_path.host_of(config, HOST)
        with pytest.raises(OperationError, match=r"has no Alertmanager.*\n?.*`alerting.alertmanagers` of prometheus.yml"):
            alert_path.prepared_for_prometheus(config, "s", host, "critical")
    targets = [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager.server.server_port}"]}], "path_prefix": "/am"}]
    with PrometheusServer(tmp_path, {"alerting": {"alertmanagers": targets}}, WRITE) as server:
        config = config_of(server, tmp_path)
        server.wait_for("its Alertmanager", lambda: server.get("/api/v1/alertmanagers")["activeAlertmanagers"])
        with pytest.raises(OperationError, match="has no rule GpuFleetTestAlert: `make rules FOR=prometheus STACK=s` writes it"):
            alert_path.prepared_for_prometheus(config, "s", host, "critical")


def test_a_store_that_names_no_alertmanager_needs_a_ruler(tmp_path: Path) -> None:
    write_known_hosts(tmp_path)
    config = StackConfig.load(stack(rulers=REMOVED, alerts=REMOVED, metrics={"url": "http://127.0.0.1:9/api/v1/write"}), tmp_path)
    with pytest.raises(OperationError, match=r"no gpu-fleet:rulers\.mimir"):
        alert_path.prepared_for_prometheus(config, "s", alert_path.host_of(config, HOST), "critical")
