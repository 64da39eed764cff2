"""A real Alloy pushes to a real Prometheus that asks for a client certificate and a password; our rules and dashboards on it."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import bcrypt
import pytest

import dashboards
from dashboards.layout import all_panels
from host.parts.alloy import Access
from lab.kubernetes.certificates import Authority
from operations import rules
from tests.dashboards.answers import Question
from tests.host.parts.conftest import running_alloy
from tests.prometheus_server import PrometheusServer

PASSWORD = "planted-password-of-prometheus"
ANY = {"datacenter": ".*", "cluster": ".*", "instance": ".*", "exporter_mode": ".*", "gpu": ".*", "namespace": ".*"}


@dataclass(frozen=True)
class Site:
    prometheus: PrometheusServer
    prefix: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    prefix, directory = tmp_path_factory.mktemp("host"), tmp_path_factory.mktemp("prometheus")
    authority = Authority(directory)
    certificate, key = authority.client("alloy")
    server_certificate, server_key = authority.server("store")
    assert rules.main(["prometheus", str(directory)]) == 0
    file = directory / "prometheus/gpu-fleet.yaml"
    file.write_text(file.read_text().replace("interval: 1m", "interval: 5s").replace("interval: 30s", "interval: 5s"))
    web = {
        "tls_server_config": {
            "cert_file": str(server_certificate),
            "key_file": str(server_key),
            "client_auth_type": "RequireAndVerifyClientCert",
            "client_ca_file": str(authority.certificate_file),
        },
        "basic_auth_users": {"writer": bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()},
    }
    tls = ssl.create_default_context(cafile=str(authority.certificate_file))
    tls.load_cert_chain(certificate, key)
    login = {"Authorization": "Basic " + base64.b64encode(f"writer:{PASSWORD}".encode()).decode()}
    config = {"rule_files": [str(file)], "storage": {"tsdb": {"out_of_order_time_window": "6h"}}}
    flags = ("--web.enable-remote-write-receiver",)
    with PrometheusServer(directory, config, *flags, web=web, headers=login, tls=tls) as prometheus:
        secrets = prefix / "etc/gpu-fleet/secrets"
        secrets.mkdir(parents=True)
        (secrets / "metrics-password").write_text(PASSWORD)
        (secrets / "metrics-client-key").write_text(key.read_text())
        access = Access(store="metrics", ca=authority.certificate_file.read_text(), certificate=certificate.read_text())
        facts = {
            "GPU_FLEET_EXPORTER_MODE": "nvidia_gpu_exporter",
            "GPU_FLEET_METRICS_USERNAME": "writer",
            "GPU_FLEET_METRICS_URL": f"{prometheus.url}/api/v1/write",
        }
        with running_alloy(prefix, facts, metrics_login=True, logs=False, metrics_access=access):
            yield Site(prometheus, prefix)


def test_the_series_of_a_host_arrive_with_its_labels(site: Site) -> None:
    wanted = '{__name__="nvidia_smi_gpu_info", instance="gpu-node-001", datacenter="us-west", cluster="training"}'
    site.prometheus.wait_for("the exporter's series", lambda: site.prometheus.query(wanted))


def test_every_rule_that_make_rules_writes_is_evaluated_without_an_error(site: Site) -> None:
    def evaluated() -> bool:
        return all(rule["health"] != "unknown" for rule in site.prometheus.rules())

    site.prometheus.wait_for("an evaluation of every rule", evaluated, 120)
    found = site.prometheus.rules()
    assert {rule["type"] for rule in found} == {"alerting", "recording"} and len(found) > 100
    assert not [(rule["name"], rule.get("lastError")) for rule in found if rule["health"] != "ok"]


def test_prometheus_answers_every_query_of_every_dashboard(site: Site) -> None:
    """Those of the panels; an error raises."""
    panels = [panel for board in dashboards.all_dashboards().values() for panel in all_panels(board) if panel["type"] != "row"]
    questions = {Question.of(panel, target, ANY) for panel in panels for target in panel.get("targets", [])}
    asked = [one.expression for one in questions if not one.is_loki]
    assert len(asked) > 50
    for expression in asked:
        site.prometheus.query(expression)
