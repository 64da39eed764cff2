"""A cluster that has kube-prometheus-stack: the objects of the example stack in a real API server, and a real Prometheus that
scrapes simulated GPU nodes through our PodMonitors and evaluates our PrometheusRules."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from alerts.inventory import kubernetes_inventory_group
from alerts.prometheus_rule import prometheus_rule, prometheus_rules
from components.kubernetes import values
from components.kubernetes.values import ClusterPlan, monitors
from gpu_fleet.operations import alert_path, operator_alert
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.stack import Configuration
from gpu_fleet.provider.kubernetes import ClusterApi
from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.counters import counters
from lab.gpu.inject import inject_xid
from lab.kubernetes import Cluster
from lab.kubernetes.gpu_nodes import GpuNodes
from lab.kubernetes.operator import pod_targets, rule_groups, scrape_configs
from tests.alertmanager import has_loaded
from tests.kubernetes.plans import plan
from tests.kubernetes.test_scraping import helm, install, mimir_server
from tests.prometheus_server import PrometheusServer

ROOT = Path(__file__).parents[2]
API = "monitoring.coreos.com/v1"
NODE = "gpu-node-1"


SHORTER = re.compile(r"interval: (10s|30s|1m)")


@dataclass(frozen=True)
class Watched:
    prometheus: PrometheusServer
    nodes: GpuNodes
    plan: ClusterPlan
    mimir: str
    """Mimir's URL: its Alertmanager is the cluster's."""


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
    for kind in ("PodMonitor", "PrometheusRule"):
        cluster.wait_for(kind, lambda kind=kind: cluster.api.serves(API, kind))
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
    rules.write_text(rules_text(stored["PrometheusRule"]))
    scrapes = [one for monitor in stored["PodMonitor"] for one in scrape_configs(monitor, str(targets))]
    for scrape in scrapes:
        scrape |= {"scrape_interval": "1s", "scrape_timeout": "1s"}  # the same, only more often
    config = {"scrape_configs": scrapes, "rule_files": [str(rules)]}
    stopping = threading.Event()

    def operate(prometheus: PrometheusServer) -> None:
        """As the operator does: pods and rules that change reach Prometheus."""
        while not stopping.wait(0.5):
            is_new(targets, json.dumps(pod_targets(cluster.api.list("v1", "Pod"))))  # Prometheus watches the file
            if is_new(rules, rules_text(cluster.api.list(API, "PrometheusRule"))):
                urllib.request.urlopen(f"{prometheus.url}/-/reload", data=b"", timeout=60).close()

    with GpuNodes(cluster, interval_s=0.2) as nodes, mimir_server(directory) as mimir:
        config["alerting"] = {
            "alertmanagers": [{"path_prefix": "/alertmanager", "static_configs": [{"targets": [mimir.removeprefix("http://")]}]}]
        }
        with PrometheusServer(directory, config, "--web.enable-lifecycle") as prometheus:
            operator = threading.Thread(target=operate, args=(prometheus,), daemon=True)
            operator.start()
            yield Watched(prometheus, nodes, wanted, mimir)
            stopping.set()
            operator.join()
    helm(cluster, "uninstall", "dcgm-exporter", "--namespace", theirs)
    for crd in crds:
        cluster.api.delete(crd)
    for name in (theirs, ours):
        cluster.api.delete({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def rules_text(stored: list[dict]) -> str:
    """The same rules, only evaluated more often."""
    return SHORTER.sub("interval: 2s", yaml.safe_dump(rule_groups(stored)))


def is_new(file: Path, text: str) -> bool:
    """Whether the file was another, and is written."""
    if file.read_text() == text:
        return False
    file.with_suffix(".new").write_text(text)
    file.with_suffix(".new").rename(file)
    return True


def test_the_example_needs_no_store(example: StackConfig) -> None:
    assert example.metrics is None and example.rulers is None and not example.warnings


def test_gpus_of_an_exporter_that_the_cluster_has_get_our_labels(watched: Watched) -> None:
    wanted = watched.plan
    ours = f'datacenter="{wanted.datacenter}", cluster="{wanted.cluster}", instance="{NODE}", exporter_mode="dcgm-exporter"'
    recorded = lambda: watched.prometheus.query(f"gpu:utilization:ratio{{{ours}}}")  # noqa: E731
    found = watched.prometheus.wait_for(
        "the vocabulary of 8 GPUs", lambda: len(all_of := recorded()) == 8 and all_of, shown=recorded
    )
    assert not [one for one in found if "pod" in one["metric"]], "pod is the one that holds the GPU, never the exporter's"


def test_every_rule_of_the_prometheusrules_is_evaluated_without_an_error(watched: Watched) -> None:
    def wrong() -> list[tuple[str, str, str | None]]:
        return [(one["name"], one["health"], one.get("lastError")) for one in watched.prometheus.rules() if one["health"] != "ok"]

    watched.prometheus.wait_for("an evaluation of every rule", lambda: not wrong(), shown=wrong)


def test_a_gpu_that_fails_fires_its_alert_in_the_operators_prometheus(watched: Watched) -> None:
    watched.prometheus.wait_for("the vocabulary", lambda: watched.prometheus.query(f'gpu:info{{instance="{NODE}"}}'))
    inject_xid(watched.nodes.state(NODE), code=79, gpu=3)

    def firing() -> list[dict]:
        alerts = watched.prometheus.get("/api/v1/alerts")["alerts"]
        return [one for one in alerts if one["state"] == "firing" and one["labels"].get("xid") == "79"]

    [alert, *_] = watched.prometheus.wait_for("the alert about XID 79", firing)
    assert alert["labels"]["instance"] == NODE and alert["labels"]["cluster"] == watched.plan.cluster


# --- make test-alert --------------------------------------------------------------------------------------------------------


class Proxied(ClusterApi):
    """The API server, with the proxy to services in the cluster: their pods do not run here, the servers do."""

    servers: dict[str, str]

    def text(self, path: str) -> str:
        found = re.fullmatch(r"/api/v1/namespaces/[^/]+/services/([^/]+)/proxy(/.*)", path)
        assert found, path
        # Mimir has the metrics of its Alertmanager without the prefix.
        rest = found[2].replace("/alertmanager/metrics", "/metrics")
        with urllib.request.urlopen(f"{self.servers[found[1]]}{rest}", timeout=60) as answer:
            return answer.read().decode()


@pytest.fixture
def api(cluster: Cluster, watched: Watched) -> Iterator[Proxied]:
    made = Proxied(file=str(cluster.kubeconfig))
    made.servers = {"prometheus-operated:web": watched.prometheus.url, "kps-alertmanager:http-web": watched.mimir}
    alertmanager = {"namespace": "monitoring", "name": "kps-alertmanager", "port": "http-web", "pathPrefix": "/alertmanager"}
    prometheus = {
        "apiVersion": API,
        "kind": "Prometheus",
        "metadata": {"name": "kps", "namespace": watched.plan.section.namespace},
        "spec": {
            "ruleSelector": {"matchLabels": {"release": "kube-prometheus-stack"}},
            "ruleNamespaceSelector": {},
            "alerting": {"alertmanagers": [alertmanager]},
        },
    }
    cluster.apply(prometheus)
    yield made
    cluster.api.delete(prometheus)


@pytest.fixture
def pages(watched: Watched) -> Iterator[list[str]]:
    """What the receiver of the cluster's Alertmanager gets."""
    got: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    route = {"receiver": "oncall", "group_wait": "0s", "group_by": ["alertname"], "routes": []}
    webhook = {"url": f"http://127.0.0.1:{server.server_port}/", "send_resolved": False}
    config = {"route": route, "receivers": [{"name": "oncall", "webhook_configs": [webhook]}]}
    body = yaml.safe_dump({"alertmanager_config": yaml.safe_dump(config)}).encode()
    urllib.request.urlopen(f"{watched.mimir}/api/v1/alerts", data=body, timeout=60).close()
    watched.prometheus.wait_for("the configuration at Alertmanager", lambda: has_loaded(watched.mimir, "oncall"))
    yield got
    server.shutdown()
    server.server_close()


def test_a_test_alert_reaches_the_receiver_of_the_clusters_alertmanager(
    cluster: Cluster,
    watched: Watched,
    example: StackConfig,
    api: Proxied,
    pages: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = replace(example, kubernetes=watched.plan.section)
    monkeypatch.setattr(alert_path, "cluster_api", lambda *_: api)
    watched.prometheus.wait_for("the rule of test alerts", lambda: "GpuFleetTestAlert" in str(watched.prometheus.rules()))
    found = Configuration(file=Path("Pulumi.s.yaml"), values={}, secrets=frozenset())
    _, is_complete = alert_path.in_operator(config, "s", found, "critical")
    output = capsys.readouterr().out
    assert is_complete, output
    assert "Alertmanager has the alert: for oncall (webhook)" in output
    assert "the receivers are notified: each channel accepted a notification" in output
    assert any("GpuFleetTestAlert" in page and "eu-central" in page for page in pages)
    rules = [one["metadata"]["name"] for one in cluster.api.list(API, "PrometheusRule")]
    assert "gpu-fleet-test-alert" in rules and "gpu-fleet-test-alert-now" not in rules, "what it created is gone"


def test_labels_that_no_prometheus_selects_are_reported_with_those_that_it_selects(watched: Watched, api: Proxied) -> None:
    section = watched.plan.section.model_copy(update={"monitor_labels": {"release": "prometheus"}})
    with pytest.raises(OperationError) as refused:
        operator_alert.found_in(api, section)
    text = str(refused.value)
    assert "no Prometheus of the cluster selects our rules" in text and "monitorLabels: {'release': 'prometheus'}" in text
    assert "/kps: ruleSelector {'matchLabels': {'release': 'kube-prometheus-stack'}}" in text
