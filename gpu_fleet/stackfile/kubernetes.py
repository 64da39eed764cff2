"""Section `kubernetes`: a GPU cluster that gets the same monitoring through Helm."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from gpu_fleet.stackfile.problems import shown
from gpu_fleet.stackfile.values import (
    AbsolutePath,
    BaseUrl,
    DriverVersion,
    LocalPath,
    Section,
    Texts,
    TextType,
    refuse,
    text_type,
)

# Kubernetes: DNS labels for namespaces, qualified names for labels and taints.
_NAMESPACE = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_LABEL_KEY = r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LABEL_VALUE = r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?"


def _matching(pattern: str, expected: str, fix: str, *examples: str, is_key: bool = False) -> TextType:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise refuse(f"found {shown(text)}", expected=expected, fix=fix)
        return text

    # A pattern of keys hides what their values are from those who follow the schema.
    return text_type(check, expected, *examples, **({} if is_key else {"pattern": f"^{pattern}$"}))


Namespace = Annotated[
    str,
    *_matching(
        _NAMESPACE, "lower-case letters, digits and - between them", "write the namespace as kubectl knows it", "gpu-fleet"
    ),
]
LabelKey = Annotated[
    str, *_matching(_LABEL_KEY, "the key of a Kubernetes label or taint", "write the key alone", "nvidia.com/gpu", is_key=True)
]
LabelValue = Annotated[
    str,
    *_matching(
        _LABEL_VALUE, "the value of a Kubernetes label, as text", 'write it in quotes: "true" is text and true is none', '"true"'
    ),
]
ChartVersion = Annotated[
    str, *_matching(r"v?\d+\.\d+\.\d+([-+][0-9A-Za-z.+-]+)?", "one exact version", "pin one version, not a range", "4.8.2")
]


def _chart(text: str) -> str:
    if not (text.startswith("oci://") or text.endswith(".tgz")):
        raise refuse(
            f"found {shown(text)}",
            expected="the path of a .tgz file, or an OCI reference that starts with oci://",
            fix="a chart of a Helm repository needs no `chart`: write `repository` where that is not the upstream one",
        )
    return text


ChartReference = Annotated[
    LocalPath,
    AfterValidator(_chart),
    Field(json_schema_extra={"x-expected": "the path of a .tgz file, or oci://…", "examples": ["charts/alloy-1.11.1.tgz"]}),
]


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise refuse(
            f"{shown(text)} is not a regular expression: {error}", expected="a regular expression", fix="write for example ^app$"
        ) from None
    return text


Regex = Annotated[str, AfterValidator(_regex), Field(json_schema_extra={"x-expected": "a regular expression"})]


class Chart(Section):
    """Source of a chart where it is not the upstream one, and values over ours."""

    chart: ChartReference | None = None
    """A .tgz file of this machine (air-gapped sites) or oci://…; default: the chart of `repository`."""
    repository: BaseUrl | None = None
    """URL of a Helm repository that mirrors the chart; default: upstream."""
    version: ChartVersion | None = None
    """Version of the chart; default: the one of gpu_fleet/toolchain/versions.yaml."""
    values: dict[str, Any] = Field(default={}, examples=[{"resources": {"limits": {"memory": "1Gi"}}}])
    """Values of the chart, over ours. A key that reads like one of the chart's and has no effect is refused."""


class Charts(Section):
    """The charts this stack may install."""

    dcgm_exporter: Chart = Chart()
    """NVIDIA's dcgm-exporter."""
    gpu_operator: Chart = Chart()
    """NVIDIA's GPU Operator."""
    alloy: Chart = Chart()
    """Grafana Alloy."""
    node_exporter: Chart = Chart()
    """prometheus-node-exporter."""
    kube_state_metrics: Chart = Chart()
    """kube-state-metrics."""
    kube_prometheus_stack: Chart = Chart()
    """The Prometheus Operator with its Prometheus."""
    prometheus_adapter: Chart = Chart()
    """Prometheus Adapter: custom metrics for autoscaling."""


class Toleration(Section):
    """A taint of the GPU nodes that the exporter may run beside, as in a pod."""

    key: LabelKey | None = None
    """Key of the taint; none with `operator: Exists`: every taint."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """Exists: whatever its value; Equal: with this value."""
    value: LabelValue | None = None
    """Value of the taint, with `operator: Equal`."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; default: all."""


class Kubernetes(Section):
    """A GPU cluster that gets the same monitoring through Helm."""

    context: str | None = Field(default=None, min_length=1)
    """Context of the kubeconfig. Default: its current one."""
    kubeconfig: LocalPath | None = None
    """Kubeconfig file. Default: as kubectl finds it; or the secret gpu-fleet:kubeconfig holds its text."""
    namespace: Namespace = "gpu-fleet"
    """Namespace of everything we place."""
    create_namespace: bool = True
    """Create the namespace, and delete it with the section; false: it exists, and stays."""
    gpu_operator: bool = False
    """Install the GPU Operator and set its dcgm-exporter up, instead of dcgm-exporter by its own chart."""
    exporter: Literal["install", "existing"] = "install"
    """`existing`: the cluster has a dcgm-exporter (or a GPU Operator with one); it is only scraped."""
    exporter_namespaces: Annotated[tuple[Namespace, ...], Texts] = Field(
        default=("gpu-operator", "nvidia-gpu-operator", "gke-managed-system", "kube-system", "monitoring", "prometheus"),
        min_length=1,
        examples=[["gpu-operator"]],
    )
    """Namespaces of `existing` exporters; a pod elsewhere is never scraped, whatever its labels. List those where only
    administrators can create pods."""
    kubelet_certificates: Literal["cluster", "self-signed"] = "cluster"
    """`cluster`: kubelets have certificates of the cluster's authority (serverTLSBootstrap), and are verified; `self-signed`:
    each kubelet signs its own, and an agent trusts the one of its own node without verification."""
    network_policies: bool = True
    """Place a NetworkPolicy that lets only our scrapers reach our exporters and agents."""
    prometheus_operator: Literal["none", "install", "existing"] = "none"
    """Scrape by the Prometheus Operator instead of Alloy; Alloy still reads the logs, and the operator scrapes its XID counters.
    Then gpu-fleet:metrics may be missing: `install` pushes there too if it is set."""
    monitor_labels: dict[LabelKey, LabelValue] = Field(default={}, examples=[{"release": "kube-prometheus-stack"}])
    """Labels by which an existing Prometheus Operator selects ServiceMonitors and rules."""
    prometheus_rules: bool | None = None
    """Place alerts and recording rules as PrometheusRules, evaluated by the operator's Prometheus. Default: yes with an operator,
    unless this stack has gpu-fleet:rulers; rules that Mimir evaluates too would alert twice."""
    sidecar_dashboards: bool = False
    """Place the dashboards as ConfigMaps with the label grafana_dashboard: the sidecar of kube-prometheus-stack's Grafana loads
    them."""
    operator_grafana: Literal["none", "ClusterIP", "NodePort", "LoadBalancer"] = "none"
    """With `prometheusOperator: install`: Grafana of that chart, and how its service is exposed."""
    node_exporter: Literal["install", "existing", "none"] = "install"
    """The nodes' own metrics; `existing`: the cluster has a node_exporter, which is only scraped."""
    kube_state_metrics: Literal["install", "existing", "none"] = "install"
    """State of pods and nodes; `existing`: the cluster has one, which is only scraped. Source of the cluster's GPU inventory."""
    pod_logs: Annotated[tuple[Namespace, ...], Texts] = ()
    """Namespaces whose pods' logs go to Loki."""
    pod_labels: Annotated[tuple[Regex, ...], Texts] = Field(default=(), examples=[["^app$", "^team$"]])
    """Pod labels (regular expressions of their names) that GPU metrics carry. Default: none."""
    min_driver: DriverVersion | None = None
    """The oldest NVIDIA driver that a GPU node may have, as GPU feature discovery labels it. Default: any version."""
    node_selector: dict[LabelKey, LabelValue] | None = None
    """Labels of the GPU nodes. Default: nodes that GPU or node feature discovery or GKE marked; {}: every node."""
    tolerations: Annotated[tuple[Toleration, ...], Texts] = (Toleration(key="nvidia.com/gpu"),)
    """Taints of the GPU nodes."""
    mig: Literal["none", "single", "mixed"] = "none"
    """MIG strategy, as in the configuration of the device plugin."""
    dra: bool = False
    """GPUs are handed out by Dynamic Resource Allocation (NVIDIA's DRA driver)."""
    pod_resources: AbsolutePath = "/var/lib/kubelet/pod-resources"
    """Directory of the kubelet's pod-resources socket on the nodes: it maps GPUs to pods."""
    custom_metrics: Literal["none", "install"] = "none"
    """Prometheus Adapter, which offers GPU use per pod to the HorizontalPodAutoscaler."""
    keep_crds: bool = True
    """Keep the CustomResourceDefinitions of charts when the section is removed; false deletes them and all their objects."""
    timeout: Annotated[int, Field(ge=5, le=3600)] = 600
    """Seconds until an installation or upgrade that does not become ready is rolled back."""
    charts: Charts = Charts()
    """Other sources and values of the charts."""
