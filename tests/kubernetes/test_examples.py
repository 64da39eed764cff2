"""The examples for Kubernetes are taken: the stack file by its checks, the autoscaler by an API server."""

from __future__ import annotations

from pathlib import Path

import yaml

from components.kubernetes.releases import release_names
from components.kubernetes.scaling import METRICS
from gpu_fleet.stackfile.config import StackConfig
from lab.kubernetes import Cluster

EXAMPLES = Path(__file__).parents[2] / "examples" / "kubernetes"


def test_the_stack_file_passes_and_installs_what_it_says() -> None:
    config = StackConfig.from_file(EXAMPLES / "Pulumi.eu-west-serving.yaml")
    assert config.kubernetes is not None
    assert release_names(config.kubernetes) == [
        "dcgm-exporter",
        "alloy",
        "node-exporter",
        "kube-state-metrics",
        "prometheus-adapter",
    ]


def test_the_autoscaler_is_taken_and_asks_for_a_metric_that_there_is(cluster: Cluster, namespace: str) -> None:
    autoscaler = yaml.safe_load((EXAMPLES / "hpa.yaml").read_text())
    autoscaler["metadata"]["namespace"] = namespace
    cluster.apply(autoscaler)
    (metric,) = autoscaler["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] in {one.name for one in METRICS}
