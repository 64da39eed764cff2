"""What the Prometheus Operator makes of its objects: a Prometheus' configuration from PodMonitors and PrometheusRules.

Only what ours use. Pods come as a file of targets with the labels of Kubernetes discovery, since the Prometheus of the tests is
built without it. Source: prometheus-operator, pkg/prometheus/promcfg.go (generatePodMonitorConfig), read 2026-11-22.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Object = Mapping[str, Any]


def scrape_configs(monitor: Object, targets_file: str) -> Iterator[dict[str, Any]]:
    """One for each endpoint of a PodMonitor."""
    name, namespace, spec = monitor["metadata"]["name"], monitor["metadata"]["namespace"], monitor["spec"]
    for index, endpoint in enumerate(spec["podMetricsEndpoints"]):
        places = "|".join(spec["namespaceSelector"]["matchNames"])
        yield {
            "job_name": f"podMonitor/{namespace}/{name}/{index}",
            "honor_labels": endpoint.get("honorLabels", False),
            "scrape_interval": endpoint["interval"],
            "scrape_timeout": endpoint["scrapeTimeout"],
            "file_sd_configs": [{"files": [targets_file], "refresh_interval": "1s"}],
            "relabel_configs": [
                {"action": "keep", "source_labels": ["__meta_kubernetes_namespace"], "regex": places},
                {"action": "drop", "source_labels": ["__meta_kubernetes_pod_phase"], "regex": "(Failed|Succeeded)"},
                {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
                {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
                {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
                {"target_label": "job", "replacement": f"{namespace}/{name}"},
                *map(_snake_case, endpoint.get("relabelings", ())),
            ],
            "metric_relabel_configs": [_snake_case(one) for one in endpoint.get("metricRelabelings", ())],
        }


def rule_groups(rules: Iterable[Object]) -> dict[str, Any]:
    """The content of one rule file."""
    return {"groups": [group for rule in rules for group in rule["spec"]["groups"]]}


def pod_targets(pods: Iterable[Object]) -> list[dict[str, Any]]:
    """Every port of every container, with the labels that relabelings may read."""
    found = []
    for pod in pods:
        metadata, spec, status = pod["metadata"], pod["spec"], pod["status"]
        owner = next((one for one in metadata.get("ownerReferences", ()) if one.get("controller")), {})
        labels = {f"__meta_kubernetes_pod_label_{re.sub(r'[^A-Za-z0-9_]', '_', k)}": v for k, v in metadata["labels"].items()}
        for container in spec["containers"]:
            for port in container.get("ports", ()):
                target = {
                    **labels,
                    "__meta_kubernetes_namespace": metadata["namespace"],
                    "__meta_kubernetes_pod_name": metadata["name"],
                    "__meta_kubernetes_pod_node_name": spec.get("nodeName", ""),
                    "__meta_kubernetes_pod_phase": status.get("phase", ""),
                    "__meta_kubernetes_pod_controller_kind": owner.get("kind", ""),
                    "__meta_kubernetes_pod_container_name": container["name"],
                    "__meta_kubernetes_pod_container_port_name": port.get("name", ""),
                }
                if address := status.get("podIP"):
                    found.append({"targets": [f"{address}:{port['containerPort']}"], "labels": target})
    return found


def _snake_case(relabeling: Mapping[str, Any]) -> dict[str, Any]:
    return {re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", key): value for key, value in relabeling.items()}
