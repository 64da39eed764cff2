"""A real Alloy with a host's configuration: what reaches Mimir."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.host.parts.conftest import RunningAlloy, running_alloy

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


def test_a_textfile_host_is_not_asked_for_a_gpu_exporter(tmp_path: Path) -> None:
    with running_alloy(tmp_path, {"GPU_FLEET_EXPORTER_MODE": "textfile"}) as running:
        running.receiver.wait_for(lambda: len(running.receiver.of("up")) >= 2)
        assert {labels["job"] for labels, _ in running.receiver.of("up")} == {"node-exporter", "alloy"}


def test_the_login_and_the_tenant_reach_mimir(tmp_path: Path) -> None:
    secrets = tmp_path / "etc/gpu-fleet/secrets"
    secrets.mkdir(parents=True)
    (secrets / "metrics-password").write_text("correct horse")
    facts = {
        "GPU_FLEET_EXPORTER_MODE": "textfile",
        "GPU_FLEET_METRICS_USERNAME": "writer",
        "GPU_FLEET_METRICS_TENANT": "us-west",
    }
    with running_alloy(tmp_path, facts, metrics_login=True) as running:
        running.receiver.wait_for(lambda: running.receiver.headers)
        headers = running.receiver.headers["/api/v1/push"]
    assert headers["X-Scope-Orgid"] == "us-west"
    assert headers["Authorization"] == "Basic " + base64.b64encode(b"writer:correct horse").decode()


def test_without_a_login_no_authorization_is_sent(alloy: RunningAlloy) -> None:
    alloy.receiver.wait_for(lambda: alloy.receiver.headers)
    assert "Authorization" not in alloy.receiver.headers["/api/v1/push"], "a gateway may refuse empty credentials"
