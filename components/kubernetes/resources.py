"""The resource types of the gpu-fleet provider for Kubernetes, as Pulumi classes. What they do is in gpu_fleet/provider/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import pulumi


class Cluster(pulumi.CustomResource):
    """Checks the cluster before anything is installed; where something would fail, nothing that depends on it is created.

    `node_terms`: labels of the nodes that the exporter runs on, one of these sets must match; empty: every node.
    `tolerations`, `runtime_class`, `host_paths`: of the exporter's pods; None: it is not this stack's.
    `taint`: of the readiness program. `lease`: whether it has one.
    `remove_crds`: CustomResourceDefinitions removed with this. `kubelet_certificates`: None where Alloy scrapes no kubelet.
    `place`: kubeconfig (a path) and context; None: they are in a secret. `gpus`, `version`: None until the cluster answers
    a preview.
    """

    version: pulumi.Output[str | None]
    nodes: pulumi.Output[int | None]
    gpus: pulumi.Output[int | None]

    def __init__(
        self,
        name: str,
        *,
        namespace: str,
        exporter: Literal["install", "operator", "existing"],
        node_terms: Sequence[Mapping[str, str]],
        tolerations: Sequence[Mapping[str, str]] | None,
        runtime_class: str | None,
        host_paths: Sequence[str],
        exporter_namespaces: Sequence[str],
        monitor_labels: Mapping[str, str] | None,
        kubelet_certificates: str | None,
        network_policies: bool,
        node_exporter: str,
        prometheus_operator: str,
        dra: bool,
        min_driver: str | None,
        taint: str | None,
        lease: bool,
        releases: Sequence[str],
        remove_crds: Sequence[str],
        place: Mapping[str, str] | None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {
            "namespace": namespace,
            "exporter": exporter,
            "nodeTerms": [dict(term) for term in node_terms],
            "tolerations": None if tolerations is None else [dict(one) for one in tolerations],
            "runtimeClass": runtime_class,
            "hostPaths": list(host_paths),
            "exporterNamespaces": list(exporter_namespaces),
            "monitorLabels": None if monitor_labels is None else dict(monitor_labels),
            "kubeletCertificates": kubelet_certificates,
            "networkPolicies": network_policies,
            "nodeExporter": node_exporter,
            "prometheusOperator": prometheus_operator,
            "dra": dra,
            "minDriver": min_driver,
            "taint": taint,
            "lease": lease,
            "releases": list(releases),
            "removeCrds": list(remove_crds),
            "place": None if place is None else dict(place),
            "version": None,
            "nodes": None,
            "gpus": None,
        }
        super().__init__("gpu-fleet:kubernetes:Cluster", name, props, opts)


class Manifest(pulumi.CustomResource):
    """The objects of a Helm release as text: previews show how they change, refresh finds manual changes (`drift`)."""

    drift: pulumi.Output[Sequence[str]]

    def __init__(
        self, name: str, *, release: str, namespace: str, objects: Mapping[str, str], opts: pulumi.ResourceOptions | None = None
    ) -> None:
        props = {"release": release, "namespace": namespace, "objects": dict(objects), "drift": None}
        super().__init__("gpu-fleet:kubernetes:Manifest", name, props, opts)


class NodeMark(pulumi.CustomResource):
    """A condition or a taint that the readiness program sets on nodes: deleted, it takes away those that are left."""

    def __init__(
        self,
        name: str,
        *,
        kind: str,
        mark: str,
        place: Mapping[str, str] | None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {"kind": kind, "mark": mark, "place": None if place is None else dict(place)}
        super().__init__("gpu-fleet:kubernetes:NodeMark", name, props, opts)
