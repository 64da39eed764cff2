"""Which changes need a new object, because the API server takes them for no update or because pods would not see them.

Source: the list in provider/pkg/provider/diff.go of pulumi/pulumi-kubernetes, read November 2026.
"""

from __future__ import annotations

from collections.abc import Iterable

METADATA = ("metadata.name", "metadata.namespace")
CONFIG_MAP = ("data", "binaryData")
SECRET = ("type", "data", "stringData")
SELECTOR = ("spec.selector",)
OF_KINDS = {
    ("apps", "StatefulSet"): (
        *SELECTOR,
        *("spec.podManagementPolicy", "spec.revisionHistoryLimit", "spec.serviceName", "spec.volumeClaimTemplates"),
    ),
    ("apps", "Deployment"): SELECTOR,
    ("batch", "Job"): (*SELECTOR, "spec.completions", "spec.parallelism", "spec.template"),
    ("", "PersistentVolumeClaim"): ("spec",),
    ("", "Pod"): ("spec",),
    ("", "ResourceQuota"): ("spec.scopes",),
    ("", "Service"): ("spec.clusterIP",),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): ("roleRef",),
    ("rbac.authorization.k8s.io", "RoleBinding"): ("roleRef",),
    ("storage.k8s.io", "StorageClass"): ("parameters", "provisioner"),
    ("", "ConfigMap"): CONFIG_MAP,
    ("", "Secret"): SECRET,
}


def replacing(api_version: str, kind: str, changed: Iterable[str], mutable: Iterable[str] = ()) -> set[str]:
    """Those of the `changed` paths that need a new object. `mutable`: kinds whose contents may change after all."""
    group = api_version.rpartition("/")[0]
    parts = METADATA if kind in mutable else (*METADATA, *OF_KINDS.get((group, kind), ()))
    return {path for path in changed if any(_covers(part, path) or _covers(path, part) for part in parts)}


def _covers(part: str, path: str) -> bool:
    return path == part or path.startswith((f"{part}.", f"{part}["))
