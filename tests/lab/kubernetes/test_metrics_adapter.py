"""The stand-in of Prometheus Adapter, below the real API aggregation and the real HPA controller."""

from __future__ import annotations

import base64
import json
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.kubernetes import ApiError, Cluster
from lab.kubernetes.chart_packages import package
from lab.kubernetes.metrics_adapter import MetricsAdapter, Rule
from tests.helm import helm

SERIES = "gpu:utilization:ratio"
RULE = {
    "seriesQuery": f'{SERIES}{{cluster="a",pod!=""}}',
    "resources": {"overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}},
    "name": {"matches": f"^{SERIES}$", "as": "gpu_utilization"},
    "metricsQuery": 'avg by (<<.GroupBy>>) (<<.Series>>{cluster="a",<<.LabelMatchers>>})',
}


class Prometheus:
    """Every pod is as busy as `busy` says. `asked`: the queries; `askers`: tenant and login of whoever asked."""

    def __init__(self) -> None:
        self.busy = 0.9
        self.asked: list[str] = []
        self.askers: set[tuple[str | None, str | None]] = set()
        prometheus = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urllib.parse.urlsplit(self.path)
                prometheus.askers.add((self.headers["X-Scope-OrgID"], self.headers["Authorization"]))
                body = json.dumps({"status": "success", "data": prometheus.data(parts)}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def data(self, parts: urllib.parse.SplitResult) -> Any:
        if parts.path.endswith("/series"):
            return [{"__name__": SERIES, "namespace": "ml", "pod": "x"}]
        query = urllib.parse.parse_qs(parts.query)["query"][0]
        self.asked.append(query)
        pods = query.split('pod=~"')[1].split('"')[0].split("|")
        return {"result": [{"metric": {"pod": pod}, "value": [0, str(self.busy)]} for pod in pods]}

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def prometheus() -> Iterator[Prometheus]:
    prometheus = Prometheus()
    yield prometheus
    prometheus.stop()


@pytest.fixture
def adapter(cluster: Cluster, namespace: str, prometheus: Prometheus, tmp_path: Path) -> Iterator[MetricsAdapter]:
    values = {
        "prometheus": {"url": f"http://127.0.0.1:{prometheus.port}/prometheus", "port": 0},
        "rules": {"default": False, "custom": [RULE]},
        "extraArguments": ["--prometheus-header=X-Scope-OrgID=us-west", "--prometheus-auth-config=/etc/login/kubeconfig"],
        "extraVolumes": [{"name": "login", "secret": {"secretName": "login"}}],
        "extraVolumeMounts": [{"name": "login", "mountPath": "/etc/login"}],
    }
    login = {
        "users": [{"name": "adapter", "user": {"username": "reader", "password": "hunter2"}}],
        "clusters": [{"name": "mimir", "cluster": {"server": "http://unused.invalid"}}],
        "contexts": [{"name": "mimir", "context": {"cluster": "mimir", "user": "adapter"}}],
        "current-context": "mimir",
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login", "namespace": namespace}}
    cluster.apply({**secret, "stringData": {"kubeconfig": yaml.safe_dump(login)}})
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    chart = package("prometheus-adapter", tmp_path)
    release = ["prometheus-adapter", "--namespace", namespace]
    helm(cluster, "install", *release, chart, "--values", tmp_path / "values.yaml")
    with MetricsAdapter(cluster, namespace) as adapter:
        yield adapter
    helm(cluster, "uninstall", *release)


def test_an_hpa_scales_a_deployment_by_what_prometheus_says(
    adapter: MetricsAdapter, prometheus: Prometheus, cluster: Cluster, namespace: str
) -> None:
    labels = {"app": "inference"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "registry.example/x:1"}]}}
    target = {"type": "AverageValue", "averageValue": "450m"}
    metric = {"type": "Pods", "pods": {"metric": {"name": "gpu_utilization"}, "target": target}}
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "inference"}
    meta = {"name": "inference", "namespace": namespace}
    cluster.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta,
            "spec": {"selector": {"matchLabels": labels}, "template": pod},
        },
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": meta,
            "spec": {"scaleTargetRef": reference, "minReplicas": 1, "maxReplicas": 3, "metrics": [metric]},
        },
    )

    def replicas() -> int:
        return cluster.api.read("apps/v1", "Deployment", "inference", namespace)["spec"]["replicas"]

    cluster.wait_for("twice as busy as it should be: two", lambda: replicas() >= 2)
    cluster.wait_for("as long as they are as busy: all", lambda: replicas() == 3)
    prometheus.busy = 0.1
    cluster.wait_for("nearly idle: one", lambda: replicas() == 1)
    assert prometheus.askers == {("us-west", f"Basic {base64.b64encode(b'reader:hunter2').decode()}")}
    assert f'{SERIES}{{cluster="a",namespace="{namespace}",pod=~"inference-' in prometheus.asked[0]


def test_the_metrics_are_listed_and_asked_for_as_of_any_api(adapter: MetricsAdapter, cluster: Cluster, namespace: str) -> None:
    api = "/apis/custom.metrics.k8s.io/v1beta1"
    assert [each["name"] for each in cluster.api.get(api)["resources"]] == ["pods/gpu_utilization"]
    (value,) = cluster.api.get(f"{api}/namespaces/{namespace}/pods/a-pod/gpu_utilization")["items"]
    assert value["value"] == "900m" and value["describedObject"]["name"] == "a-pod"
    with pytest.raises(ApiError):
        cluster.api.get(f"{api}/namespaces/{namespace}/services/a/gpu_utilization")


@pytest.mark.parametrize(
    ("name", "series", "metric"),
    [
        ({"matches": "^gpu:(.*):ratio$"}, "gpu:utilization:ratio", "utilization"),
        ({"matches": "^gpu:(.*):ratio$", "as": "gpu_${1}"}, "gpu:utilization:ratio", "gpu_utilization"),
        ({}, "up", "up"),
        ({"matches": "^gpu"}, "up", ""),
    ],
)
def test_a_metric_is_named_after_its_series(name: dict[str, str], series: str, metric: str) -> None:
    assert Rule.of({**RULE, "name": name}).metric_of(series) == metric


def test_a_template_names_the_labels_of_resources() -> None:
    rule = Rule.of({**RULE, "resources": {"template": "kube_<<.Resource>>"}})
    assert rule.query("x", "ml", ["a", "b"]) == 'avg by (kube_pod) (x{cluster="a",kube_namespace="ml",kube_pod=~"a|b"})'
