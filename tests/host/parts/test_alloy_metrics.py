"""A real Alloy with a host's configuration: what reaches Mimir."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.parts.conftest import RunningAlloy, kernel_log_facts, running_alloy, serve_metrics

LABELS = {
    "instance": "gpu-node-001",
    "datacenter": "us-west",
    "cluster": "training",
    "exporter_mode": "nvidia_gpu_exporter",
}


@pytest.mark.parametrize("name", ["nvidia_smi_gpu_info", "node_uname_info", "alloy_build_info", "up"])
def test_every_series_carries_the_four_labels_of_its_host(alloy: RunningAlloy, name: str) -> None:
    alloy.receiver.wait_for(lambda: alloy.receiver.of(name))
    for labels, _ in alloy.receiver.of(name):
        assert labels.items() >= LABELS.items(), "dashboards and alerts select by these labels alone"


def test_the_instance_is_the_inventory_name_whatever_the_exporter_calls_itself(alloy: RunningAlloy) -> None:
    alloy.receiver.wait_for(lambda: alloy.receiver.of("nvidia_smi_gpu_info"))
    labels = alloy.receiver.of("nvidia_smi_gpu_info")[0][0]
    assert labels["exported_instance"] == "exporter's own"


def test_a_host_has_one_up_series_per_scraped_service(alloy: RunningAlloy) -> None:
    jobs = {"node-exporter", "gpu-exporter", "alloy"}
    alloy.receiver.wait_for(lambda: {labels["job"] for labels, _ in alloy.receiver.of("up")} >= jobs)
    assert {labels["job"] for labels, _ in alloy.receiver.of("up")} == jobs


@pytest.fixture(scope="module")
def other_alloy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAlloy]:
    """A host with textfiles, whose Mimir asks for a login and whose stack has no Loki."""
    prefix = tmp_path_factory.mktemp("other host")
    secrets = prefix / "etc/gpu-fleet/secrets"
    secrets.mkdir(parents=True)
    (secrets / "metrics-password").write_text("correct horse")
    log = prefix / "kern.log"
    log.touch()
    facts = {
        **kernel_log_facts(log),
        "GPU_FLEET_EXPORTER_MODE": "textfile",
        "GPU_FLEET_METRICS_USERNAME": "writer",
        "GPU_FLEET_METRICS_TENANT": "us-west",
    }
    with running_alloy(prefix, facts, metrics_login=True, logs=False) as running:
        running.wait_until_read(log)
        with log.open("a") as kernel:
            kernel.write("[ 1.0] NVRM: Xid (PCI:0000:4b:00): 79, GPU has fallen off the bus.\n")
        yield running


def test_a_textfile_host_is_not_asked_for_a_gpu_exporter(other_alloy: RunningAlloy) -> None:
    other_alloy.receiver.wait_for(lambda: len(other_alloy.receiver.of("up")) >= 2)
    assert {labels["job"] for labels, _ in other_alloy.receiver.of("up")} == {"node-exporter", "alloy"}


def test_the_login_and_the_tenant_reach_mimir(other_alloy: RunningAlloy) -> None:
    other_alloy.receiver.wait_for(lambda: "/api/v1/push" in other_alloy.receiver.headers)
    headers = other_alloy.receiver.headers["/api/v1/push"]
    assert headers["X-Scope-Orgid"] == "us-west"
    assert headers["Authorization"] == "Basic " + base64.b64encode(b"writer:correct horse").decode()


def test_without_a_loki_the_xids_are_still_counted(other_alloy: RunningAlloy) -> None:
    other_alloy.receiver.wait_for(lambda: other_alloy.receiver.of("gpu_fleet_xid_events_total"))
    assert not other_alloy.receiver.lines


def test_without_a_login_no_authorization_is_sent(alloy: RunningAlloy) -> None:
    alloy.receiver.wait_for(lambda: "/api/v1/push" in alloy.receiver.headers)
    assert "Authorization" not in alloy.receiver.headers["/api/v1/push"], "a gateway may refuse empty credentials"


def test_an_exporter_that_sends_too_much_loses_its_scrape_and_nobody_elses(tmp_path: Path) -> None:
    """What took an exporter's port, or a label of free text: Mimir is paid by series, and a label is sent with each sample."""
    series = serve_metrics("".join(f'flood{{number="{number}"}} 1\n' for number in range(20_001)))
    labels = serve_metrics(f'long{{text="{"x" * 2049}"}} 1\n')
    facts = {
        "GPU_FLEET_EXPORTER_MODE": "nvidia_gpu_exporter",
        "GPU_FLEET_GPU_EXPORTER_LISTEN": f"127.0.0.1:{series.server_port}",
        "GPU_FLEET_NODE_EXPORTER_LISTEN": f"127.0.0.1:{labels.server_port}",
    }
    with running_alloy(tmp_path, facts) as alloy:

        def value(name: str, **wanted: str) -> list[float]:
            return [number for found, number in alloy.receiver.of(name) if wanted.items() <= found.items()]

        def exceeded(limit: str, scrape: str) -> list[float]:
            return value(f"prometheus_target_{limit}_total", component_id=f"prometheus.scrape.{scrape}")

        alloy.receiver.wait_for(lambda: (exceeded("scrapes_exceeded_sample_limit", "gpu_exporter") or [0])[0] >= 1)
        alloy.receiver.wait_for(lambda: (exceeded("scrape_pool_exceeded_label_limits", "node_exporter") or [0])[0] >= 1)
        for job, is_up in {"gpu-exporter": 0, "node-exporter": 0, "alloy": 1}.items():  # Alloy has the XID counters
            alloy.receiver.wait_until(lambda job=job: value("up", job=job), [is_up])
        # ScrapeLimitExceeded compares it.
        alloy.receiver.wait_until(lambda: value("scrape_samples_scraped", job="gpu-exporter"), [20_001])
        assert alloy.receiver.of("flood") == [] and alloy.receiver.of("long") == []
    for server in (series, labels):
        server.shutdown()
        server.server_close()
