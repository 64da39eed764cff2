"""`make test-alert`: where the alert starts, what is reported when it gets stuck, and what is refused before it starts."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gpu_fleet.operations import alert_path
from gpu_fleet.operations.alert_path import Test as Trial
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.mimir import Server
from gpu_fleet.stackfile.config import StackConfig
from tests.stackfile.stacks import REMOVED, stack, write_known_hosts

LABELS = {
    "alertname": "GpuFleetTestAlert",
    "datacenter": "us-west",
    "cluster": "training",
    "instance": "gpu-node-001",
    "severity": "critical",
}
CONFIG = """
receivers:
  - {name: oncall, pagerduty_configs: [{routing_key: <secret>}], slack_configs: [{api_url: <secret>}]}
  - {name: nobody}
"""
LOKI, QUERY, FIRING = "/loki/api/v1/query_range", "/prometheus/api/v1/query", "/prometheus/api/v1/alerts"
ACTIVE = "/alertmanager/api/v2/alerts"


class Backend:
    """What Mimir, Loki and Alertmanager answer; `posted` is what they got."""

    def __init__(self) -> None:
        self.alert: dict[str, Any] = {"labels": LABELS, "receivers": [{"name": "oncall"}], "status": {"state": "active"}}
        self.answers: dict[str, Any] = {
            "/alertmanager/api/v2/alerts": [self.alert],
            "/alertmanager/api/v2/alerts/groups": [{"alerts": [self.alert]}],
            "/alertmanager/api/v2/status": {"config": {"original": CONFIG}},
            "/prometheus/api/v1/alerts": {"data": {"alerts": [{"state": "firing", "labels": LABELS}]}},
            "/prometheus/api/v1/query": {"data": {"result": [{"value": [0, "1700000000"]}]}},
            "/prometheus/api/v1/rules": {"data": {"groups": [{"rules": [{"name": "GpuFleetTestAlert"}]}]}},
            "/loki/api/v1/query_range": {"data": {"result": [{}]}},
            "/loki/api/v1/push": {},
        }
        self.metrics: str | None = requests(pagerduty=1, slack=1)
        self.posted: list[tuple[str, dict[str, Any]]] = []


def requests(failed: str = "", **counts: int) -> str:
    lines = [
        f'cortex_alertmanager_notification_requests_total{{integration="{k}",user="us-west"}} {v}' for k, v in counts.items()
    ]
    if failed:
        lines.append(f'cortex_alertmanager_notification_requests_failed_total{{integration="{failed}",user="us-west"}} 1')
    return "\n".join(lines) + "\n"


@pytest.fixture
def backend() -> Iterator[Backend]:
    made = Backend()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            if path == "/metrics" and made.metrics is not None:
                self._answer(200, made.metrics.encode())
            else:
                self._answer(200 if path in made.answers else 404, json.dumps(made.answers.get(path)).encode())

        def do_POST(self) -> None:
            made.posted.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self._answer(204, b"")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made.url = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
    yield made
    server.shutdown()
    server.server_close()


def config_of(backend: Backend, tmp_path: Path, **changes: object) -> StackConfig:
    write_known_hosts(tmp_path)
    url = backend.url  # type: ignore[attr-defined]
    given = {
        "rulers__mimir": {"url": url, "tenant": "us-west"},
        "rulers__loki": {"url": url},
        "logs": {"url": f"{url}/loki/api/v1/push"},
    }
    return StackConfig.load(stack(**(given | changes)), tmp_path)


def followed(backend: Backend, config: StackConfig, capsys: pytest.CaptureFixture[str], within_s: float = 0) -> str:
    url = backend.url  # type: ignore[attr-defined]
    server = Server(url, {"X-Scope-OrgID": "us-west"}, name="Mimir")
    trial = Trial(LABELS, server, Server(url, {}, name="Loki"), started=1700000000)
    trial.requests_before = alert_path.Counter()
    host = alert_path.host_of(config, "")
    alert_path.follow(list(alert_path.stages(trial, config, host)), time.monotonic(), within_s)
    return capsys.readouterr().out


def test_every_stage_is_reported_with_the_receivers_and_their_channels(backend, tmp_path, capsys) -> None:
    output = followed(backend, config_of(backend, tmp_path), capsys)
    assert "MISSING" not in output
    assert "Alertmanager has the alert: for oncall (pagerduty, slack)" in output
    assert "the receivers are notified: each channel accepted a notification" in output
    assert "secret" not in output


@pytest.mark.parametrize(
    ("path", "empty", "stage", "check"),
    [
        (LOKI, {"data": {"result": []}}, "the log line is in Loki", "on gpu-node-001: journalctl -u gpu-fleet-alloy"),
        (QUERY, {"data": {"result": []}}, "the metric is in Mimir", "compare gpu-fleet:metrics with gpu-fleet:rulers.mimir"),
        (FIRING, {"data": {"alerts": []}}, "the alert fires in Mimir's ruler", "/prometheus/api/v1/rules shows the health"),
        (ACTIVE, [], "Alertmanager has the alert", "the rulers' setting alertmanager_url"),
    ],
)
def test_the_stage_where_it_is_stuck_is_named_with_what_to_check(backend, tmp_path, capsys, path, empty, stage, check) -> None:
    backend.answers[path] = empty
    output = followed(backend, config_of(backend, tmp_path), capsys)
    first, hint = re.search(r"(?m)^ MISSING  (.*)\n(.*)$", output).groups()
    assert first == stage
    assert check in hint
    assert output.count("Check ") == 1, "later stages wait for this one"


def test_a_stage_before_the_test_started_is_not_passed_by_an_earlier_test(backend, tmp_path, capsys) -> None:
    backend.answers["/prometheus/api/v1/query"] = {"data": {"result": [{"value": [0, "1699999999"]}]}}
    assert "MISSING  the metric is in Mimir" in followed(backend, config_of(backend, tmp_path), capsys)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"silencedBy": ["8c1f"]}, "a silence matches (8c1f)"),
        ({"inhibitedBy": ["1a2b"]}, "an inhibiting alert matches (1a2b)"),
        ({"mutedBy": ["nights"]}, "a mute timing matches (nights)"),
    ],
)
def test_a_suppressed_alert_is_reported_at_once_with_its_reason(backend, tmp_path, capsys, status, reason) -> None:
    backend.alert["status"] = {"state": "suppressed", **status}
    began = time.monotonic()
    output = followed(backend, config_of(backend, tmp_path), capsys, within_s=600)
    assert time.monotonic() - began < 300, "waiting does not help"
    assert f"MISSING  the receivers are notified: Alertmanager sends nothing: {reason}" in output


def test_a_proxy_that_hides_the_groups_of_alerts_hides_no_notification(backend, tmp_path, capsys) -> None:
    del backend.answers["/alertmanager/api/v2/alerts/groups"]
    assert "MISSING" not in followed(backend, config_of(backend, tmp_path), capsys)


def test_a_receiver_without_channels_is_reported(backend, tmp_path, capsys) -> None:
    backend.alert["receivers"] = [{"name": "nobody"}]
    output = followed(backend, config_of(backend, tmp_path), capsys, within_s=60)
    assert "the receivers of this alert have no channel: nobody" in output


def test_a_request_that_failed_is_no_notification(backend, tmp_path, capsys) -> None:
    backend.metrics = requests("slack", pagerduty=1, slack=1)
    output = followed(backend, config_of(backend, tmp_path), capsys)
    assert "MISSING  the receivers are notified" in output
    assert "the URL and secret of the receiver in gpu-fleet:alerts" in output


def test_where_mimirs_metrics_cannot_be_read_delivery_is_not_claimed(backend, tmp_path, capsys) -> None:
    backend.metrics = None
    output = followed(backend, config_of(backend, tmp_path), capsys)
    assert "the receivers are notified: not confirmed:" in output and "so ask oncall" in output


def test_without_a_host_that_can_be_reached_the_line_is_pushed_to_loki(backend, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: (int(time.time()) - 7200) * 10**9)
    kubernetes = {"hosts": REMOVED, "ssh": REMOVED, "kubernetes": {"context": "us-west"}, "logs__tenant": "us-west"}
    config = config_of(backend, tmp_path, **kubernetes)
    assert alert_path.host_of(config, "") is None
    backend.answers["/alertmanager/api/v2/alerts"] = []
    trial = alert_path.prepared(config, "us-west-training", None, "warning")
    alert_path.send(trial, config, "us-west-training", None, None)
    ((path, body),) = backend.posted
    (stream,) = body["streams"]
    assert path == "/loki/api/v1/push"
    assert stream["stream"]["job"] == "test_alert" and stream["stream"]["severity"] == "warning"
    assert re.fullmatch(r"gpu-fleet test alert: severity=warning started=\d{10}", stream["values"][0][1])
    assert abs(int(stream["values"][0][0]) / 1e9 - time.time()) < 60, "by Loki's clock: the ruler reads the last minutes of that"
    assert "the agents of a cluster or of hosts in pull mode are not tested" in capsys.readouterr().out
    assert not any("metric" in stage.name for stage in alert_path.stages(trial, config, None)), "nothing wrote one"


def test_a_stack_that_cannot_be_tested_says_what_to_add(backend, tmp_path) -> None:
    changes = {"hosts": REMOVED, "ssh": REMOVED, "kubernetes": {"context": "k"}, "logs": REMOVED}
    config = config_of(backend, tmp_path, **changes)
    with pytest.raises(OperationError, match="no Loki to push the test alert to"):
        alert_path.prepared(config, "s", alert_path.host_of(config, ""), "critical")


def test_rules_that_are_not_deployed_are_noticed_before_anything_is_written(backend, tmp_path) -> None:
    backend.answers["/prometheus/api/v1/rules"] = {"data": {"groups": []}}
    config = config_of(backend, tmp_path)
    with pytest.raises(OperationError, match=r"has no rule GpuFleetTestAlert .* `make up` of the stack with gpu-fleet:alerts"):
        alert_path.prepared(config, "s", alert_path.host_of(config, ""), "critical")


def test_a_host_that_cannot_be_reached_is_not_chosen(backend, tmp_path) -> None:
    config = config_of(backend, tmp_path, hosts__pulled={"connection": "pull"}, **{"hosts__old-amd-node__lost": True})
    with pytest.raises(OperationError, match="pulled cannot be reached from here"):
        alert_path.host_of(config, "pulled")
    with pytest.raises(OperationError, match="the stack has no host gpu-node-009; it has gpu-node-001"):
        alert_path.host_of(config, "gpu-node-009")
    assert alert_path.host_of(config, "").name == "gpu-node-001"


def test_the_alert_starts_on_a_host_with_gpus_and_not_on_the_monitoring_server_that_is_listed_first(backend, tmp_path) -> None:
    config = config_of(backend, tmp_path)
    [first, *_] = config.hosts.values()
    hosts = {"mon-1": first.model_copy(update={"name": "mon-1", "role": "monitoring"}), first.name: first}
    config = replace(config, hosts=hosts)
    assert alert_path.host_of(config, "").name == first.name
    assert alert_path.host_of(config, "mon-1").name == "mon-1"


def test_the_line_that_a_host_writes_is_the_one_that_alloy_reads(tmp_path: Path) -> None:
    class Host:
        prefix = str(tmp_path)

    directory = tmp_path / "var/lib/gpu-fleet/textfile"
    directory.mkdir(parents=True)
    command = alert_path.command(Host, "critical")
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 3 and "deploy the stack first (make up)" in refused.stderr
    config = tmp_path / "etc/gpu-fleet/alloy/collect_test_alert.alloy"
    config.parent.mkdir(parents=True)
    config.touch()
    started = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    (file,) = directory.iterdir()
    source = Path(alert_path.__file__).parents[1] / "host/rootfs/etc/gpu-fleet/alloy/collect_test_alert.alloy"
    expression = re.search(r"expression = `(.*)`", source.read_text())[1]
    assert re.fullmatch(expression, file.read_text().strip())["started"] == str(started)
    assert file.stat().st_mode & 0o777 == 0o644, "Alloy is not root"
    subprocess.run(alert_path.removal(Host, started), check=True)
    assert not list(directory.iterdir())
