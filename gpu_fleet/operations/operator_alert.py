"""`make test-alert` in a cluster whose Prometheus Operator evaluates our rules.

A PrometheusRule records the series from which GpuFleetTestAlert fires, as if a host had sent it, and is deleted afterwards. That
tests whether the operator's Prometheus selects our rules, evaluates them, and which receivers its Alertmanager notifies, but not
the agents. Both servers are queried through the API server's proxy, with the login of the kubeconfig.
"""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from alerts.model import NAMESPACE, RuleGroup
from alerts.prometheus_rule import API_VERSION, prometheus_rule
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.mimir import Server
from gpu_fleet.provider.kubernetes import ClusterApi, Manifest, Refused, Unreachable, object_path, selects
from gpu_fleet.stackfile.kubernetes import Kubernetes
from gpu_fleet.stackfile.naming import PROJECT

RULE: Final = "test-alert-now"


@dataclass(frozen=True)
class OperatorServer(Server):
    """The operator's Prometheus and Alertmanager, with the paths that Mimir has for both."""

    api: ClusterApi = field(kw_only=True, repr=False)
    alertmanager: str = field(kw_only=True)
    """Its proxy path, as `url` is that of Prometheus."""

    def text(self, path: str, parameters: Sequence[tuple[str, str]] = ()) -> str:
        place, _, rest = path.removeprefix("/").partition("/")
        base = {"prometheus": self.url, "alertmanager": self.alertmanager}.get(place)
        whole = f"{base}/{rest}" if base else f"{self.alertmanager}{path}"
        try:
            return self.api.text(f"{whole}?{urllib.parse.urlencode(parameters)}" if parameters else whole)
        except Refused as error:
            raise OperationError(f"{whole}: {error}") from None
        except Unreachable as error:
            raise OperationError(str(error)) from None


def found_in(api: ClusterApi, section: Kubernetes) -> OperatorServer:
    """The Prometheus that selects our rules, with its Alertmanager. Raises OperationError where there is none."""
    everywhere = list(api.list(object_path("prometheuses", False, API_VERSION, "")))
    if not everywhere:
        raise OperationError(
            "the cluster has no Prometheus object, so nothing evaluates our rules: install kube-prometheus-stack"
        )
    namespace = api.get(object_path("namespaces", False, "v1", "", section.namespace))
    chosen = [one for one in everywhere if _selects(one, section, namespace)]
    if not chosen:
        raise OperationError(_not_selected(everywhere, section, namespace))
    metadata, spec = chosen[0]["metadata"], chosen[0]["spec"]
    alertmanagers = (spec.get("alerting") or {}).get("alertmanagers") or []
    if not alertmanagers:
        raise OperationError(
            f"the Prometheus {metadata['namespace']}/{metadata['name']} has no Alertmanager (spec.alerting), so nobody is "
            "notified of any alert. Set alertmanager.enabled in the values of kube-prometheus-stack"
        )
    first = alertmanagers[0]
    scheme = "https" if (spec.get("web") or {}).get("tlsConfig") else ""
    prometheus = _proxy(
        metadata["namespace"], "prometheus-operated", spec.get("portName", "web"), spec.get("routePrefix"), scheme
    )
    place = first.get("namespace", metadata["namespace"])
    alertmanager = _proxy(place, first["name"], first["port"], first.get("pathPrefix"), first.get("scheme", ""))
    return OperatorServer(prometheus, {}, name="Prometheus", api=api, alertmanager=alertmanager)


def start(api: ClusterApi, section: Kubernetes, metric: str, labels: Mapping[str, str]) -> int:
    """Returns the time of the test, which the recorded series has as its value."""
    end(api, section)  # left by a run that was killed
    started = int(time.time())
    series = {name: value for name, value in labels.items() if name != "alertname"}
    group = RuleGroup(name=RULE, interval="10s", rules=({"record": metric, "expr": f"vector({started})", "labels": series},))
    api.create(_path(section), prometheus_rule(RULE, [group], namespace=section.namespace, labels=section.monitor_labels))
    return started


def end(api: ClusterApi, section: Kubernetes) -> None:
    api.delete(f"{_path(section)}/{NAMESPACE}-{RULE}")


def _path(section: Kubernetes) -> str:
    return object_path("prometheusrules", True, API_VERSION, section.namespace)


def _proxy(namespace: str, service: str, port: object, prefix: str | None, scheme: str) -> str:
    target = f"{'https:' if scheme == 'https' else ''}{service}:{port}"
    return f"/api/v1/namespaces/{namespace}/services/{target}/proxy{(prefix or '').rstrip('/')}"


# --- does a Prometheus select our rules? --------------------------------------------------------------------------------------


def _selects(prometheus: Manifest, section: Kubernetes, namespace: Manifest) -> bool:
    """As the operator does it: no selector of rules selects none, no selector of namespaces the Prometheus' own."""
    spec = prometheus["spec"]
    rules, namespaces = spec.get("ruleSelector"), spec.get("ruleNamespaceSelector")
    if rules is None or not selects(rules, section.monitor_labels):
        return False
    if namespaces is None:
        return bool(prometheus["metadata"]["namespace"] == section.namespace)
    return selects(namespaces, namespace["metadata"].get("labels") or {})


def _not_selected(everywhere: Sequence[Manifest], section: Kubernetes, namespace: Manifest) -> str:
    labels = namespace["metadata"].get("labels") or {}
    return "\n".join(
        [
            "no Prometheus of the cluster selects our rules, so nothing evaluates them:",
            f"  {PROJECT}:kubernetes.monitorLabels: {section.monitor_labels}",
            f"  labels of the namespace {section.namespace}: {labels}",
            *_described(everywhere),
            "Write the labels of its ruleSelector as monitorLabels and run `make up`; its ruleNamespaceSelector must match the",
            "labels of the namespace.",
        ]
    )


def _described(everywhere: Sequence[Manifest]) -> Iterator[str]:
    for one in everywhere:
        metadata, spec = one["metadata"], one["spec"]
        selectors = (f"{key} {spec.get(key, 'absent')}" for key in ("ruleSelector", "ruleNamespaceSelector"))
        yield f"  {metadata['namespace']}/{metadata['name']}: {', '.join(selectors)}"
