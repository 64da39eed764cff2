"""`make test-alert` with a real Prometheus of one's own, and Debian's Alertmanager with the receivers of a stack file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from alerts.alertmanager import alertmanager_config, templates
from gpu_fleet.operations import alert_path, prometheus_alert
from gpu_fleet.operations.alert_path import Test as Trial
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.mimir import Server
from gpu_fleet.stackfile.config import StackConfig
from lab.showcase.remote_write import push
from tests.alertmanager import DebiansAlertmanager
from tests.alerts.inbox import Inbox
from tests.alerts.receivers import section
from tests.checkout import REPO
from tests.prometheus_server import PrometheusServer
from tests.stackfile.stacks import REMOVED, stack, write_known_hosts

HOST = "gpu-node-001"
WRITE = "--web.enable-remote-write-receiver"
SECRETS = {"slackUrl": "slack", "teamsUrl": "teams", "goneUrl": "http://127.0.0.1:9/"}
CHAT = {"slack": {"urlSecret": "slackUrl", "channel": "#gpu"}, "teams": {"urlSecret": "teamsUrl"}}
ALWAYS = {"weekdays": ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]}


def route(receiver: str, cluster: str, **others: Any) -> dict[str, Any]:
    return {"receiver": receiver, "matchers": [f"cluster={cluster}"], **others}


@pytest.fixture(scope="module")
def inbox() -> Iterator[Inbox]:
    with Inbox().open() as made:
        yield made


@pytest.fixture(scope="module")
def alertmanager(inbox: Inbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DebiansAlertmanager]:
    """Each cluster has a route of its own."""
    given = section(
        receiver="oncall",
        receivers={"oncall": CHAT, "nobody": {}, "gone": {"slack": {"urlSecret": "goneUrl", "channel": "#gpu"}}},
        routes=[route("nobody", "dropped"), route("gone", "gone"), route("oncall", "muted", muteTimings=["always"])],
        muteTimings={"always": ALWAYS},
    )
    secrets = {name: url if ":" in url else f"{inbox.web}/{url}" for name, url in SECRETS.items()}
    with DebiansAlertmanager(tmp_path_factory.mktemp("am"), alertmanager_config(given, secrets), templates()) as server:
        yield server


def target(alertmanager: DebiansAlertmanager) -> dict[str, Any]:
    """As `alerting.alertmanagers` of prometheus.yml has it."""
    address = alertmanager.url.removeprefix("http://").removesuffix("/am")
    return {"static_configs": [{"targets": [address]}], "path_prefix": "/am"}


def config_of(server: PrometheusServer, directory: Path) -> StackConfig:
    write_known_hosts(directory)
    return StackConfig.load(stack(rulers=REMOVED, alerts=REMOVED, metrics={"url": f"{server.url}/api/v1/write"}), directory)


def test_the_alert_is_followed_from_the_host_to_the_receivers(
    tmp_path: Path, alertmanager: DebiansAlertmanager, inbox: Inbox, capsys: pytest.CaptureFixture[str]
) -> None:
    rule_files = [str(REPO / "alerts/rules/test-alert.yaml")]
    settings = {"rule_files": rule_files, "alerting": {"alertmanagers": [target(alertmanager)]}}
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
        assert "Alertmanager has the alert: for oncall (slack, msteamsv2)" in shown
        assert "the receivers are notified: each channel accepted a notification" in shown
        for service in ("slack", "teams"):
            assert "GpuFleetTestAlert" in str(inbox.at(service, HOST)), "with its name, at whoever is notified"
        with pytest.raises(OperationError, match="is still active: wait until it is resolved"):
            alert_path.prepared_for_prometheus(config, "s", host, "critical")


def test_a_prometheus_that_notifies_nobody_or_has_no_rule_is_named_before_anything_is_written(
    tmp_path: Path, alertmanager: DebiansAlertmanager
) -> None:
    with PrometheusServer(tmp_path, {}, WRITE) as server:
        config = config_of(server, tmp_path)
        host = alert_path.host_of(config, HOST)
        with pytest.raises(OperationError, match=r"has no Alertmanager.*\n?.*`alerting.alertmanagers` of prometheus.yml"):
            alert_path.prepared_for_prometheus(config, "s", host, "critical")
    with PrometheusServer(tmp_path, {"alerting": {"alertmanagers": [target(alertmanager)]}}, WRITE) as server:
        config = config_of(server, tmp_path)
        server.wait_for("its Alertmanager", lambda: server.get("/api/v1/alertmanagers")["activeAlertmanagers"])
        with pytest.raises(OperationError, match="has no rule GpuFleetTestAlert: `make rules FOR=prometheus STACK=s` writes it"):
            alert_path.prepared_for_prometheus(config, "s", host, "critical")


def test_a_store_that_names_no_alertmanager_needs_a_ruler(tmp_path: Path) -> None:
    write_known_hosts(tmp_path)
    config = StackConfig.load(stack(rulers=REMOVED, alerts=REMOVED, metrics={"url": "http://127.0.0.1:9/api/v1/write"}), tmp_path)
    with pytest.raises(OperationError, match=r"no gpu-fleet:rulers\.mimir"):
        alert_path.prepared_for_prometheus(config, "s", alert_path.host_of(config, HOST), "critical")


def followed(alertmanager: DebiansAlertmanager, cluster: str, capsys: pytest.CaptureFixture[str], within_s: float) -> str:
    """What is shown of a test alert that Prometheus has sent."""
    labels = {
        "alertname": alert_path.ALERT,
        "datacenter": "us-west",
        "cluster": cluster,
        "instance": HOST,
        "severity": "critical",
    }
    server = prometheus_alert.PrometheusServer(
        "http://127.0.0.1:9", {}, name="Prometheus", alertmanagers=(Server(alertmanager.url, {}, name="Alertmanager"),)
    )
    trial = Trial(labels, server)
    trial.requests_before = alert_path.delivered(server)
    alertmanager.post("/api/v2/alerts", [{"labels": labels, "annotations": {"summary": "a test", "action": "none"}}])
    found = [one for one in alert_path.operator_stages(trial) if "Alertmanager" in one.name or "receivers" in one.name]
    alert_path.follow(found, time.monotonic(), within_s)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ("dropped", "MISSING  the receivers are notified: the receivers of this alert have no channel: nobody"),
        ("muted", "MISSING  the receivers are notified: Alertmanager sends nothing: a mute timing matches (always)"),
        ("silenced", "MISSING  the receivers are notified: Alertmanager sends nothing: a silence matches ("),
    ],
)
def test_what_keeps_the_alert_from_its_receivers_is_named_at_once(
    alertmanager: DebiansAlertmanager, capsys: pytest.CaptureFixture[str], cluster: str, said: str
) -> None:
    now = datetime.now(UTC)
    silence = {
        "matchers": [{"name": "cluster", "value": "silenced", "isRegex": False}],
        "startsAt": now.isoformat(),
        "endsAt": (now + timedelta(hours=1)).isoformat(),
        "createdBy": "somebody",
        "comment": "known",
    }
    alertmanager.post("/api/v2/silences", silence)
    assert said in followed(alertmanager, cluster, capsys, 180)


def test_a_channel_that_takes_nothing_is_missing_and_where_to_look_is_said(
    alertmanager: DebiansAlertmanager, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = followed(alertmanager, "gone", capsys, 8)
    assert "Alertmanager has the alert: for gone (slack)" in shown
    assert "MISSING  the receivers are notified" in shown and "Check Alertmanager's log: a request failed" in shown
