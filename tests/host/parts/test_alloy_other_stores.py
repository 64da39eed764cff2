"""A real Alloy pushes to real stores other than Mimir: a Prometheus that asks for a client certificate and a password, and a
VictoriaMetrics with a password. Our rules and dashboards on them."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import bcrypt
import pytest

import dashboards
from dashboards.layout import all_panels
from gpu_fleet.host.parts.alloy import Access
from gpu_fleet.operations import rules
from lab.kubernetes.certificates import Authority
from tests.dashboards.answers import Question
from tests.host.parts.conftest import running_alloy
from tests.prometheus_server import PrometheusServer, Server, VictoriaMetrics, Vmalert

PASSWORD = "planted-password-of-the-store"
ANY = {"datacenter": ".*", "cluster": ".*", "instance": ".*", "exporter_mode": ".*", "gpu": ".*", "namespace": ".*"}
LOGIN = {"Authorization": "Basic " + base64.b64encode(f"writer:{PASSWORD}".encode()).decode()}


@dataclass(frozen=True)
class Site:
    """`store` answers queries, `ruler` has the rules."""

    store: Server
    ruler: Server


@contextmanager
def prometheus(directory: Path, rule_file: Path, authority: Authority, tls: ssl.SSLContext) -> Iterator[Site]:
    certificate, key = authority.server("store")
    web = {
        "tls_server_config": {
            "cert_file": str(certificate),
            "key_file": str(key),
            "client_auth_type": "RequireAndVerifyClientCert",
            "client_ca_file": str(authority.certificate_file),
        },
        "basic_auth_users": {"writer": bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()},
    }
    config = {"rule_files": [str(rule_file)], "storage": {"tsdb": {"out_of_order_time_window": "6h"}}}
    flags = ("--web.enable-remote-write-receiver",)
    with PrometheusServer(directory, config, *flags, web=web, headers=LOGIN, tls=tls) as server:
        yield Site(server, server)


@contextmanager
def victoria_metrics(directory: Path, rule_file: Path, authority: Authority, tls: ssl.SSLContext) -> Iterator[Site]:
    certificate, key = authority.server("store")
    password = directory / "password"
    password.write_text(PASSWORD)
    flags = [
        f"-tlsCertFile={certificate}",
        f"-tlsKeyFile={key}",
        "-httpAuth.username=writer",
        f"-httpAuth.password=file://{password}",
    ]
    ca = authority.certificate_file
    access = [
        flag
        for kind in ("datasource", "remoteWrite")
        for flag in (
            f"-{kind}.basicAuth.username=writer",
            f"-{kind}.basicAuth.passwordFile={password}",
            f"-{kind}.tlsCAFile={ca}",
        )
    ]
    with (
        VictoriaMetrics(directory, *flags, headers=LOGIN, tls=tls) as store,
        Vmalert(directory, rule_file, store, *access) as ruler,
    ):
        yield Site(store, ruler)


@pytest.fixture(scope="module", params=[prometheus, victoria_metrics], ids=lambda start: start.__name__)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    prefix, directory = tmp_path_factory.mktemp("host"), tmp_path_factory.mktemp("store")
    authority = Authority(directory)
    certificate, key = authority.client("alloy")
    assert rules.main(["prometheus", str(directory)]) == 0
    file = directory / "prometheus/gpu-fleet.yaml"
    file.write_text(file.read_text().replace("interval: 1m", "interval: 5s").replace("interval: 30s", "interval: 5s"))
    tls = ssl.create_default_context(cafile=str(authority.certificate_file))
    tls.load_cert_chain(certificate, key)
    with request.param(directory, file, authority, tls) as found:
        secrets = prefix / "etc/gpu-fleet/secrets"
        secrets.mkdir(parents=True)
        (secrets / "metrics-password").write_text(PASSWORD)
        (secrets / "metrics-client-key").write_text(key.read_text())
        access = Access(store="metrics", ca=authority.certificate_file.read_text(), certificate=certificate.read_text())
        facts = {
            "GPU_FLEET_EXPORTER_MODE": "nvidia_gpu_exporter",
            "GPU_FLEET_METRICS_USERNAME": "writer",
            "GPU_FLEET_METRICS_URL": f"{found.store.url}/api/v1/write",
        }
        with running_alloy(prefix, facts, metrics_login=True, logs=False, metrics_access=access):
            yield found


def test_the_series_of_a_host_arrive_with_its_labels(site: Site) -> None:
    wanted = '{__name__="nvidia_smi_gpu_info", instance="gpu-node-001", datacenter="us-west", cluster="training"}'
    site.store.wait_for("the exporter's series", lambda: site.store.query(wanted))


def test_every_rule_that_make_rules_writes_is_evaluated_without_an_error(site: Site) -> None:
    def wrong() -> list[tuple[str, str, str | None]]:
        return [(one["name"], one["health"], one.get("lastError")) for one in site.ruler.rules() if one["health"] != "ok"]

    site.ruler.wait_for("an evaluation of every rule", lambda: not wrong(), shown=wrong)
    found = site.ruler.rules()
    assert {rule["type"] for rule in found} == {"alerting", "recording"} and len(found) > 100
    site.store.wait_for("a recorded series", lambda: site.store.query('gpu:info{instance="gpu-node-001"}'))


def test_the_store_answers_every_query_of_every_dashboard(site: Site) -> None:
    """Those of the panels; an error raises."""
    panels = [panel for board in dashboards.all_dashboards().values() for panel in all_panels(board) if panel["type"] != "row"]
    questions = {Question.of(panel, target, ANY) for panel in panels for target in panel.get("targets", [])}
    asked = [one.expression for one in questions if not one.is_loki]
    assert len(asked) > 50
    for expression in asked:
        site.store.query(expression)
