"""A GPU cluster with the same monitoring as hosts, installed by Helm. Not done here: the values of the charts (values.py)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes
from pulumi_kubernetes.apiextensions import CustomResource
from pulumi_kubernetes.helm.v3 import Release as HelmRelease
from pulumi_kubernetes.helm.v3 import RepositoryOptsArgs

from components.kubernetes import readiness, resources
from components.kubernetes.releases import Release
from components.kubernetes.values import SECRET, ClusterPlan, Values, network_policies, node_terms
from gpu_fleet.on_cluster.nodes import CONDITION, TAINT
from gpu_fleet.stackfile.naming import release_mark, type_token

# Agents of nodes need hostPath and host ports, which the stricter levels of pod security refuse.
_POD_SECURITY = {"pod-security.kubernetes.io/enforce": "privileged"}
_READINESS: Mapping[str, type[pulumi.CustomResource]] = {
    "ServiceAccount": kubernetes.core.v1.ServiceAccount,
    "ClusterRole": kubernetes.rbac.v1.ClusterRole,
    "ClusterRoleBinding": kubernetes.rbac.v1.ClusterRoleBinding,
    "Lease": kubernetes.coordination.v1.Lease,
    "Role": kubernetes.rbac.v1.Role,
    "RoleBinding": kubernetes.rbac.v1.RoleBinding,
    "ConfigMap": kubernetes.core.v1.ConfigMap,
    "Deployment": kubernetes.apps.v1.Deployment,
}


@dataclass(frozen=True, kw_only=True)
class GpuClusterArgs:
    """`releases`: in the order in which they need each other. `secrets`: file name to content of one Secret; empty: none.

    `rules`: whole PrometheusRule objects; `monitors`: whole PodMonitor objects. `dashboards`: uid to JSON text, for a Grafana's
    sidecar. `kubernetes`: Pulumi's Kubernetes provider; the component's own is gpu-fleet.
    `place`: kubeconfig (a path) and context of the cluster; None: the kubeconfig is in a secret.
    """

    plan: ClusterPlan
    releases: Sequence[Release]
    kubernetes: kubernetes.Provider
    secrets: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)
    rules: Sequence[Mapping[str, Any]] = ()
    monitors: Sequence[Mapping[str, Any]] = ()
    dashboards: Mapping[str, str] = field(default_factory=dict)
    place: Mapping[str, str] | None = None


class GpuCluster(pulumi.ComponentResource):
    """Namespace, Secret and Helm releases of one cluster, created only after `Cluster` found no error.

    `facts`: version, nodes and gpus of the cluster; None while it does not answer a preview.
    """

    facts: dict[str, pulumi.Output[Any]]

    def __init__(self, name: str, args: GpuClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(type_token("kubernetes", "GpuCluster"), name, None, opts)
        self._args, self._section = args, args.plan.section
        cluster = self._cluster(name)
        self.facts = {"version": cluster.version, "nodes": cluster.nodes, "gpus": cluster.gpus}
        first: list[pulumi.Resource] = [cluster]
        if self._section.create_namespace:
            first.append(self._namespace(name, first))
        if args.secrets:
            first.append(self._secret(name, first))
        if self._section.network_policies:
            first += [self._network_policy(policy, first) for policy in network_policies(args.plan)]
        self._in_use = pulumi.ErrorHook(f"{name}-release-in-use", _name_the_way_on)
        made: dict[str, HelmRelease] = {}
        for release in args.releases:
            made[release.name] = self._release(release, [*first, *(made[other] for other in release.after)])
        for one in (*args.rules, *args.monitors):
            self._object_of_operator(one, [*first, *(made[other] for other in made if other == "kube-prometheus-stack")])
        for uid, model in args.dashboards.items():
            self._dashboard(uid, model, first)
        if args.plan.readiness:
            self._readiness(name, args.plan, first)
        self.register_outputs({})

    def _cluster(self, name: str) -> resources.Cluster:
        section, args = self._section, self._args
        exporter = next((release.values for release in args.releases if release.name in ("dcgm-exporter", "gpu-operator")), {})
        does = args.plan.readiness.kubernetes if args.plan.readiness else ""
        return resources.Cluster(
            f"{name}-cluster",
            namespace=section.namespace,
            exporter="operator" if section.gpu_operator else section.exporter,
            node_terms=node_terms(section),
            tolerations=(exporter.get("daemonsets") or exporter).get("tolerations"),
            runtime_class=exporter.get("runtimeClassName"),
            host_paths=[volume.get("hostPath", "") for volume in exporter.get("extraHostVolumes") or ()],
            exporter_namespaces=section.exporter_namespaces if section.exporter == "existing" else (),
            monitor_labels=section.monitor_labels if section.prometheus_operator == "existing" else None,
            kubelet_certificates=None if args.plan.scrapes_by_operator else section.kubelet_certificates,
            network_policies=section.network_policies,
            node_exporter=section.node_exporter,
            prometheus_operator=section.prometheus_operator,
            dra=section.dra,
            min_driver=section.min_driver,
            taint=TAINT if does == "taint" else None,
            lease=does in ("condition", "taint"),
            releases=[release.name for release in args.releases],
            remove_crds=[crd for release in args.releases for crd in release.crds],
            place=args.place,
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _namespace(self, name: str, after: Sequence[pulumi.Resource]) -> pulumi.Resource:
        return kubernetes.core.v1.Namespace(
            f"{name}-namespace", metadata={"name": self._section.namespace, "labels": _POD_SECURITY}, opts=self._child(after)
        )

    def _secret(self, name: str, after: Sequence[pulumi.Resource]) -> pulumi.Resource:
        return kubernetes.core.v1.Secret(
            f"{name}-secrets",
            metadata={"name": SECRET, "namespace": self._section.namespace},
            string_data=pulumi.Output.secret(dict(self._args.secrets)),
            opts=self._child(after),
        )

    def _network_policy(self, policy: Values, after: Sequence[pulumi.Resource]) -> pulumi.Resource:
        return kubernetes.networking.v1.NetworkPolicy(
            policy["name"],
            metadata={"name": policy["name"], "namespace": self._section.namespace},
            spec=policy["spec"],
            opts=self._child(after),
        )

    def _release(self, release: Release, after: Sequence[pulumi.Resource]) -> HelmRelease:
        source = release.source
        installed = HelmRelease(
            release.name,
            name=release.name,
            namespace=self._section.namespace,
            chart=source.written,
            version=source.version or None,
            repository_opts=RepositoryOptsArgs(repo=source.repository) if source.repository else None,
            values=release.values,
            description="; ".join(filter(None, (release_mark(pulumi.get_stack()), release.description))),
            atomic=True,  # an upgrade that does not become ready is rolled back
            cleanup_on_fail=True,
            timeout=self._section.timeout,
            max_history=5,
            opts=pulumi.ResourceOptions.merge(
                self._child(after), pulumi.ResourceOptions(hooks=pulumi.ResourceHookBinding(on_error=[self._in_use]))
            ),
        )
        # After the release: a preview shows both, and shows again what a failed run did not install.
        resources.Manifest(
            f"{release.name}-objects",
            release=release.name,
            namespace=self._section.namespace,
            objects=release.objects,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[installed]),
        )
        return installed

    def _object_of_operator(self, given: Mapping[str, Any], after: Sequence[pulumi.Resource]) -> None:
        CustomResource(
            given["metadata"]["name"],
            api_version=given["apiVersion"],
            kind=given["kind"],
            metadata=given["metadata"],
            spec=given["spec"],
            opts=self._child(after),
        )

    def _dashboard(self, uid: str, model: str, after: Sequence[pulumi.Resource]) -> None:
        kubernetes.core.v1.ConfigMap(
            f"{uid}-dashboard",
            # Label and annotation are the defaults of the chart grafana: sidecar.dashboards.label and .folderAnnotation.
            metadata={
                "name": f"{uid}-dashboard",
                "namespace": self._section.namespace,
                "labels": {"grafana_dashboard": "1"},
                "annotations": {"grafana_folder": "GPU fleet"},
            },
            data={f"{uid}.json": model},
            opts=self._child(after),
        )

    def _readiness(self, name: str, plan: ClusterPlan, first: Sequence[pulumi.Resource]) -> None:
        """What marks nodes is created after the resource that takes the marks away, and so is deleted before it."""
        assert plan.readiness is not None
        marks = {"dry-run": {}, "condition": {"condition": CONDITION}, "taint": {"condition": CONDITION, "taint": TAINT}}
        after = [*first]
        for kind, mark in marks[plan.readiness.kubernetes].items():
            opts = pulumi.ResourceOptions(parent=self, depends_on=list(first))
            after.append(resources.NodeMark(f"{name}-node-{kind}", kind=kind, mark=mark, place=self._args.place, opts=opts))
        for one in readiness.objects(plan):
            body = {_snake(key): value for key, value in one.items() if key not in ("apiVersion", "kind")}
            opts = self._child(after)
            if one["kind"] == "Lease":  # the pods write it
                opts.ignore_changes = ["spec"]
            if one["kind"] == "Deployment":  # Pulumi waits until the pod is ready
                opts.custom_timeouts = pulumi.CustomTimeouts(
                    create=f"{self._section.timeout}s", update=f"{self._section.timeout}s"
                )
            after.append(_READINESS[one["kind"]](readiness.NAME, **body, opts=opts))

    def _child(self, after: Sequence[pulumi.Resource]) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self, provider=self._args.kubernetes, depends_on=list(after))


def _name_the_way_on(failed: pulumi.ErrorHookArgs) -> bool:
    """Helm's error does not say that a killed run of this stack has installed the release, and plain `pulumi up`, unlike `make
    up`, does not look at what that left. Never asks for another attempt."""
    if any("cannot re-use a name that is still in use" in error for error in failed.errors):
        stack = pulumi.get_stack()
        pulumi.log.error(
            f"the Helm release {failed.name} is in the cluster and not in this stack's state. If a run that was killed installed "
            f"it, `make up STACK={stack}` takes it into the state and completes it; if it is somebody else's, `make up` says so"
        )
    return False


def _snake(key: str) -> str:
    return re.sub("([A-Z])", lambda letter: f"_{letter[1].lower()}", key)
