"""Prices by model in the panels about cost, asked at a real Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from dashboards.queries import capacity as q
from dashboards.queries.common import ONE_CLUSTER
from gpu_fleet.operations.mimir import Mimir
from gpu_fleet.stackfile.prices import Prices
from lab.showcase.remote_write import push
from tests.prometheus_server import PrometheusServer

# Two clusters for an hour: eight H100 and two L40S, of which five are idle; four L4 without a price, one idle.
MODELS = {"a": {"NVIDIA H100 80GB HBM3": 8, "NVIDIA L40S": 2}, "b": {"NVIDIA H100 PCIe": 1, "NVIDIA L4": 4}}
IDLE = {"a": 5, "b": 1}
PRICES = Prices.read({"H100": [{"cost": 1}, {"from": "2026-01-01", "cost": 3}], "H100 PCIe": 2, "L40S": 1})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mimir]:
    with PrometheusServer(tmp_path_factory.mktemp("store"), {}, "--web.enable-remote-write-receiver") as server:
        series = {}
        times = [time.time() - 60 * minutes for minutes in range(90, -1, -1)]
        for cluster, models in MODELS.items():
            of = {"datacenter": "d", "cluster": cluster}
            for model, gpus in models.items():
                named = {"__name__": "cluster:gpus_by_model:count", "model": model, **of}
                series[tuple(sorted(named.items()))] = [(at, float(gpus)) for at in times]
            named = {"__name__": "cluster:gpus_idle:count", **of}
            series[tuple(sorted(named.items()))] = [(at, float(IDLE[cluster])) for at in times]
        push(f"{server.url}/api/v1/write", series)
        yield Mimir(server.url, {})


def test_each_model_has_its_price_and_those_without_are_left_out(store: Mimir) -> None:
    prices = dict(PRICES.newest())

    def asked(query: str) -> dict[str, float]:
        found = store.vector(query.replace("$__range", "60m"), at=time.time())
        return {labels.get("cluster", ""): value for labels, value in found}

    assert asked(q.cost('datacenter="d"', prices)) == pytest.approx({"": 8 * 3 + 2 * 1 + 2})
    assert asked(q.cost('datacenter="d"', prices, ONE_CLUSTER)) == pytest.approx({"a": 26, "b": 2})
    assert asked(q.idle_cost('datacenter="d"', prices, ONE_CLUSTER)) == pytest.approx({"": 5 * 2.6 + 1 * 2 / 5})
