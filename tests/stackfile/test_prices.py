"""Prices of GPUs: by model, and from a day on."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.prices import Prices

H100, A100, L40S = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S"


def prices(directory: Path, given: object) -> Prices:
    grafana = {"url": "https://grafana.example.com", "costPerGpuHour": given}
    section = StackConfig.load(
        {"datacenter": "d", "cluster": "c", "grafana": grafana}, directory, frozenset({"grafanaAuth"})
    ).grafana
    assert section and section.cost_per_gpu_hour is not None
    return Prices.of(section.cost_per_gpu_hour)


def test_one_number_is_the_price_of_every_model_and_day(tmp_path: Path) -> None:
    assert [prices(tmp_path, 3).at(model, "2020-01-01") for model in (H100, "")] == [3, 3]


def test_a_model_has_the_price_of_the_most_words_that_it_has(tmp_path: Path) -> None:
    found = prices(tmp_path, {"h100": 2.5, "H100 PCIe": 2, "L4": 0.5, "mi300x": 3})
    models = (H100, "NVIDIA H100 PCIe", "AMD Instinct MI300X", "NVIDIA L4", L40S, "")
    assert [found.at(model, "2026-11-01") for model in models] == [2.5, 2, 3, 0.5, None, None]
    assert prices(tmp_path, {"L4": 0.5, "default": 1}).at(L40S, "2026-11-01") == 1


@pytest.mark.parametrize(
    "second", ["2026-11-15", datetime.date(2026, 11, 15), "2026-11-15T00:00:00Z", "2026-11-15 00:00:00 +0000 UTC"]
)
def test_a_price_begins_on_its_day(tmp_path: Path, second: object) -> None:
    found = prices(tmp_path, {"A100": [{"cost": 2}, {"from": second, "cost": 1.5}], "H100": [{"from": second, "cost": 3}]})
    assert [found.at(A100, f"2026-11-{day}") for day in ("01", "14", "15", "30")] == [2, 2, 1.5, 1.5]
    assert [found.at(H100, f"2026-11-{day}") for day in ("14", "15")] == [None, 3]


def test_matchers_of_queries_give_each_model_the_same_price(tmp_path: Path) -> None:
    found = prices(
        tmp_path, {"H100": [{"cost": 2.5}, {"from": "2026-11-01", "cost": 2}], "H100 80GB": 1, "A100": 3, "default": 4}
    )
    for model in (H100, "NVIDIA H100 PCIe", A100, L40S, ""):
        fits = [
            price
            for matchers, price in found.newest()
            if all(
                bool(re.fullmatch(pattern, model)) == (sign == "=~")
                for sign, pattern in re.findall(r'model(=~|!~)"([^"]*)"', matchers)
            )
        ]
        assert fits == [found.at(model, "2026-12-01")], model
