"""Stand-in of Prometheus Adapter: custom metrics for the HPA controller, by the configuration that a release of its chart made.

    with MetricsAdapter(cluster, namespace, "prometheus-adapter"):   # the release is installed

It reads the release's ConfigMap and its Deployment's arguments, as the adapter's pod would, asks the same questions of
Prometheus and answers the API server as an aggregated API. No container runs, so it takes the place of the Service's pods: the
Service becomes a name of this machine, at a port of its own. Only metrics of pods are served.
Source: kubernetes-sigs/prometheus-adapter, docs/config.md and docs/config-walkthrough.md; k8s.io/metrics, custom_metrics/v1beta1
(read November 2026).
"""

from __future__ import annotations

import base64
import datetime
import json
import re
import ssl
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

from lab.kubernetes import kubeconfig
from lab.kubernetes.cluster import Cluster
from lab.kubernetes.kubeconfig import connection

API = "/apis/custom.metrics.k8s.io/v1beta1"
PODS = re.compile(rf"{API}/namespaces/(?P<namespace>[^/]+)/pods/(?P<name>[^/]+)/(?P<metric>[^/]+)")


@dataclass(frozen=True)
class Rule:
    """One entry of `rules`, in the configuration's words."""

    series_query: str
    matches: str
    as_: str
    labels: Mapping[str, str]  # resource to the label that names it
    metrics_query: str

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Rule:
        resources, name = entry.get("resources", {}), entry.get("name", {})
        labels = {about["resource"]: label for label, about in resources.get("overrides", {}).items()}
        if template := resources.get("template"):
            labels = {each: template.replace("<<.Resource>>", each) for each in ("namespace", "pod")} | labels
        matches = name.get("matches") or "^(.*)$"
        # Without a name of its own a metric has that of its series, or the part that a group takes out of it.
        as_ = name.get("as") or ("$1" if "(" in matches else "$0")
        return cls(entry["seriesQuery"], matches, as_, labels, entry["metricsQuery"])

    def metric_of(self, series: str) -> str:
        """What the metric of a series is called; empty when the rule is not about it."""
        found = re.search(self.matches, series)
        return found.expand(re.sub(r"\$\{?(\d)\}?", r"\\g<\1>", self.as_)) if found else ""

    def query(self, series: str, namespace: str, pods: list[str]) -> str:
        matchers = f'{self.labels["namespace"]}="{namespace}",{self.labels["pod"]}=~"{"|".join(pods)}"'
        filled = self.metrics_query.replace("<<.Series>>", series).replace("<<.LabelMatchers>>", matchers)
        return filled.replace("<<.GroupBy>>", self.labels["pod"])


@dataclass(frozen=True)
class Prometheus:
    url: str
    headers: Mapping[str, str] = field(repr=False)

    def series(self, query: str) -> set[str]:
        """Names of the series that a selector finds."""
        found = self._ask("series", {"match[]": query})
        return {each["__name__"] for each in found}

    def values(self, query: str, label: str) -> dict[str, float]:
        """The value of each series of an instant query, by the value of a label."""
        return {each["metric"][label]: float(each["value"][1]) for each in self._ask("query", {"query": query})["result"]}

    def _ask(self, what: str, parameters: Mapping[str, str]) -> Any:
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        request = urllib.request.Request(url, headers=dict(self.headers))  # noqa: S310 - of a configuration under test
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return json.load(answer)["data"]


class MetricsAdapter:
    def __init__(self, cluster: Cluster, namespace: str, name: str = "prometheus-adapter") -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        adapter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code, body = adapter.answer(self.path)
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*cluster.server_certificate("metrics-adapter"))
        context.load_verify_locations(cluster.directory / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED  # the API server shows who it is, and nobody else may ask
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._rules = [Rule.of(entry) for entry in yaml.safe_load(self._config_map()["config.yaml"])["rules"]]
        self._prometheus = self._prometheus_of(self._arguments())

    def __enter__(self) -> MetricsAdapter:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        port = self._server.server_port
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": self._name, "namespace": self._namespace}}
        spec = {"type": "ExternalName", "externalName": "localhost", "clusterIP": None, "clusterIPs": None, "selector": None}
        self._cluster.api.patch(service, {"spec": spec})
        registered = {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": "v1beta1.custom.metrics.k8s.io"},
        }
        self._cluster.api.patch(registered, {"spec": {"service": {"port": port}}})
        self._cluster.wait_for("the custom metrics API", lambda: self._is_available(registered))
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        parts = urllib.parse.urlsplit(path)
        if parts.path == API:
            return 200, {"kind": "APIResourceList", "groupVersion": API.removeprefix("/apis/"), "resources": [*self._resources()]}
        if named := PODS.fullmatch(urllib.parse.unquote(parts.path)):
            selector = urllib.parse.parse_qs(parts.query).get("labelSelector", [""])[0]
            items = self._values(named["namespace"], named["name"], selector, named["metric"])
            return 200, {"kind": "MetricValueList", "apiVersion": API.removeprefix("/apis/"), "metadata": {}, "items": items}
        return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound"}

    def _resources(self) -> Iterator[dict[str, Any]]:
        for rule in self._rules:
            for series in self._prometheus.series(rule.series_query):
                name = f"pods/{rule.metric_of(series)}"
                yield {"name": name, "singularName": "", "namespaced": True, "kind": "MetricValueList", "verbs": ["get"]}

    def _values(self, namespace: str, name: str, selector: str, metric: str) -> list[dict[str, Any]]:
        pods = [name] if name != "*" else [each["metadata"]["name"] for each in self._pods(namespace, selector)]
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        values: dict[str, float] = {}
        for rule in self._rules if pods else []:
            for series in self._prometheus.series(rule.series_query):
                if rule.metric_of(series) == metric:
                    values |= self._prometheus.values(rule.query(series, namespace, pods), rule.labels["pod"])
        return [
            {
                "describedObject": {"kind": "Pod", "namespace": namespace, "name": pod, "apiVersion": "/v1"},
                "metricName": metric,
                "timestamp": now,
                "value": f"{round(value * 1000)}m",
            }
            for pod, value in values.items()
        ]

    def _pods(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        return self._cluster.api.list("v1", "Pod", namespace, selector)

    def _is_available(self, registered: dict[str, Any]) -> bool:
        live = self._cluster.api.get(self._cluster.api.path_of(registered))
        conditions = live.get("status", {}).get("conditions", [])
        return any(each["type"] == "Available" and each["status"] == "True" for each in conditions)

    def _config_map(self) -> dict[str, str]:
        return self._cluster.api.get(self._cluster.api.path("v1", "ConfigMap", self._name, self._namespace))["data"]

    def _pod(self) -> dict[str, Any]:
        path = self._cluster.api.path("apps/v1", "Deployment", self._name, self._namespace)
        return self._cluster.api.get(path)["spec"]["template"]["spec"]

    def _arguments(self) -> dict[str, list[str]]:
        given: dict[str, list[str]] = {}
        for argument in self._pod()["containers"][0]["args"]:
            flag, _, value = argument.removeprefix("--").partition("=")
            given.setdefault(flag, []).append(value)
        return given

    def _prometheus_of(self, arguments: Mapping[str, list[str]]) -> Prometheus:
        headers = dict(each.split("=", 1) for each in arguments.get("prometheus-header", []))
        for path in arguments.get("prometheus-auth-config", []):
            headers |= connection(kubeconfig.read(self._mounted(path))).headers
        return Prometheus(arguments["prometheus-url"][0].rstrip("/"), headers)

    def _mounted(self, path: str) -> str:
        """The text of a file that the pod has from a Secret."""
        pod, directory, key = self._pod(), *path.rsplit("/", 1)
        (volume,) = (each["name"] for each in pod["containers"][0]["volumeMounts"] if each["mountPath"] == directory)
        (secret,) = (each["secret"]["secretName"] for each in pod["volumes"] if each["name"] == volume)
        data = self._cluster.api.get(self._cluster.api.path("v1", "Secret", secret, self._namespace))["data"]
        return base64.b64decode(data[key]).decode()
