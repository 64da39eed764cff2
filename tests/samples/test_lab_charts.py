"""The lab's charts have no value that the official ones do not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from lab.kubernetes.chart_packages import SOURCES
from tests.samples.conftest import SAMPLES

OFFICIAL = {
    "alloy": "alloy-1.11.1",
    "dcgm-exporter": "dcgm-exporter-4.8.2",
    "gpu-operator": "gpu-operator-v26.7.0",
    "kube-prometheus-stack": "kube-prometheus-stack-88.5.3",
    "kube-state-metrics": "kube-state-metrics",
    "prometheus-adapter": "prometheus-adapter",
    "prometheus-node-exporter": "prometheus-node-exporter",
}


def paths(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield f"{above}{key}"
        if isinstance(value, Mapping):
            yield from paths(value, f"{above}{key}.")


@pytest.mark.parametrize("name", sorted(OFFICIAL))
def test_every_value_is_one_of_the_official_chart(name: str) -> None:
    ours = yaml.safe_load((SOURCES / name / "values.yaml").read_text())
    theirs = yaml.safe_load((SAMPLES / "helm" / OFFICIAL[name] / "values.yaml").read_text())
    assert sorted(set(paths(ours)) - set(paths(theirs))) == []
