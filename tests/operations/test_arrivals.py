"""What `make check`, `up` and `status` say of a host whose samples arrive in part, asked at a real store."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from gpu_fleet.operations.arrivals import Arrivals, arrivals, is_silent, missing, missing_of_node
from gpu_fleet.operations.mimir import Mimir
from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.kubernetes import Kubernetes
from lab.showcase.remote_write import push
from tests.prometheus_server import PrometheusServer

HOSTS = {
    name: {"connection": "pull"} for name in ("well", "scrape", "empty", "bare", "stopped", "refused", "gone", "never", "new")
}
# What a host sends, by metric and labels: the value; None: the time; below 0: a time that long before the test.
WELL: Mapping[tuple[str, str], float | None] = {
    ("alloy_build_info", ""): 1,
    ("up", "gpu-exporter"): 1,
    ("up", "node-exporter"): 1,
    ("DCGM_FI_DEV_GPU_TEMP", "gpu-exporter"): 50,
    ("node_uname_info", "node-exporter"): 1,
    ("node_gpu_collector_timestamp_seconds", "links"): None,
    ("gpu_fleet_check_timestamp_seconds", ""): None,
}
LATE = 10_000  # seconds


def without(*names: str) -> dict[tuple[str, str], float | None]:
    return {key: value for key, value in WELL.items() if key[0] not in names}


SENT = {
    "well": WELL,
    "scrape": {**without("DCGM_FI_DEV_GPU_TEMP"), ("up", "gpu-exporter"): 0},
    "empty": without("DCGM_FI_DEV_GPU_TEMP"),
    "bare": without("node_uname_info", "gpu_fleet_check_timestamp_seconds"),
    "stopped": {
        **WELL,
        ("node_gpu_collector_timestamp_seconds", "links"): -LATE,
        ("gpu_fleet_check_timestamp_seconds", ""): -LATE,
    },
    "refused": WELL,
    "gone": WELL,
    "new": without("gpu_fleet_check_timestamp_seconds"),
}
REFUSED = {"prometheus_remote_storage_samples_failed_total": 15, "loki_write_dropped_entries_total": 0.6}  # each 15 s
EXPECTED = {
    "well": (),
    "scrape": ("the scrape of gpu-exporter fails",),
    "empty": ("no GPU readings: the exporter answers without them, or nothing scrapes it",),
    "bare": ("no metrics of node_exporter", "no report of the host's own check for drift"),
    "stopped": ("the collector links has stopped", "the host's own check for drift has stopped: the last one was 3 h ago"),
    "refused": (
        "300 samples of the last 5 min were refused by the store",
        "12 log lines of the last 5 min were refused by the store",
    ),
    "gone": ("the last sample in the metrics store: 30 min ago",),
    "never": ("the last sample in the metrics store: not in 1d",),
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> StackConfig:
    stack = {"datacenter": "d", "cluster": "c", "hosts": HOSTS, "pull": {"url": "https://files.example.com"}}
    stack["metrics"] = {"url": "https://mimir.example.com/api/v1/push"}
    return StackConfig.load(stack, tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module", params=[0, 7200, -7200], ids=["our clock is right", "it is ahead", "it is behind"])
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, config: StackConfig
) -> tuple[Arrivals, float]:
    directory = tmp_path_factory.mktemp("store")
    settings = {"storage": {"tsdb": {"out_of_order_time_window": "6h"}}}
    now = time.time()
    with PrometheusServer(directory, settings, "--web.enable-remote-write-receiver") as server:
        series = {}
        for host, sent in SENT.items():
            end = now - (1800 if host == "gone" else 0)
            times = [end - 15 * step for step in reversed(range(10 if host == "new" else 100))]
            for (name, of), value in sent.items():
                label = "collector" if "collector" in name else "job"
                labels = {"__name__": name, "datacenter": "d", "cluster": "c", "instance": host, label: of}
                value = now + value if value is not None and value < 0 else value
                samples = [(at, at if value is None else value) for at in times]
                series[tuple(sorted((key, text) for key, text in labels.items() if text))] = samples
            if host == "refused":
                for name, step in REFUSED.items():
                    labels = {"__name__": name, "datacenter": "d", "cluster": "c", "instance": host}
                    series[tuple(sorted(labels.items()))] = [(at, number * step) for number, at in enumerate(times)]
        push(f"{server.url}/api/v1/write", series)
        right = time.time
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time", lambda: right() + request.param)
            return arrivals(config, Mimir(server.url, {})), time.time()


@pytest.mark.parametrize("host", EXPECTED)
def test_what_does_not_arrive_is_named(host: str, config: StackConfig, found: tuple[Arrivals, float]) -> None:
    assert missing(config.hosts[host], *found) == EXPECTED[host]
    assert is_silent(host, *found) == (host in ("gone", "never"))


def test_of_a_node_everything_but_the_check_of_a_host_is_expected(found: tuple[Arrivals, float]) -> None:
    section = Kubernetes()
    of = {name: missing_of_node(name, section, *found, with_gpus=True) for name in EXPECTED}
    assert of["well"] == of["stopped"] == ()
    assert {name: of[name] for name in ("scrape", "empty", "refused", "gone", "never")} == {
        name: EXPECTED[name] for name in ("scrape", "empty", "refused", "gone", "never")
    }
    assert of["bare"] == ("no metrics of node_exporter",)
    assert missing_of_node("empty", section, *found, with_gpus=False) == (), "a node without GPUs has no readings"
    others = Kubernetes(nodeExporter="none")
    assert missing_of_node("bare", others, *found, with_gpus=True) == (), "nothing of node_exporter was deployed"


def test_a_host_that_was_just_deployed_has_not_checked_itself_yet(config: StackConfig, found: tuple[Arrivals, float]) -> None:
    assert missing(config.hosts["new"], *found) == ()
