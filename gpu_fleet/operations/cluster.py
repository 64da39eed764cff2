"""The cluster of a stack, with the login that `make up` has, and the nodes whose samples should arrive."""

from __future__ import annotations

from components.kubernetes.place import kubernetes_place
from gpu_fleet.operations.engine import OperationError, secret
from gpu_fleet.operations.stack import Configuration
from gpu_fleet.provider.kubernetes import ClusterApi, KubeconfigError, Refused, Unreachable
from gpu_fleet.provider.resources.cluster import Node, nodes_of
from gpu_fleet.stackfile.config import StackConfig


def cluster_api(config: StackConfig, stack: str, found: Configuration) -> ClusterApi:
    """Raises OperationError for a secret that cannot be read."""
    place = kubernetes_place(config) or {}
    text = secret(stack, "kubeconfig").rstrip() if "kubeconfig" in found.secrets else None
    return ClusterApi(file=place.get("kubeconfig"), text=text, context=place.get("context"))


def monitored_nodes(config: StackConfig, stack: str, found: Configuration) -> dict[str, Node]:
    """By name, the nodes of the stack's cluster on which pods of DaemonSets for Linux run; none without a cluster. Raises
    OperationError."""
    if config.kubernetes is None:
        return {}
    try:
        nodes = nodes_of(cluster_api(config, stack, found))
    except (KubeconfigError, Unreachable, Refused) as error:
        raise OperationError(f"the nodes of the cluster could not be read: {error}") from None
    return {node.name: node for node in nodes if not node.runs_no_daemons and not node.is_windows}
