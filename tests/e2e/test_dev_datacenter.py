"""The main workflow, as a user runs it: `make dev`, look, break, repair, inject, remove. Real engine, agent, Mimir and Loki."""

from __future__ import annotations

import subprocess

from lab.dev import query
from tests.e2e.conftest import Datacenter
from tests.waiting import eventually


def test_mimir_has_the_utilization_of_8_gpus_with_the_four_labels(datacenter: Datacenter) -> None:
    recorded = lambda: query.labelled_utilization(datacenter.endpoints["MIMIR_URL"])  # noqa: E731
    eventually("8 GPUs", lambda: len(recorded()) == 8, shown=recorded)
    for each in recorded():
        assert each["metric"]["datacenter"] == "dev"
        assert each["metric"]["cluster"] == "local"
        assert each["metric"]["instance"] == "dev-gpu-host"
        assert each["metric"]["exporter_mode"] == "nvidia_gpu_exporter"
        assert 0 <= float(each["value"][1]) <= 1, "the vocabulary speaks in ratios"


def test_every_series_of_the_host_carries_the_four_labels(datacenter: Datacenter) -> None:
    from_host = 'job=~"alloy|gpu-exporter|node-exporter|textfile"'
    for label in query.LABELS:
        assert datacenter.metrics(f'count by (__name__) ({{{from_host},{label}=""}})') == []


def test_node_exporter_and_the_agent_itself_are_scraped(datacenter: Datacenter) -> None:
    for series in ("node_uname_info", "alloy_build_info"):  # each at its own time
        eventually(series, lambda series=series: datacenter.metrics(f'{series}{{instance="dev-gpu-host"}}'))


def test_the_ruler_knows_the_hosts_and_gpus_that_the_stack_expects(datacenter: Datacenter) -> None:
    expected = 'inventory:gpus_expected:count{datacenter="dev",cluster="local",instance="dev-gpu-host"}'
    eventually("the inventory is a metric", lambda: datacenter.metrics(expected))
    assert datacenter.metrics(expected)[0]["value"][1] == "8", "only this number shows that a GPU is lost"


def test_an_edited_file_and_a_stopped_exporter_are_seen_by_refresh_and_repaired_by_up(datacenter: Datacenter) -> None:
    config = min((datacenter.host / "etc/gpu-fleet/alloy").glob("*.alloy"))
    original = config.read_text()
    config.write_text(original + "// edited by hand\n")
    stop_program(datacenter, "gpu-fleet-nvidia-gpu-exporter")

    output = datacenter.pulumi("up", "--refresh", "--yes", "--skip-preview", "--diff")
    assert f"file /etc/gpu-fleet/alloy/{config.name}: content differs" in output, output
    assert "nvidia-gpu-exporter" in output, output
    assert config.read_text() == original
    eventually(
        "8 GPUs again",
        lambda: len(datacenter.metrics("nvidia_smi_utilization_gpu_ratio")) == 8,
    )


def test_the_state_holds_no_secret_in_clear(datacenter: Datacenter) -> None:
    kept = datacenter.state.read_text()
    assert "dev-gpu-host" in kept
    for name in ("grafana-password", "passphrase"):
        assert (datacenter.directory / ".dev" / name).read_text() not in kept, name


def stop_program(datacenter: Datacenter, program: str) -> None:
    """As a person does it, with supervisorctl: supervisord does not restart it."""
    subprocess.run(
        [
            datacenter.directory / ".venv/bin/supervisorctl",
            "-c",
            datacenter.host / "etc/gpu-fleet/supervisord.conf",
            "stop",
            program,
        ],
        check=True,
        cwd=datacenter.host / "run/gpu-fleet",  # the socket's path is relative to it
        env={"GPU_FLEET_PREFIX": str(datacenter.host)},
    )
