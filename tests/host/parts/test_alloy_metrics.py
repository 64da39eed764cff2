"""A real Alloy with a host's configuration: what reaches Mimir."""

from __future__ import annotations

import base64
import time
import urllib.error
import urllib.request
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
    jobs = {"node-exporter", "gpu-exporter", "textfile", "alloy"}
    alloy.receiver.wait_for(lambda: {labels["job"] for labels, _ in alloy.receiver.of("up")} >= jobs)
    assert {labels["job"] for labels, _ in alloy.receiver.of("up")} == jobs


@pytest.mark.parametrize("path", ["-/support?duration=1", "debug/pprof/profile?seconds=1"])
def test_a_user_of_the_host_gets_no_profile_and_no_support_bundle(alloy: RunningAlloy, path: str) -> None:
    alloy.receiver.wait_for(lambda: alloy.receiver.of("alloy_build_info"))
    with pytest.raises(urllib.error.HTTPError, match=r"403|404"):
        urllib.request.urlopen(f"{alloy.url}/{path}", timeout=30)


def _own_counts(alloy: RunningAlloy) -> tuple[float, dict[str, float]]:
    """When Alloy started; and how often each of its components has scraped."""
    with urllib.request.urlopen(f"{alloy.url}/metrics", timeout=30) as answer:
        values = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#"))
    scrapes = {
        name: float(value) for name, value in values.items() if name.startswith("prometheus_target_interval_length_seconds_count")
    }
    return float(values["process_start_time_seconds"]), scrapes


def test_whoever_has_alloy_read_its_configuration_again_and_again_delays_no_scrape(alloy: RunningAlloy) -> None:
    alloy.receiver.wait_for(lambda: alloy.receiver.of("alloy_build_info"))
    started, before = _own_counts(alloy)
    until = time.monotonic() + 12  # scrapes are a second apart here
    while time.monotonic() < until:
        with urllib.request.urlopen(urllib.request.Request(f"{alloy.url}/-/reload", method="POST"), timeout=30) as answer:
            assert answer.status == 200
    still_started, after = _own_counts(alloy)
    assert still_started == started
    assert before.keys() == after.keys() and before
    for scrape, count in after.items():
        assert count - before[scrape] >= 9, scrape


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
    other_alloy.receiver.wait_for(lambda: len(other_alloy.receiver.of("up")) >= 3)
    assert {labels["job"] for labels, _ in other_alloy.receiver.of("up")} == {"node-exporter", "textfile", "alloy"}


def test_who_listens_on_an_exporter_s_port_cannot_speak_for_our_programs(tmp_path: Path) -> None:
    forged = "".join(f"{name} 0\n" for name in ("gpu_fleet_drift_items", "node_gpu_info", "node_load1", "nvidia_smi_gpu_info"))
    port = serve_metrics(forged).server_port
    written = tmp_path / "var/lib/gpu-fleet/textfile/fleet_check.prom"
    written.parent.mkdir(parents=True)
    written.write_text('gpu_fleet_drift_items{part="alloy"} 3\n')
    held = {name: f"127.0.0.1:{port}" for name in ("GPU_FLEET_NODE_EXPORTER_LISTEN", "GPU_FLEET_GPU_EXPORTER_LISTEN")}
    with running_alloy(tmp_path, {"GPU_FLEET_EXPORTER_MODE": "nvidia_gpu_exporter", **held}) as alloy:
        receiver = alloy.receiver
        receiver.wait_for(
            lambda: all(receiver.of(name) for name in ("gpu_fleet_drift_items", "node_load1", "nvidia_smi_gpu_info"))
        )
        receiver.wait_for(lambda: len(receiver.of("up")) == 4)
        assert [(labels["job"], value) for labels, value in receiver.of("gpu_fleet_drift_items")] == [("textfile", 3)]
        assert receiver.of("node_gpu_info") == []
        assert {labels["job"] for labels, _ in receiver.of("node_load1")} == {"node-exporter"}


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
