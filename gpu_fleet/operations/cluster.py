"""The cluster of a stack, with the login that `make up` has."""

from __future__ import annotations

from components.kubernetes.place import kubernetes_place
from gpu_fleet.operations.engine import secret
from gpu_fleet.operations.stack import Configuration
from gpu_fleet.provider.kubernetes import ClusterApi
from gpu_fleet.stackfile.config import StackConfig


def cluster_api(config: StackConfig, stack: str, found: Configuration) -> ClusterApi:
    """Raises OperationError for a secret that cannot be read."""
    place = kubernetes_place(config) or {}
    text = secret(stack, "kubeconfig").rstrip() if "kubeconfig" in found.secrets else None
    return ClusterApi(file=place.get("kubeconfig"), text=text, context=place.get("context"))
