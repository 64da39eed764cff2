"""A real Alloy with a host's configuration, and stores that ask for more than a user name: a private authority, a client
certificate, a bearer token, headers of a gateway. Logs go to a real Loki behind Caddy, which asks for all of them."""

from __future__ import annotations

import json
import ssl
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_fleet.host.parts.alloy import Access
from gpu_fleet.toolchain import find
from lab.kubernetes.certificates import Authority
from lab.ports import free_ports
from lab.showcase.servers import Servers
from tests.host.parts.conftest import RunningAlloy, kernel_log_facts, running_alloy
from tests.host.parts.receiver import Receiver

TOKEN = {"metrics": "planted-token-of-metrics", "logs": "planted-token-of-logs"}
PUSH = "/api/v1/push"
GATEWAY = """
{{
    admin off
    persist_config off
    auto_https disable_redirects
    storage file_system {directory}
}}
https://localhost:{port} {{
    bind 127.0.0.1
    tls {certificate} {key} {{
        client_auth {{
            mode require_and_verify
            trust_pool file {authority}
        }}
    }}
    @granted {{
        header Authorization "Bearer {token}"
        header X-Gateway-Team logs
    }}
    handle @granted {{
        reverse_proxy {loki}
    }}
    respond 403
}}
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def loki(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    servers = Servers(tmp_path_factory.mktemp("loki"), ("loki",))
    try:
        servers.wait()
        yield servers.loki
    finally:
        servers.stop()


@pytest.fixture(scope="module")
def gateway(authority: Authority, loki: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Loki behind Caddy, for clients with a certificate, the token and the header."""
    directory, [port] = tmp_path_factory.mktemp("caddy"), free_ports(1)
    certificate, key = authority.server("gateway")
    text = GATEWAY.format(
        directory=directory,
        port=port,
        certificate=certificate,
        key=key,
        authority=authority.certificate_file,
        token=TOKEN["logs"],
        loki=loki,
    )
    with caddy(directory, text):
        yield f"https://localhost:{port}"  # with client certificates Caddy wants a name, which is sent in the TLS handshake


@contextmanager
def caddy(directory: Path, config: str) -> Iterator[None]:
    file = directory / "Caddyfile"
    file.write_text(config)
    command = [find("caddy"), "run", "--config", str(file)]
    with (directory / "caddy.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield
            assert process.poll() is None, (directory / "caddy.log").read_text()[-2000:]
        finally:
            process.kill()


@pytest.fixture(scope="module")
def strict(authority: Authority, gateway: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAlloy]:
    """Metrics go to a server that takes only clients with a certificate of its authority, logs to the gateway."""
    prefix = tmp_path_factory.mktemp("strict host")
    certificate, key = authority.client("alloy")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.server("store"))
    context.load_verify_locations(authority.certificate_file)
    context.verify_mode = ssl.CERT_REQUIRED
    secrets = prefix / "etc/gpu-fleet/secrets"
    secrets.mkdir(parents=True)
    for store, token in TOKEN.items():
        (secrets / f"{store}-bearer-token").write_text(f"{token}\n")
        (secrets / f"{store}-client-key").write_text(key.read_text())
    access = {
        f"{store}_access": Access(
            store=store, bearer_token=True, ca=authority.certificate_file.read_text(), certificate=certificate.read_text()
        )
        for store in TOKEN
    }
    log = prefix / "kern.log"
    log.touch()
    facts = {
        **kernel_log_facts(log),
        "GPU_FLEET_METRICS_TENANT": "us-west",
        "GPU_FLEET_METRICS_HEADERS": json.dumps({"X-Gateway-Team": ['the "gpu" team']}),
        "GPU_FLEET_LOGS_URL": f"{gateway}/loki/api/v1/push",
        "GPU_FLEET_LOGS_HEADERS": json.dumps({"X-Gateway-Team": ["logs"]}),
    }
    with running_alloy(prefix, facts, receiver=Receiver(tls=context), **access) as running:
        running.wait_until_read(log)
        with log.open("a") as kernel:
            kernel.write("[ 1.0] NVRM: Xid (PCI:0000:4b:00): 79, GPU has fallen off the bus.\n")
        yield running


def test_a_store_with_client_certificates_gets_the_token_and_the_headers(strict: RunningAlloy) -> None:
    strict.receiver.wait_for(lambda: PUSH in strict.receiver.headers)
    headers = strict.receiver.headers[PUSH]
    assert headers["Authorization"] == f"Bearer {TOKEN['metrics']}"
    assert headers["X-Gateway-Team"] == 'the "gpu" team'


def test_a_kernel_line_reaches_loki_through_a_gateway_that_asks_for_all_of_them(
    strict: RunningAlloy, loki: str, gateway: str, authority: Authority
) -> None:
    query = urllib.parse.urlencode({"query": '{job="kernel", instance="gpu-node-001"} |= "Xid"'})

    def lines() -> list[object]:
        with urllib.request.urlopen(f"{loki}/loki/api/v1/query_range?{query}", timeout=60) as answer:
            return json.load(answer)["data"]["result"]

    strict.receiver.wait_for(lines)
    without = ssl.create_default_context(cafile=str(authority.certificate_file))
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{gateway}/ready", timeout=60, context=without)
    without.load_cert_chain(*authority.client("another"))
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{gateway}/ready", timeout=60, context=without)


def test_the_tenant_is_sent_beside_other_headers(strict: RunningAlloy) -> None:
    strict.receiver.wait_for(lambda: PUSH in strict.receiver.headers)
    assert strict.receiver.headers[PUSH]["X-Scope-Orgid"] == "us-west"


@pytest.mark.parametrize("login", [False, True])
def test_stores_are_reached_through_the_proxy_of_the_environment(tmp_path: Path, login: bool) -> None:
    """The only way to them: no resolver knows their names."""
    log = tmp_path / "kern.log"
    log.touch()
    for name in ("metrics-password", "logs-password"):
        (tmp_path / "etc/gpu-fleet/secrets").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"etc/gpu-fleet/secrets/{name}").write_text("planted-password")
    receiver = Receiver()
    facts = {
        **kernel_log_facts(log),
        "GPU_FLEET_METRICS_URL": "http://mimir.invalid/api/v1/push",
        "GPU_FLEET_LOGS_URL": "http://loki.invalid/loki/api/v1/push",
        "http_proxy": receiver.url,
    }
    with running_alloy(tmp_path, facts, receiver, metrics_login=login, logs_login=login) as running:
        running.wait_until_read(log)
        with log.open("a") as kernel:
            kernel.write("[ 1.0] NVRM: Xid (PCI:0000:4b:00): 79, GPU has fallen off the bus.\n")
        receiver.wait_for(lambda: {facts["GPU_FLEET_METRICS_URL"], facts["GPU_FLEET_LOGS_URL"]} <= receiver.headers.keys())


def test_alloy_shows_no_token_in_its_log(strict: RunningAlloy) -> None:
    strict.receiver.wait_for(lambda: strict.receiver.headers)
    shown = (strict.prefix / "alloy.log").read_text()
    assert not [token for token in TOKEN.values() if token in shown]


def test_a_new_token_is_sent_without_a_restart(strict: RunningAlloy) -> None:
    strict.receiver.wait_for(lambda: PUSH in strict.receiver.headers)
    for token in ("rotated", TOKEN["metrics"]):  # at the end the one that other tests of this Alloy expect
        (strict.prefix / "etc/gpu-fleet/secrets/metrics-bearer-token").write_text(token)
        strict.receiver.wait_until(lambda: strict.receiver.headers[PUSH]["Authorization"], f"Bearer {token}")
