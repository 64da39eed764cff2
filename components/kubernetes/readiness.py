"""The objects of the readiness program in a cluster: one pod, its program as a ConfigMap, no more permission than it needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from alerts.readiness import cluster_table
from components.kubernetes.values import SECRET, SECRETS_DIRECTORY, ClusterPlan, Values, access, needs_files
from gpu_fleet.on_cluster import nodes
from gpu_fleet.on_cluster.__main__ import PORT
from gpu_fleet.on_cluster.lease import LEASE
from gpu_fleet.toolchain.versions import image

NAME: Final = "gpu-fleet-ready"
LIBRARY: Final = "/opt/gpu-fleet"
_SOURCES: Final = Path(nodes.__file__).parents[2]
_MODULES: Final = (
    *("on_cluster/__main__", "on_cluster/lease", "on_cluster/marks", "on_cluster/nodes", "on_cluster/verdict"),
    "on_host/metrics",
)
_TABLE: Final = "gpu_fleet/on_cluster/table.json"
_LABELS: Final = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/instance": NAME, "app.kubernetes.io/part-of": "gpu-fleet"}
_NOBODY: Final = 65534
_RBAC: Final = "rbac.authorization.k8s.io"


_RENEWS: Final = {
    **{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]},
    **{"resourceNames": [LEASE], "verbs": ["get", "patch"]},
}


def program_files(plan: ClusterPlan) -> dict[str, str]:
    """What is mounted below LIBRARY, by path."""
    files = {f"gpu_fleet/{module}.py": (_SOURCES / f"gpu_fleet/{module}.py").read_text() for module in _MODULES}
    return {**files, _TABLE: cluster_table(plan.datacenter, plan.cluster, plan.scrape_interval_s)}


def rules(does: str) -> list[Values]:
    """Of the ClusterRole: to read nodes, and to change of them what the stack file asks for."""
    of_nodes = ["list"] if does == "dry-run" else ["list", "get"]
    found: list[Values] = [{"apiGroups": [""], "resources": ["nodes"], "verbs": of_nodes}]
    if does != "dry-run":
        found.append({"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]})
    if does == "taint":
        found.append({"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]})
    return found


def objects(plan: ClusterPlan) -> Iterator[Values]:
    """Whole objects, in the order in which they need each other."""
    assert plan.readiness is not None
    namespace = plan.section.namespace
    here = {"name": NAME, "namespace": namespace, "labels": _LABELS}
    files = program_files(plan)
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": here}
    yield {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": NAME, "labels": _LABELS},
        "rules": rules(plan.readiness.kubernetes),
    }
    yield {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": NAME, "labels": _LABELS},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": NAME},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}],
    }
    if plan.readiness.kubernetes != "dry-run":
        yield {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": here, "spec": {}}
        yield {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": here, "rules": [_RENEWS]}
        yield {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": here,
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}],
        }
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": here, "data": {_key(path): text for path, text in files.items()}}
    yield {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": here,
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
            "template": {
                # A program that runs does not notice that its files have changed.
                "metadata": {"labels": _LABELS, "annotations": {"gpu-fleet/program": _sum(files)}},
                "spec": _pod(plan, files),
            },
        },
    }


def _pod(plan: ClusterPlan, files: dict[str, str]) -> Values:
    assert plan.readiness is not None and plan.metrics is not None, "validated: it asks a store"
    volumes: list[Values] = [
        {"name": "program", "configMap": {"name": NAME, "items": [{"key": _key(path), "path": path} for path in files]}}
    ]
    mounts: list[Values] = [{"name": "program", "mountPath": LIBRARY, "readOnly": True}]
    if needs_files(plan.metrics):
        volumes.append({"name": "secrets", "secret": {"secretName": SECRET}})
        mounts.append({"name": "secrets", "mountPath": SECRETS_DIRECTORY, "readOnly": True})
    # Where every node has a taint, ours too, there is still a place for it.
    tolerations = [
        *(one.model_dump(exclude_none=True) for one in plan.section.tolerations),
        {"key": nodes.TAINT, "operator": "Exists"},
    ]
    probe = {"httpGet": {"path": "/healthz", "port": "metrics"}, "periodSeconds": 30, "timeoutSeconds": 5}
    return {
        "serviceAccountName": NAME,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": tolerations,
        "securityContext": {"runAsNonRoot": True, "runAsUser": _NOBODY, "runAsGroup": _NOBODY, "fsGroup": _NOBODY},
        "containers": [
            {
                "name": "ready",
                "image": plan.readiness.image or image("python").reference,
                "command": ["python3", "-B", "-u", "-m", "gpu_fleet.on_cluster"],
                "env": _environment(plan),
                "ports": [{"name": "metrics", "containerPort": PORT}],
                "livenessProbe": probe,
                "readinessProbe": probe,
                "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }


def _environment(plan: ClusterPlan) -> list[Values]:
    assert plan.readiness is not None and plan.metrics is not None
    fixed = {
        "PYTHONPATH": LIBRARY,
        "GPU_FLEET_READY_DOES": plan.readiness.kubernetes,
        "GPU_FLEET_READY_MOST_DRAINED": f"{plan.readiness.most_drained:g}",
        "GPU_FLEET_METRICS_QUERY_URL": plan.metrics.queries or "",
        "GPU_FLEET_METRICS_TENANT": plan.metrics.tenant or "",
        "GPU_FLEET_METRICS_USERNAME": plan.metrics.username or "",
        **access(plan.metrics, "metrics"),
    }
    if plan.metrics.username:
        fixed["GPU_FLEET_METRICS_PASSWORD_FILE"] = f"{SECRETS_DIRECTORY}/metrics-password"
    of_pod = {"GPU_FLEET_READY_ADDRESS": "status.podIP", "GPU_FLEET_READY_POD": "metadata.name"}
    fields = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in of_pod.items()]
    return [*fields, *({"name": name, "value": value} for name, value in fixed.items())]


def _key(path: str) -> str:
    """Of a ConfigMap: letters, digits, and . - _."""
    return path.replace("/", ".")


def _sum(files: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]
