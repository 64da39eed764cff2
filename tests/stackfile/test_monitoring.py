"""A host of the stack as its monitoring server: what the other sections get from it, and what is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import bcrypt
import pytest

from components.fleet.monitoring import logins
from components.fleet.wiring import pushed_to
from gpu_fleet.host import parts
from gpu_fleet.host.parts.launch import ROLE
from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.monitoring import Monitoring
from gpu_fleet.stackfile.settings import host_settings, shared_settings
from tests.host.parts.places import parts_of
from tests.stackfile.stacks import REMOVED, problems, stack

SECRETS = {"metricsPassword", "logsPassword", "rulersPassword", "grafanaAuth", "monitoringKey"}
SERVER = {"address": "192.168.1.5", "role": "monitoring"}
ABSENT = {name: REMOVED for name in ("metrics", "logs", "rulers", "alerts")}


@pytest.fixture
def base(base: Path) -> Path:
    """With a certificate and its key."""
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-subj",
        "/CN=mon-1",
    ]
    subprocess.run([*make, "-keyout", base / "server.key", "-out", base / "server.pem"], check=True, capture_output=True)
    return base


def small_site(**changes: object) -> dict[str, object]:
    """Nothing but hosts and the server's section."""
    section = {"certificateFile": "server.pem", "caFile": "server.pem"}
    return stack(**{"hosts__mon-1": dict(SERVER), "monitoring": section, **ABSENT, **changes})


def test_everything_of_the_stack_uses_the_server(base: Path) -> None:
    config = StackConfig.load(small_site(), base, SECRETS)
    assert config.metrics and config.metrics.url == "https://192.168.1.5/api/v1/push"
    assert config.logs and config.logs.url == "https://192.168.1.5/loki/api/v1/push"
    assert config.rulers and config.rulers.mimir and config.rulers.mimir.url == "https://192.168.1.5"
    assert config.grafana and config.grafana.url == "https://192.168.1.5"
    assert config.alerts and config.alerts.targets == ("ruler",)
    for server in (config.metrics, config.logs, config.rulers.mimir, config.rulers.loki):
        assert server and server.tls.ca == "server.pem", "its certificate is verified with the section's CA"
    assert not config.warnings, "a stack without a section of its own lacks nothing"


def test_a_section_that_names_another_server_wins(base: Path) -> None:
    elsewhere = {"url": "https://mimir.example.com/api/v1/push"}
    raw = small_site(metrics=elsewhere, monitoring__url="https://mon.example.com:8443", monitoring__grafana=False)
    config = StackConfig.load(raw, base, SECRETS - {"metricsPassword", "grafanaAuth"})
    assert config.metrics and config.metrics.url == elsewhere["url"] and config.metrics.username is None
    assert config.logs and config.logs.url == "https://mon.example.com:8443/loki/api/v1/push"
    assert config.grafana is None
    text = logins(config, {"logsPassword": "of-logs", "rulersPassword": "of-rules"})
    assert "(metrics_login) {\n\trespond 403\n}" in text, "nobody pushes metrics there"


def test_the_proxy_gets_hashes_and_a_user_for_each_purpose(base: Path) -> None:
    config = StackConfig.load(small_site(), base, SECRETS)
    passwords = {"metricsPassword": "of-metrics\n", "logsPassword": "of-logs", "rulersPassword": "of-rules"}
    text = logins(config, passwords)
    assert text == logins(config, passwords), "the same logins change nothing"
    for user, password in {"metrics": "of-metrics", "logs": "of-logs", "rules": "of-rules"}.items():
        assert password not in text
        hashed = text.split(f"\t{user} ")[1].split()[0]
        assert bcrypt.checkpw(password.encode(), hashed.encode()), user


def test_a_changed_retention_changes_the_server_alone(base: Path) -> None:
    usual = StackConfig.load(small_site(), base, SECRETS)
    longer = StackConfig.load(small_site(monitoring__retention={"metrics": "400d"}), base, SECRETS)

    def settings(config: StackConfig, name: str) -> dict[str, str]:
        return {**shared_settings(config), **host_settings(config.hosts[name], config)}

    assert settings(usual, "gpu-node-001") == settings(longer, "gpu-node-001")
    assert settings(usual, "mon-1") != settings(longer, "mon-1")
    assert settings(longer, "mon-1")["GPU_FLEET_MONITORING_METRICS_RETENTION"] == "400d"
    assert settings(longer, "mon-1")["GPU_FLEET_MONITORING_METRICS_LATE"] == "28800s", "6 h of outage and two more"
    assert settings(usual, "mon-1")[ROLE] == "monitoring" and settings(usual, "gpu-node-001")[ROLE] == "gpu"


def test_one_host_is_the_server_and_a_gpu_host(base: Path) -> None:
    both = {**SERVER, "role": "both", "gpus": 2, "exporter": "nvidia_gpu_exporter"}
    config = StackConfig.load(small_site(**{"hosts__mon-1": both}), base, SECRETS)
    assert (
        config.monitoring_url == "https://192.168.1.5" and config.metrics and config.metrics.url.startswith(config.monitoring_url)
    )
    given = host_settings(config.hosts["mon-1"], config)
    assert given["GPU_FLEET_GPUS"] == "2" and given["GPU_FLEET_MONITORING_METRICS_RETENTION"] == "90d"
    assert "mon-1" not in pushed_to(config), "it goes before all waves, and once"
    server = parts.monitoring.Monitoring(programs={name: {} for name in parts.monitoring.SERVERS}, certificate="")
    for role, is_server, has_gpus in (("gpu", False, True), ("monitoring", True, False), ("both", True, True)):
        wanted = {part.name for part in parts_of({ROLE: role}, monitoring=server)}
        assert ("mimir" in wanted, "driver-check" in wanted, "exporter-choice" in wanted) == (is_server, has_gpus, has_gpus), role


@pytest.mark.parametrize(
    ("changes", "secrets", "where", "words"),
    [
        (
            {"hosts__mon-2": {**SERVER, "address": "192.168.1.6"}},
            SECRETS,
            "hosts.mon-2.role",
            "mon-1, mon-2 are monitoring servers",
        ),
        ({"hosts__mon-1__role": "gpu"}, SECRETS, "monitoring", "no host of the stack is the monitoring server"),
        ({"monitoring__certificateFile": "none.pem"}, SECRETS, "monitoring.certificateFile", "none.pem does not exist"),
        ({"monitoring__certificateFile": "server.key"}, SECRETS, "monitoring.certificateFile", "holds a private key"),
        ({"monitoring__caFile": "known_hosts"}, SECRETS, "monitoring.caFile", "known_hosts is not a certificate"),
        ({"monitoring__retention": {"metrics": "90"}}, SECRETS, "monitoring.retention.metrics", "write for example 90d"),
        ({"monitoring__url": "http://mon.example.com"}, SECRETS, "monitoring.url", "has no TLS"),
        ({"hosts__mon-1__gpus": 8}, SECRETS, "hosts.mon-1.gpus", "has no effect with `role: monitoring`"),
        ({"hosts__mon-1__ports": {"alloy": 9095}}, SECRETS, "hosts.mon-1.ports.alloy", "9095 is the port of Mimir, on mon-1"),
        ({"monitoring__port": 3000}, SECRETS, "monitoring.port", "3000 is the port of Grafana, on mon-1"),
        ({"monitoring__port": 9100}, SECRETS, "hosts.mon-1.ports.nodeExporter", "9100 is gpu-fleet:monitoring.port"),
        ({"hosts__mon-1__serviceManager": "supervisor"}, SECRETS, "hosts.mon-1.serviceManager", "needs systemd"),
        ({}, SECRETS - {"monitoringKey"}, "monitoringKey", "config set --secret gpu-fleet:monitoringKey"),
        ({}, SECRETS - {"rulersPassword"}, "rulersPassword", "rulers.mimir.username is rules"),
        ({}, SECRETS - {"grafanaAuth"}, "grafanaAuth", "config set --secret gpu-fleet:grafanaAuth"),
    ],
)
def test_an_error_is_reported_where_it_is(changes: dict, secrets: set, where: str, words: str, base: Path) -> None:
    errors = problems(small_site(**changes), base, secrets)
    assert errors is not None
    assert f"gpu-fleet:{where}" in [problem.where for problem in errors.problems], str(errors)
    assert words in str(errors)


def test_a_role_without_the_section_is_refused_with_the_line_to_add(base: Path) -> None:
    raw = small_site()
    del raw["monitoring"]
    errors = problems(raw, base, SECRETS)
    assert errors and "add `monitoring: {certificateFile: inventory/monitoring.pem}`" in str(errors)


def test_a_server_on_this_machine_needs_a_url_that_others_can_use(base: Path) -> None:
    errors = problems(small_site(**{"hosts__mon-1": {"connection": "local", "role": "monitoring"}}), base, SECRETS)
    assert errors and "gpu-fleet:monitoring.url" in [problem.where for problem in errors.problems]
    here = small_site(**{"hosts__mon-1": {"connection": "local", "role": "monitoring"}, "monitoring__url": "https://mon.lan"})
    assert problems(here, base, SECRETS) is None


def test_the_defaults_are_those_of_the_page() -> None:
    section = Monitoring(certificateFile="x")
    assert (section.retention.metrics, section.retention.logs, section.port) == ("90d", "30d", 443)
