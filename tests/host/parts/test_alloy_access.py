"""A real Alloy with a host's configuration, and stores that ask for more than a user name: a private authority, a client
certificate, a bearer token, headers of a gateway."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator

import pytest

from host.parts.alloy import Access
from lab.kubernetes.certificates import Authority
from tests.host.parts.conftest import RunningAlloy, kernel_log_facts, running_alloy
from tests.host.parts.receiver import Receiver

TOKEN = {"metrics": "planted-token-of-metrics", "logs": "planted-token-of-logs"}
PATHS = {"metrics": "/api/v1/push", "logs": "/loki/api/v1/push"}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAlloy]:
    """One server for both stores, which takes only clients with a certificate of its authority."""
    prefix, keys = tmp_path_factory.mktemp("strict host"), tmp_path_factory.mktemp("keys")
    authority = Authority(keys)
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
        "GPU_FLEET_LOGS_HEADERS": json.dumps({"X-Gateway-Team": ["logs"]}),
    }
    with running_alloy(prefix, facts, receiver=Receiver(tls=context), **access) as running:
        running.wait_until_read(log)
        with log.open("a") as kernel:
            kernel.write("[ 1.0] NVRM: Xid (PCI:0000:4b:00): 79, GPU has fallen off the bus.\n")
        yield running


@pytest.mark.parametrize("store", PATHS)
def test_a_store_with_client_certificates_gets_the_token_and_the_headers(strict: RunningAlloy, store: str) -> None:
    strict.receiver.wait_for(lambda: PATHS[store] in strict.receiver.headers)
    headers = strict.receiver.headers[PATHS[store]]
    assert headers["Authorization"] == f"Bearer {TOKEN[store]}"
    assert headers["X-Gateway-Team"] == {"metrics": 'the "gpu" team', "logs": "logs"}[store]


def test_the_tenant_is_sent_beside_other_headers(strict: RunningAlloy) -> None:
    strict.receiver.wait_for(lambda: PATHS["metrics"] in strict.receiver.headers)
    assert strict.receiver.headers[PATHS["metrics"]]["X-Scope-Orgid"] == "us-west"


def test_alloy_shows_no_token_in_its_log(strict: RunningAlloy) -> None:
    strict.receiver.wait_for(lambda: strict.receiver.headers)
    shown = (strict.prefix / "alloy.log").read_text()
    assert not [token for token in TOKEN.values() if token in shown]


def test_a_new_token_is_sent_without_a_restart(strict: RunningAlloy) -> None:
    (strict.prefix / "etc/gpu-fleet/secrets/metrics-bearer-token").write_text("rotated")
    strict.receiver.wait_for(lambda: strict.receiver.headers[PATHS["metrics"]]["Authorization"] == "Bearer rotated")
