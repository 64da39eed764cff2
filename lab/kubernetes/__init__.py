"""A throw-away Kubernetes cluster: the real API server, controllers and scheduler, with nodes that are only said to exist (kwok).

    with Cluster.up() as cluster:
        cluster.add_node("gpu-node-1", gpus=8)
        cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", ...})
        subprocess.run(["helm", "list"], env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)})

Pods are scheduled and become Running, Jobs complete, but no image is pulled and no container runs; stages/ says what happens to a
pod. Everything listens on 127.0.0.1 and ends with the starting process. It needs neither root nor Docker, about 570 MB of memory
and 4 s.
"""

from __future__ import annotations

from lab.kubernetes.api import Api, ApiError
from lab.kubernetes.cluster import Cluster, ClusterError
from lab.kubernetes.kubeconfig import KubeconfigError, connection

__all__ = ["Api", "ApiError", "Cluster", "ClusterError", "KubeconfigError", "connection"]
