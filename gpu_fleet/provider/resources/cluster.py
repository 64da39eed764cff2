"""gpu-fleet:kubernetes:Cluster: preflight check of a Kubernetes cluster, which reports what would fail before anything is
installed.

It creates no object. Everything installed on the cluster depends on it, so an error here prevents a half installation. When
nothing of its inputs changes, what it finds is a warning: the same stack may have hosts and rules to which the cluster does
not matter. In a preview an API server that does not answer is a warning too; other providers decide what can be previewed
without it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gpu_fleet.provider.helm import helm_releases
from gpu_fleet.provider.kubernetes import ClusterApi, KubeconfigError, Manifest, Refused, Unreachable, selects
from gpu_fleet.provider.resources.resource import Call, Change, Checked, Current, Inputs, Outputs, ResourceError, changes
from gpu_fleet.provider.schema import errors_of_inputs

# The oldest release that all pinned charts support (kube-prometheus-stack 88: 1.25).
OLDEST: Final = (1, 25)
_GPU_RESOURCE: Final = re.compile(r"nvidia\.com/(gpu(\.shared)?|mig-.+)")
_EXPORTERS: Final = {
    "app.kubernetes.io/name=dcgm-exporter": "dcgm-exporter's chart",
    "app.kubernetes.io/name=gke-managed-dcgm-exporter": "Google (managed by GKE)",
    "app=nvidia-dcgm-exporter": "the GPU Operator",
}
_EXPORTER_IMAGE: Final = re.compile(r"(^|/)dcgm-exporter[:@]")  # of DaemonSets that have none of these labels
_NODE_EXPORTER: Final = "app.kubernetes.io/name in (prometheus-node-exporter,node-exporter)"
_MONITORS: Final = "monitoring.coreos.com/v1"
_CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_DEFAULT_TOLERATIONS: Final = ({"key": "nvidia.com/gpu", "operator": "Exists"},)  # of the stack file
# GKE's guide "Run GPUs in Container-Optimized OS"; NVIDIA/dcgm-exporter issue 484. Read 2026-11-25.
_COS_DRIVER: Final = "/home/kubernetes/bin/nvidia"
_SHOWN: Final = 5  # of a list of names in a message
_LIMIT_S: Final = 300  # the client's own limits hold for single requests, and not for a credential plugin

# What an installation creates: group, resource, whether it is namespaced.
_MADE: Final = (
    ("", "namespaces", False),
    ("", "secrets", True),
    ("", "configmaps", True),
    ("", "serviceaccounts", True),
    ("", "services", True),
    ("apps", "daemonsets", True),
    ("apps", "deployments", True),
    ("rbac.authorization.k8s.io", "clusterroles", False),
    ("rbac.authorization.k8s.io", "clusterrolebindings", False),
    ("networking.k8s.io", "networkpolicies", True),
    ("rbac.authorization.k8s.io", "roles", True),
    ("rbac.authorization.k8s.io", "rolebindings", True),
    ("coordination.k8s.io", "leases", True),
)


@dataclass(frozen=True, kw_only=True)
class Node:
    name: str
    gpus: int  # NVIDIA GPUs and MIG instances that it advertises
    labels: Mapping[str, str]
    taints: Sequence[Mapping[str, str]] = ()
    is_windows: bool = False

    @property
    def runs_no_daemons(self) -> bool:
        """Whether pods of DaemonSets cannot run on it: Fargate's nodes and virtual ones (AKS, ACI) are no machines."""
        return self.labels.get("eks.amazonaws.com/compute-type") == "fargate" or self.labels.get("type") == "virtual-kubelet"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the check found. `exporters`: GPU exporter pods of other installations, "namespace/pod on node" by who runs them."""

    version: tuple[int, int]
    nodes: Sequence[Node]
    forbidden: Sequence[str]  # "create daemonsets.apps"
    has_monitors: bool
    exporters: Mapping[str, Sequence[str]]
    node_exporters: Sequence[str]  # of other installations
    interrupted: Mapping[str, str]  # release -> what Helm was doing
    taken: Mapping[str, str] = field(
        default_factory=dict
    )  # name of a release that is to be installed -> description of what has it
    kubelets_self_signed: bool = False  # False also where this login may not see it
    unlabelled_exporters: Sequence[
        str
    ] = ()  # DaemonSets with dcgm-exporter's image that Alloy finds by no label, "namespace/name"
    strict: Sequence[
        str
    ] = ()  # DaemonSets of GPU nodes, of other installations, that do not tolerate our taint, "namespace/name"
    prometheuses: Sequence[Manifest] = ()  # objects of an existing operator, where our monitors need one that selects them
    runtime_class: str = (
        ""  # by which NVIDIA's device plugin runs; empty: none, so the default runtime gives containers the driver
    )

    @property
    def gpu_nodes(self) -> list[Node]:
        return [node for node in self.nodes if node.gpus]


class Cluster:
    type_name = "gpu-fleet:kubernetes:Cluster"
    replaces_by_deleting_first = False

    def __init__(self, api: ClusterApi | None):
        """`api` is None when the stack no longer has a cluster."""
        self._api = api

    def check(self, inputs: Inputs) -> Checked:
        return Checked(errors=tuple(errors_of_inputs(self.type_name, inputs)))

    async def diff(self, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> list[Change]:
        found = list(changes(old, new))
        if self._api is not None and not found:
            try:
                await self._look(new, call, is_preview=True)
            except ResourceError as error:
                call.warning(f"{error}\nNothing of the cluster changes in this run, so it goes on")
        return found

    async def create(self, inputs: Inputs, call: Call) -> tuple[str, Outputs]:
        return "cluster", await self._look(
            inputs, call, is_preview=call.is_preview, is_new=True, added=inputs.get("releases") or ()
        )

    async def read(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> Current:
        return Current(id_)

    async def update(self, id_: str, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> Outputs:
        before = old.get("releases") or () if old["namespace"] == new["namespace"] else ()
        added = [release for release in new.get("releases") or () if release not in before]
        return await self._look(new, call, is_preview=call.is_preview, added=added)

    async def delete(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> None:
        """Everything else has been deleted by now. Helm never deletes the CRDs of a chart; if the stack file says so, this
        does."""
        names, api = inputs.get("removeCrds") or (), self._api or ClusterApi.at(inputs.get("place"))
        if not names:
            return
        if api is None:
            call.warning(f"these stay, since the stack file no longer names the cluster: kubectl delete crd {' '.join(names)}")
            return
        for number, name in enumerate(names):
            what = f"deleting the CustomResourceDefinition {name}, after {number} of {len(names)}"
            call.sending(what, "the next run deletes the rest")
            try:
                await asyncio.to_thread(api.delete, f"{_CRDS}/{name}")
            except (KubeconfigError, Unreachable, Refused) as error:
                raise ResourceError(f"the CustomResourceDefinition {name} was not deleted: {error}") from None

    def _of(self) -> ClusterApi:
        if self._api is None:
            raise ResourceError("the provider's configuration names no Kubernetes cluster")
        return self._api

    async def _look(
        self, inputs: Inputs, call: Call, *, is_preview: bool, is_new: bool = False, added: Sequence[str] = ()
    ) -> Outputs:
        """`added`: releases that this run is going to install."""
        if not is_preview:
            call.progress("checking the cluster")
        try:
            async with asyncio.timeout(_LIMIT_S):
                seen = await asyncio.to_thread(look, self._of(), inputs, added)
        except TimeoutError:
            raise ResourceError(
                f"the cluster was not checked within {_LIMIT_S} s: the API server answers slowly, or the credential plugin that "
                "the kubeconfig names (`exec`) waits for somebody. Nothing was changed"
            ) from None
        except Unreachable as error:
            if is_preview:
                call.warning(f"{error}; the cluster could not be checked, and `up` would stop here")
                return {}
            raise ResourceError(f"{error}. Nothing was changed. Is the VPN up, and is it the right context?") from None
        except KubeconfigError as error:
            raise ResourceError(f"{error}. gpu-fleet:kubernetes names kubeconfig and context; nothing was changed") from None
        except Refused as error:
            raise ResourceError(f"the API server refuses this login: {error}. Nothing was changed") from None
        found = list(problems(seen, inputs, is_new=is_new))
        if found:
            count = "1 thing" if len(found) == 1 else f"{len(found)} things"
            numbered = "\n".join(f"{number}. {text}" for number, text in enumerate(found, 1))
            raise ResourceError(f"{count} would fail on this cluster; nothing was changed on it.\n{numbered}")
        for note in notes(seen, inputs):
            call.warning(note)
        return {
            "version": ".".join(map(str, seen.version)),
            "nodes": len(seen.nodes),
            "gpus": sum(node.gpus for node in seen.nodes),
        }


def look(api: ClusterApi, inputs: Inputs, added: Sequence[str] = ()) -> Seen:
    """Reads what `problems` needs; changes nothing. `added`: releases to install. Raises the exceptions of ClusterApi."""
    namespace = inputs["namespace"]
    version = api.get("/version")
    major, minor = (re.match(r"\d+", version[part]) for part in ("major", "minor"))
    exists = api.find(f"/api/v1/namespaces/{namespace}") is not None
    nodes = nodes_of(api)
    has_lease = bool(inputs.get("lease"))
    wanted = {
        **{"namespaces": not exists, "networkpolicies": inputs.get("networkPolicies", False)},
        **dict.fromkeys(("roles", "rolebindings", "leases"), has_lease),
    }
    made = [entry for entry in _MADE if wanted.get(entry[1], True)]
    try:
        daemons = list(api.list("/apis/apps/v1/daemonsets"))
    except Refused:  # a login of one namespace
        daemons = []
    return Seen(
        version=(int(major[0]) if major else 0, int(minor[0]) if minor else 0),
        nodes=nodes,
        forbidden=[
            f"create {resource}{f'.{group}' if group else ''}"
            for group, resource, namespaced in made
            if not api.may("create", group, resource, namespace if namespaced else "")
        ],
        has_monitors="ServiceMonitor" in api.resources(_MONITORS),
        exporters={who: _pods_of_others(api, selector, namespace) for selector, who in _EXPORTERS.items()},
        unlabelled_exporters=[_name_of(one) for one in daemons if _is_unlabelled_exporter(one, namespace)],
        strict=[_name_of(one) for one in daemons if _needs_toleration(one, namespace, inputs.get("taint"))],
        prometheuses=_prometheuses(api) if inputs.get("monitorLabels") is not None else [],
        runtime_class=next(filter(None, map(_runtime_class_of_plugin, daemons)), ""),
        node_exporters=_pods_of_others(api, _NODE_EXPORTER, namespace),
        interrupted=_interrupted(api, namespace, inputs.get("releases") or ()) if exists else {},
        taken=_taken(api, namespace, added) if exists else {},
        kubelets_self_signed=_kubelets_sign_themselves(api, nodes),
    )


def _prometheuses(api: ClusterApi) -> list[Manifest]:
    try:
        return list(api.list(f"/apis/{_MONITORS}/prometheuses"))
    except Refused:  # no permission, or no such kind: `problems` says it
        return []


def _kubelets_sign_themselves(api: ClusterApi, nodes: Sequence[Node]) -> bool:
    """What the configuration of one kubelet says; all of a cluster are usually set up alike."""
    if not nodes:
        return False
    try:
        found = api.get(f"/api/v1/nodes/{nodes[0].name}/proxy/configz")
    except (
        Refused,
        Unreachable,
        ValueError,
    ):  # no permission for nodes/proxy, or a kubelet that is down: the scrape will show it
        return False
    config = (found or {}).get("kubeletconfig") or {}
    own = config.get("tlsCertFile") or "/kubelet.crt"  # what a kubelet calls the one that it signed (kubernetes, cmd/kubelet)
    return bool(config) and not config.get("serverTLSBootstrap") and own.endswith("/kubelet.crt")


def nodes_of(api: ClusterApi) -> list[Node]:
    """Raises the exceptions of ClusterApi."""
    return [_node(node) for node in api.list("/api/v1/nodes")]


def _node(manifest: Manifest) -> Node:
    offered = manifest.get("status", {}).get("capacity", {})
    gpus = sum(int(count) for name, count in offered.items() if _GPU_RESOURCE.fullmatch(name) and str(count).isdigit())
    labels = manifest["metadata"].get("labels", {})
    return Node(
        name=manifest["metadata"]["name"],
        gpus=gpus,
        labels=labels,
        taints=manifest.get("spec", {}).get("taints") or (),
        is_windows=labels.get("kubernetes.io/os") == "windows",
    )


def _pod_of(daemon: Manifest) -> tuple[Mapping[str, str], Mapping[str, Any]]:
    """Labels and spec of a DaemonSet's pods."""
    template = daemon.get("spec", {}).get("template", {})
    return template.get("metadata", {}).get("labels") or {}, template.get("spec") or {}


def _name_of(manifest: Manifest) -> str:
    return f"{manifest['metadata']['namespace']}/{manifest['metadata']['name']}"


def _is_unlabelled_exporter(daemon: Manifest, ours: str) -> bool:
    return _is_exporter(daemon) and daemon["metadata"]["namespace"] != ours and not _is_labelled_exporter(daemon)


def _is_exporter(daemon: Manifest) -> bool:
    _, spec = _pod_of(daemon)
    return any(_EXPORTER_IMAGE.search(container.get("image", "")) for container in spec.get("containers") or ())


def _is_labelled_exporter(daemon: Manifest) -> bool:
    labels, _ = _pod_of(daemon)
    return any(labels.get(key) == value for key, value in (selector.split("=") for selector in _EXPORTERS))


def _is_plugin(daemon: Manifest) -> bool:
    """NVIDIA's device plugin: its chart, its static manifest or the GPU Operator installed it."""
    labels, _ = _pod_of(daemon)
    values = {labels.get("app.kubernetes.io/name"), labels.get("name"), labels.get("app")}
    return bool(values & {"nvidia-device-plugin", "nvidia-device-plugin-ds", "nvidia-device-plugin-daemonset"})


def _runtime_class_of_plugin(daemon: Manifest) -> str:
    _, spec = _pod_of(daemon)
    return str(spec.get("runtimeClassName") or "") if _is_plugin(daemon) else ""


def _needs_toleration(daemon: Manifest, ours: str, taint: str | None) -> bool:
    if not taint or daemon["metadata"]["namespace"] == ours:
        return False
    _, spec = _pod_of(daemon)
    is_of_gpus = _is_exporter(daemon) or _is_labelled_exporter(daemon) or _is_plugin(daemon)
    return is_of_gpus and not _is_tolerated({"key": taint, "effect": "NoSchedule"}, spec.get("tolerations") or ())


def _pods_of_others(api: ClusterApi, selector: str, ours: str) -> list[str]:
    found = []
    for pod in api.list("/api/v1/pods", labelSelector=selector):
        metadata = pod["metadata"]
        if metadata["namespace"] != ours:
            found.append(f"{metadata['namespace']}/{metadata['name']} on {pod.get('spec', {}).get('nodeName', 'no node')}")
    return found


def _interrupted(api: ClusterApi, namespace: str, releases: Sequence[str]) -> dict[str, str]:
    """Releases that a killed run left unfinished: Helm refuses to change them."""
    found: dict[str, str] = {}
    for secret in api.list(f"/api/v1/namespaces/{namespace}/secrets", only_metadata=True, labelSelector="owner=helm"):
        labels = secret["metadata"]["labels"]
        if labels.get("name") in releases and labels.get("status", "").startswith("pending-"):
            found[labels["name"]] = f"{labels['status']} (revision {labels.get('version', '?')})"
    return found


def _taken(api: ClusterApi, namespace: str, added: Sequence[str]) -> dict[str, str]:
    """Helm installs no release under a name that is in use, and the error comes when others are installed."""
    found = helm_releases(api, namespace, added)
    return {name: one.description for name, one in found.items() if not one.status.startswith("pending-")}


def problems(seen: Seen, inputs: Inputs, *, is_new: bool = True) -> Iterator[str]:
    """What would fail, each with its fix. `inputs`: as in the schema. `is_new`: nothing of this stack is installed yet."""
    namespace, exporter = inputs["namespace"], inputs["exporter"]
    if seen.version < OLDEST:
        yield (
            f"Kubernetes {'.'.join(map(str, seen.version))} is too old: the charts need {'.'.join(map(str, OLDEST))} or newer. "
            "Upgrade the cluster, or pin older charts in kubernetes.charts"
        )
    if seen.forbidden:
        yield (
            f"this login lacks permission to {', '.join(seen.forbidden)} (namespace {namespace}): "
            "use a role that has it, or another context"
        )
    if inputs["prometheusOperator"] == "existing" and not seen.has_monitors:
        yield (
            f"prometheusOperator is existing, and the cluster does not know ServiceMonitors ({_MONITORS}): "
            "write `prometheusOperator: install`, or install the operator first"
        )
    yield from _gpus(seen, inputs, is_new)
    yield from _drivers(seen, inputs.get("minDriver") or "")
    yield from _other_exporters(seen, exporter, inputs.get("exporterNamespaces") or ())
    if inputs.get("kubeletCertificates") == "cluster" and seen.kubelets_self_signed:
        yield (
            "the kubelets of this cluster sign their own certificates (serverTLSBootstrap is not set), and Alloy would refuse "
            "them: set serverTLSBootstrap in the kubelets' configuration and approve their CSRs, or write "
            "`kubeletCertificates: self-signed` (the kubelet of an agent's own node is then trusted unverified)"
        )
    if inputs.get("nodeExporter") == "install" and seen.node_exporters:
        yield (
            f"another node_exporter already runs ({_some(seen.node_exporters)}), and two cannot share a port: "
            "write `nodeExporter: existing`"
        )
    for release, state in seen.interrupted.items():
        yield (
            f"the Helm release {release} is {state}: a run was killed, and Helm refuses to continue. If none is running now: "
            f"{_way_on(release, state, namespace)}"
        )
    for release, description in seen.taken.items():
        yield (
            f"the Helm release {release} exists in the namespace {namespace}, and this stack did not create it "
            f"({description or 'it has no description'}): install into another namespace (kubernetes.namespace), or, if nothing "
            f"needs it, helm uninstall {release} --namespace {namespace}"
        )


def _way_on(release: str, state: str, namespace: str) -> str:
    if state.startswith("pending-install"):
        return f"`make up`, which completes what its state has as begun (else helm uninstall {release} --namespace {namespace})"
    return f"helm rollback {release} --namespace {namespace}, then `up` again"


def _gpus(seen: Seen, inputs: Inputs, is_new: bool) -> Iterator[str]:
    if not seen.gpu_nodes:
        # Later an autoscaler may have removed them all. And the operator installs the device plugin that advertises GPUs.
        if is_new and inputs["exporter"] != "operator" and not inputs.get("dra"):
            yield (
                f"no node advertises a GPU ({len(seen.nodes)} nodes, none with nvidia.com/gpu): does NVIDIA's device plugin run? "
                "With `gpuOperator: true` this stack installs it; or is this the wrong context?"
            )
        return
    yield from (text for is_error, text in _not_covered(seen, inputs) if is_error)
    terms = inputs.get("nodeTerms") or []
    left_out = [node.name for node in seen.gpu_nodes if not _matches(node, terms)]
    if inputs["exporter"] == "install" and terms and left_out:
        yield (
            f"dcgm-exporter would not run on {_some(left_out)}: they have GPUs and lack the labels of its node selector "
            f"({' or '.join(_described(term) for term in terms)}). "
            "Label them (kubectl label node NAME nvidia.com/gpu.present=true), or set kubernetes.nodeSelector; {} is every node"
        )


def _not_covered(seen: Seen, inputs: Inputs) -> Iterator[tuple[bool, str]]:
    """GPU nodes that the exporter of this stack cannot run on or finds no driver on, each kind with its fix, and whether that is
    an error. A taint of some nodes alone may be there for an hour, so it stops no run."""
    if inputs["exporter"] == "existing":
        return
    nodes = [node for node in seen.gpu_nodes if not node.runs_no_daemons and not node.is_windows]
    values = "kubernetes.charts.dcgmExporter.values"
    if windows := [node.name for node in seen.gpu_nodes if node.is_windows]:
        yield False, f"GPUs of Windows nodes are not monitored: dcgm-exporter needs Linux ({_some(windows)})"
    tainted: dict[tuple[str, str, str], list[str]] = {}
    for node in nodes:
        for taint in node.taints:
            if not _is_tolerated(taint, inputs.get("tolerations", _DEFAULT_TOLERATIONS)):
                found = taint["key"], taint.get("value", ""), taint.get("effect", "")
                tainted.setdefault(found, []).append(node.name)
    for (key, value, effect), names in tainted.items():
        wanted = f"{{key: {key}, operator: Equal, value: {value}, effect: {effect}}}" if value else f"{{key: {key}}}"
        yield (
            len(names) == len(nodes),
            f"dcgm-exporter would not run on {_some(names)}: they have GPUs and the taint {key}{value and '='}{value}:{effect}. "
            f"If it stays there, add {wanted} to kubernetes.tolerations, which replaces the default {{key: nvidia.com/gpu}}",
        )
    if inputs["exporter"] != "install":
        return
    cos = [node.name for node in nodes if node.labels.get("cloud.google.com/gke-os-distribution") == "cos"]
    if cos and not any(path.startswith(_COS_DRIVER) for path in inputs.get("hostPaths") or ()):
        yield (
            True,
            f"dcgm-exporter would find no driver on {_some(cos)}: Container-Optimized OS has it in {_COS_DRIVER}. Write "
            "`exporter: existing` to use the exporter that GKE manages, or mount the directory: "
            f"{values}: {{securityContext: {{privileged: true}}, "
            f"extraHostVolumes: [{{name: nvidia-install-dir-host, hostPath: {_COS_DRIVER}}}], "
            "extraVolumeMounts: [{name: nvidia-install-dir-host, mountPath: /usr/local/nvidia, readOnly: true}], "
            "extraEnv: [{name: LD_LIBRARY_PATH, value: /usr/local/nvidia/lib64}]}",
        )
    if seen.runtime_class and inputs.get("runtimeClass") != seen.runtime_class:
        yield (
            True,
            f"NVIDIA's device plugin runs by the RuntimeClass {seen.runtime_class}, so the default runtime gives a container no "
            f"driver, and dcgm-exporter would find none: write {values}: {{runtimeClassName: {seen.runtime_class}}}",
        )


def notes(seen: Seen, inputs: Inputs) -> Iterator[str]:
    """What a run that goes on should say: machines that are not monitored."""
    yield from (text for is_error, text in _not_covered(seen, inputs) if not is_error)
    yield from _not_selected(seen, inputs.get("monitorLabels") or {})
    if virtual := [node.name for node in seen.nodes if node.runs_no_daemons]:
        yield f"not monitored, since no DaemonSet runs on Fargate and virtual nodes: {_some(virtual)}"
    if seen.strict:
        yield (
            f"{_some(seen.strict)} would not start again on a node with the taint {inputs['taint']}, and without it the node "
            f"stays unknown, and tainted: add {{key: {inputs['taint']}, operator: Exists}} to the tolerations there"
        )
    if windows := [node.name for node in seen.nodes if node.is_windows and not node.gpus]:
        yield f"not monitored, since Alloy and node_exporter are installed on Linux nodes: {_some(windows)}"


def _not_selected(seen: Seen, labels: Mapping[str, str]) -> Iterator[str]:
    """Nothing fails, and nothing is ever scraped or evaluated. Namespaces are not compared: `make test-alert` does."""

    def takes(one: Manifest, key: str) -> bool:
        selector = one.get("spec", {}).get(key)
        return selector is not None and selects(selector, labels)

    keys = ("ruleSelector", "podMonitorSelector")
    if seen.prometheuses and not any(all(takes(one, key) for key in keys) for one in seen.prometheuses):
        wanted = [f"{_name_of(one)} {key} {one.get('spec', {}).get(key)}" for one in seen.prometheuses for key in keys]
        yield (
            f"no Prometheus of the cluster would read our rules and monitors: kubernetes.monitorLabels is {dict(labels)}, and "
            f"these select others: {_some(wanted)}. Write the labels of one as kubernetes.monitorLabels"
        )


def _is_tolerated(taint: Mapping[str, str], tolerations: Sequence[Mapping[str, str]]) -> bool:
    """As the DaemonSet controller decides: it adds tolerations of a node's own conditions (node.kubernetes.io/…)."""
    if taint.get("effect") == "PreferNoSchedule" or taint["key"].startswith("node.kubernetes.io/"):
        return True
    return any(
        toleration.get("effect") in (None, taint.get("effect"))
        and toleration.get("key") in (None, taint["key"])
        and (toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", ""))
        for toleration in tolerations
    )


def _drivers(seen: Seen, oldest: str) -> Iterator[str]:
    """Nodes whose labels name an older driver. A node without these labels (no GPU feature discovery) is not checked."""
    if not oldest:
        return
    found = {node.name: version for node in seen.gpu_nodes if (version := _driver(node.labels))}
    old = [f"{name} ({version})" for name, version in found.items() if _numbers(version) < _numbers(oldest)]
    if old:
        yield (
            f"kubernetes.minDriver is {oldest}, and these nodes have older NVIDIA drivers: {_some(old)}. "
            "Upgrade the drivers (with the GPU Operator: its driver.version), or lower minDriver"
        )


def _driver(labels: Mapping[str, str]) -> str:
    """The driver's version; empty where no label names it.

    GPU feature discovery writes cuda.driver.major, .minor and .rev, newer releases also cuda.driver-version.full (seen in node
    labels published with drivers 525 to 610, read 2026-11-22).
    """
    parts = [labels.get(f"nvidia.com/cuda.driver.{part}", "") for part in ("major", "minor", "rev")]
    return labels.get("nvidia.com/cuda.driver-version.full") or ".".join(filter(None, parts))


def _numbers(version: str) -> list[int]:
    """For comparisons: 570 and 570.0 are the same version."""
    numbers = [int(part) for part in re.findall(r"\d+", version)]
    return numbers + [0] * (4 - len(numbers))


def _matches(node: Node, terms: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of the terms, each a mapping of labels, matches; None means any value."""
    return any(all(key in node.labels and value in (None, "", node.labels[key]) for key, value in term.items()) for term in terms)


def _described(term: Mapping[str, Any]) -> str:
    return " and ".join(f"{key}={value}" if value else key for key, value in term.items())


def _other_exporters(seen: Seen, exporter: str, scraped: Sequence[str]) -> Iterator[str]:
    found = {who: pods for who, pods in seen.exporters.items() if pods}
    if exporter == "existing":
        if not found and seen.unlabelled_exporters:
            yield (
                f"exporter is existing, and Alloy finds an exporter by the label {' or '.join(_EXPORTERS)} of its pods, which "
                f"{_some(seen.unlabelled_exporters)} lacks: give its pods the first one"
            )
        elif not found:
            yield "exporter is existing, and no dcgm-exporter runs in the cluster: remove `exporter`, and this stack installs one"
        elif scraped and not any(pod.partition("/")[0] in scraped for pods in found.values() for pod in pods):
            yield (
                f"exporter is existing, and dcgm-exporter runs only where it is not scraped "
                f"({_some([pod for pods in found.values() for pod in pods])}): "
                f"add its namespace to kubernetes.exporterNamespaces, which has {', '.join(scraped)}"
            )
        return
    if seen.unlabelled_exporters:
        found["the DaemonSet of somebody else"] = seen.unlabelled_exporters
    for who, pods in found.items():
        yield (
            f"a dcgm-exporter of {who} already runs ({_some(pods)}): two on a node report every GPU twice. "
            "Write `exporter: existing` to use it, or remove it"
        )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
