"""A cluster that has kube-prometheus-stack: the objects of the example stack in a real API server, and a real Prometheus that
scrapes simulated GPU nodes through our PodMonitors and evaluates our PrometheusRules."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from alerts.inventory import kubernetes_inventory_group
from alerts.prometheus_rule import prometheus_rule, prometheus_rules
from components.kubernetes import values
from components.kubernetes.values import ClusterPlan, monitors
from lab.gpu.inject import inject_xid
from lab.kubernetes import Cluster
from lab.kubernetes.gpu_nodes import GpuNodes
from lab.kubernetes.operator import pod_targets, rule_groups, scrape_configs
from stackfile.config import StackConfig
from stackfile.counters import counters
from tests.kubernetes.plans import plan
from tests.kubernetes.test_scraping import helm, install
from tests.prometheus_server import PrometheusServer

ROOT = Path(__file__).parents[2]
API = "monitoring.coreos.com/v1"
NODE = "gpu-node-1"


@dataclass(frozen=True)
class Watched:
    prometheus: PrometheusServer
    nodes: GpuNodes
    plan: ClusterPlan


@pytest.fixture(scope="module")
def example() -> StackConfig:
    return StackConfig.from_file(ROOT / "examples/kubernetes/Pulumi.eu-central-kps.yaml")


@pytest.fixture(scope="module")
def watched(cluster: Cluster, example: StackConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    directory = tmp_path_factory.mktemp("operator")
    theirs, ours = cluster.namespace("test-gpu-operator"), cluster.namespace("test-gpu-fleet")
    # The exporter that the cluster has, which sets none of our labels.
    install(cluster, plan(namespace=theirs), "dcgm-exporter", values.dcgm_exporter(plan(namespace=theirs)), directory)
    crds = [
        yaml.safe_load(file.read_text()) for file in (ROOT / "lab/kubernetes/charts/kube-prometheus-stack/crds").glob("*.yaml")
    ]
    cluster.apply(*crds)
    cluster.wait_for("the operator's kinds", lambda: has_kind(cluster, "PodMonitor") and has_kind(cluster, "PrometheusRule"))
    assert example.kubernetes is not None
    section = example.kubernetes.model_copy(update={"namespace": ours, "exporter_namespaces": (theirs,)})
    wanted = ClusterPlan(
        datacenter=example.datacenter,
        cluster=example.cluster,
        section=section,
        metrics=example.metrics,
        logs=example.logs,
        counters=counters("standard"),
    )
    inventory = [kubernetes_inventory_group(example.datacenter, example.cluster)]
    made = [
        *monitors(wanted),
        *prometheus_rules(namespace=ours, labels=section.monitor_labels),
        prometheus_rule("inventory-expected", inventory, namespace=ours, labels=section.monitor_labels),
    ]
    cluster.apply(*made)
    stored = {kind: cluster.api.list(API, kind) for kind in ("PodMonitor", "PrometheusRule")}
    assert sum(map(len, stored.values())) == len(made)
    targets, rules = directory / "pods.json", directory / "rules.yml"
    targets.write_text("[]")
    text = yaml.safe_dump(rule_groups(stored["PrometheusRule"]))
    rules.write_text(text.replace("interval: 30s", "interval: 2s").replace("interval: 1m", "interval: 2s"))
    scrapes = [one for monitor in stored["PodMonitor"] for one in scrape_configs(monitor, str(targets))]
    for scrape in scrapes:
        scrape |= {"scrape_interval": "1s", "scrape_timeout": "1s"}  # the same, only more often
    config = {"scrape_configs": scrapes, "rule_files": [str(rules)]}
    stopping = threading.Event()

    def discover() -> None:
        while not stopping.wait(0.5):
            found = json.dumps(pod_targets(cluster.api.list("v1", "Pod")))
            if targets.read_text() != found:
                targets.with_suffix(".new").write_text(found)
                targets.with_suffix(".new").rename(targets)

    discovery = threading.Thread(target=discover, daemon=True)
    discovery.start()
    with GpuNodes(cluster, interval_s=0.2) as nodes, PrometheusServer(directory, config) as prometheus:
        yield Watched(prometheus, nodes, wanted)
    stopping.set()
    discovery.join()
    helm(cluster, "uninstall", "dcgm-exporter", "--namespace", theirs)
    for crd in crds:
        cluster.api.delete(crd)
    for name in (theirs, ours):
        cluster.api.delete({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def has_kind(cluster: Cluster, kind: str) -> bool:
    return kind in {resource["kind"] for resource in cluster.api.get(f"/apis/{API}")["resources"]}


def test_the_example_needs_no_store(example: StackConfig) -> None:
    assert example.metrics is None and example.rulers is None and not example.warnings


def test_gpus_of_an_exporter_that_the_cluster_has_get_our_labels(watched: Watched) -> None:
    wanted = watched.plan
    ours = f'datacenter="{wanted.datacenter}", cluster="{wanted.cluster}", instance="{NODE}", exporter_mode="dcgm-exporter"'
    found = watched.prometheus.wait_for("the vocabulary", lambda: watched.prometheus.query(f"gpu:utilization:ratio{{{ours}}}"))
    assert len(found) == 8
    assert not [one for one in found if "pod" in one["metric"]], "pod is the one that holds the GPU, never the exporter's"


def test_every_rule_of_the_prometheusrules_is_evaluated_without_an_error(watched: Watched) -> None:
    rules = watched.prometheus.rules
    watched.prometheus.wait_for("an evaluation of every rule", lambda: all(one["health"] != "unknown" for one in rules()), 90)
    assert not [(one["name"], one.get("lastError")) for one in rules() if one["health"] != "ok"]


def test_a_gpu_that_fails_fires_its_alert_in_the_operators_prometheus(watched: Watched) -> None:
    watched.prometheus.wait_for("the vocabulary", lambda: watched.prometheus.query(f'gpu:info{{instance="{NODE}"}}'))
    inject_xid(watched.nodes.state(NODE), code=79, gpu=3)

    def firing() -> list[dict]:
        alerts = watched.prometheus.get("/api/v1/alerts")["alerts"]
        return [one for one in alerts if one["state"] == "firing" and one["labels"].get("xid") == "79"]

    [alert, *_] = watched.prometheus.wait_for("the alert about XID 79", firing, 90)
    assert alert["labels"]["instance"] == NODE and alert["labels"]["cluster"] == watched.plan.cluster
