"""From a pod's GPU to Mimir: the exporters of a cluster's nodes, scraped by the real Alloy with the configuration that its chart
gets, and the recording rules of the real Mimir."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import alerts
from components.backend.backend import BackendArgs, services
from components.kubernetes import values
from components.kubernetes.load_job import load_job
from components.kubernetes.values import ClusterPlan
from gpu_fleet.operations.gpu_load import is_visible, load_cluster, readings, report
from gpu_fleet.operations.mimir import Mimir
from gpu_fleet.provider.kubernetes import ClusterApi
from lab.kubernetes import Cluster
from lab.kubernetes.chart_packages import package
from lab.kubernetes.gpu_nodes import GpuNodes
from lab.kubernetes.metrics_adapter import MetricsAdapter
from lab.ports import free_ports
from lab.standins import programs
from tests.checkout import REPO
from tests.helm import helm
from tests.host.parts.conftest import serve_metrics
from tests.kubernetes.agents import agent
from tests.kubernetes.plans import plan
from tests.waiting import eventually

VOCABULARY = ("gpu-info", "gpu-usage", "gpu-profiling")
TOLERATIONS = [{"operator": "Exists"}]


@contextmanager
def mimir_server(directory: Path) -> Iterator[str]:
    """A running Mimir, with its URL."""
    port, grpc_port = free_ports(2)
    args = BackendArgs(
        directory=str(directory),
        mimir_port=port,
        mimir_grpc_port=grpc_port,
        loki_port=0,
        loki_grpc_port=0,
        receiver_port=0,
        grafana_port=0,
    )
    (service,) = [service for service in services(args) if service.name == "mimir"]

    def run(verb: str) -> None:
        environment = {**os.environ, **programs.environment(), **service.variables(args.directory)}
        command = ["sh", "components/backend/service.sh", verb, "mimir"]
        subprocess.run(command, cwd=REPO, env=environment, check=True, stdin=subprocess.DEVNULL)

    try:
        run("start")
        yield f"http://127.0.0.1:{port}"
    finally:
        run("stop")


@pytest.fixture(scope="module")
def mimir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Mimir with the vocabulary's rules, evaluated every second. Gives its URL."""
    with mimir_server(tmp_path_factory.mktemp("backend")) as server:
        for group in alerts.rule_groups("mimir"):
            if group.name in VOCABULARY:
                body = yaml.safe_dump({**group.as_dict, "interval": "1s"}).encode()
                url = f"{server}/prometheus/config/v1/rules/test"
                urllib.request.urlopen(urllib.request.Request(url, data=body, method="POST"), timeout=60).close()
        yield server


@pytest.fixture(scope="module")
def space(cluster: Cluster) -> Iterator[str]:
    name = cluster.namespace("test-scraping")
    yield name
    # Charts also place what belongs to no namespace, and other tests install the same ones.
    for release in helm(cluster, "list", "--short", "--namespace", name).split():
        helm(cluster, "uninstall", release, "--namespace", name)
    cluster.api.delete({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


@pytest.fixture(scope="module")
def wanted(space: str, mimir: str) -> ClusterPlan:
    found = plan(metrics={"url": f"{mimir}/api/v1/push"}, logs=None, dcgm="profiling", namespace=space)
    workloads = {"dcgm-exporter": [("DaemonSet", "dcgm-exporter")], "kube-state-metrics": [("Deployment", "kube-state-metrics")]}
    return replace(found, workloads=workloads)


@pytest.fixture(scope="module")
def alloy(
    cluster: Cluster, wanted: ClusterPlan, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """Exporters on the GPU nodes, and Alloy on each. Gives what Mimir answers to a query."""
    directory = tmp_path_factory.mktemp("alloy")
    install(cluster, wanted, "dcgm-exporter", values.dcgm_exporter(wanted), directory)
    with GpuNodes(cluster, interval_s=0.2), ExitStack() as agents:
        for node in ("gpu-node-1", "gpu-node-2"):
            agents.enter_context(agent(cluster, wanted, node, directory / node))
        yield lambda query: asked(wanted.metrics.queries, query)


def install(cluster: Cluster, wanted: ClusterPlan, name: str, given: dict[str, Any], directory: Path) -> None:
    (directory / f"{name}.yaml").write_text(yaml.safe_dump(given))
    release = [name, package(name, directory), "--namespace", wanted.section.namespace]
    helm(cluster, "install", *release, "--values", directory / f"{name}.yaml")


def asked(url: str, query: str) -> list[dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}", timeout=60) as answer:
            return json.load(answer)["data"]["result"]
    except OSError:
        return []


def test_a_pods_gpus_carry_its_name_in_the_vocabulary(
    cluster: Cluster, space: str, alloy: Callable[[str], list[dict[str, Any]]]
) -> None:
    container = {"name": "train", "image": "r.example/train:1", "resources": {"limits": {"nvidia.com/gpu": 2}}}
    metadata = {"name": "trainer", "namespace": space, "annotations": {"lab.gpu-fleet.invalid/test": "1004"}}
    spec = {"containers": [container], "tolerations": TOLERATIONS}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    busy = lambda: alloy(f'gpu:tensor_active:ratio{{namespace="{space}", pod="trainer"}} > 0.5')  # noqa: E731
    found = eventually("the pod's two GPUs", lambda: len(both := busy()) == 2 and both, busy)
    node = cluster.api.read("v1", "Pod", "trainer", space)["spec"]["nodeName"]
    for series in found:
        labels = series["metric"]
        assert (labels["datacenter"], labels["cluster"], labels["instance"]) == ("us-west", "training", node)
        assert (labels["exporter_mode"], labels["container"]) == ("dcgm-exporter", "train") and labels["uuid"].startswith("GPU-")


def test_every_node_is_scraped_once_under_its_own_name(alloy: Callable[[str], list[dict[str, Any]]]) -> None:
    def by_node(query: str) -> dict[str, str]:
        return {series["metric"]["instance"]: series["value"][1] for series in alloy(query)}

    for query, value in (("instance:gpus:count", "8"), ('up{job="gpu-exporter"}', "1")):
        of_both = {"gpu-node-1": value, "gpu-node-2": value}
        eventually(query, lambda query=query, of_both=of_both: by_node(query) == of_both, lambda query=query: by_node(query))


def test_the_agent_reports_on_itself_under_its_nodes_name(alloy: Callable[[str], list[dict[str, Any]]]) -> None:
    def own() -> set[str]:
        return {series["metric"]["instance"] for series in alloy('up{job="alloy"}')}

    eventually("Alloy's own metrics", lambda: own() == {"gpu-node-1", "gpu-node-2"}, own)


def test_a_tenants_pods_that_look_like_exporters_are_not_scraped(
    cluster: Cluster, space: str, namespace: str, alloy: Callable[[str], list[dict[str, Any]]]
) -> None:
    """Neither in the tenant's namespace, nor in ours with another controller. The same objects in our namespace are scraped:
    kube-state-metrics is made twice, dcgm-exporter is ours already."""
    tenant = namespace
    exporter = {"name": "exporter", "image": "r.example/dcgm-exporter:1", "ports": [{"name": "metrics", "containerPort": 9400}]}
    state = {"name": "state", "image": "r.example/x:1", "ports": [{"name": "http", "containerPort": 8080}]}
    false_exporter = workload("DaemonSet", "dcgm-exporter", tenant, exporter)
    mimic = workload("DaemonSet", "mimic", space, exporter, app="dcgm-exporter")
    cluster.apply(false_exporter, mimic, *(workload("Deployment", "kube-state-metrics", of, state) for of in (space, tenant)))

    def addresses(of: str, name: str) -> list[str]:
        pods = [pod for pod in cluster.api.list("v1", "Pod", of) if _name_label(pod) == name]
        return [pod["status"]["podIP"] for pod in pods if pod["status"].get("phase") == "Running"]

    eventually("the tenant's exporters", lambda: len(addresses(tenant, "dcgm-exporter")) == 2)
    eventually("the exporters beside ours", lambda: len(addresses(space, "dcgm-exporter")) == 4)
    servers = []
    for of, gpus in ((space, 8), (tenant, 999)):
        (address,) = eventually(f"kube-state-metrics of {of}", lambda of=of: addresses(of, "kube-state-metrics"))
        body = f'kube_node_status_allocatable{{node="gpu-node-1",resource="nvidia_com_gpu"}} {gpus}\n'
        servers.append(serve_metrics(body, (address, 8080)))

    try:
        scraped = 'max_over_time(scrape_samples_scraped{job="kube-state-metrics"}[1m])'
        values = lambda query: [series["value"][1] for series in alloy(query)]  # noqa: E731
        eventually("the metrics of ours", lambda: values("kube_node_status_allocatable"))
        eventually("the size of its scrapes", lambda: "1" in values(scraped), lambda: values(scraped))
        time.sleep(3)  # two more scrapes
        assert values("kube_node_status_allocatable") == ["8"]
        assert set(values('count by (instance) (up{job="gpu-exporter"})')) == {"1"}
        assert set(values(scraped)) == {"1"}
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
        cluster.api.delete(mimic)


def _name_label(pod: dict[str, Any]) -> str:
    return str(pod["metadata"].get("labels", {}).get("app.kubernetes.io/name", ""))


def workload(kind: str, name: str, namespace: str, container: dict[str, Any], app: str = "") -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": app or name, "app.kubernetes.io/instance": "of-the-test"}
    on_gpu_nodes = {"nvidia.com/gpu.present": "true"}
    pod = {
        "metadata": {"labels": labels},
        "spec": {"containers": [container], "tolerations": TOLERATIONS, "nodeSelector": on_gpu_nodes},
    }
    spec = {"selector": {"matchLabels": labels}, "template": pod}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def test_a_load_is_found_again_in_mimir(
    cluster: Cluster, wanted: ClusterPlan, alloy: Callable[[str], list[dict[str, Any]]]
) -> None:
    job = load_job(wanted.section, "gpu-load-1", test=1004, duration_s=5, resource="nvidia.com/gpu")
    load_cluster(ClusterApi(file=str(cluster.kubeconfig)), wanted.section, job)
    labels = 'datacenter="us-west", cluster="training"'
    server = Mimir(wanted.metrics.queries, {})

    def seen() -> Any:
        found = readings(server, 1004, f'{labels}, pod=~"gpu-load-1-.*"', 60)
        return found if is_visible(1004, found) else None

    assert "The load reached Mimir" in report(1004, eventually("the load", seen))


def test_the_examples_autoscaler_scales_a_deployment_whose_gpus_are_busy(
    cluster: Cluster, wanted: ClusterPlan, space: str, alloy: Callable[[str], list[dict[str, Any]]], tmp_path: Path
) -> None:
    """Mimir's vocabulary, the adapter's rules, the real API aggregation and the real autoscaler."""
    install(cluster, wanted, "prometheus-adapter", values.prometheus_adapter(wanted), tmp_path)
    labels, busy = {"app": "inference"}, {"lab.gpu-fleet.invalid/test": "1004"}
    container = {"name": "main", "image": "r.example/x:1", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    pod = {"metadata": {"labels": labels, "annotations": busy}, "spec": {"containers": [container], "tolerations": TOLERATIONS}}
    meta = {"name": "inference", "namespace": space}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": pod}
    autoscaler = yaml.safe_load((REPO / "examples/kubernetes/hpa.yaml").read_text())
    autoscaler["metadata"] = meta
    try:
        with MetricsAdapter(cluster, space):
            cluster.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}, autoscaler)
            eventually(
                "a second pod", lambda: cluster.api.read("apps/v1", "Deployment", "inference", space)["spec"]["replicas"] > 1
            )
    finally:  # with an API that nobody serves, no namespace can be deleted any more
        path = "/apis/apiregistration.k8s.io/v1/apiservices"
        ClusterApi(file=str(cluster.kubeconfig)).delete(f"{path}/v1beta1.custom.metrics.k8s.io")
