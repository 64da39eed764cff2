"""Values of every chart, as pure functions of the stack file. Keys are the charts' own.

Checked against dcgm-exporter 4.8.2 and 4.8.4, gpu-operator v26.7.0, alloy 1.11.1, kube-prometheus-stack 88.5.3 with its
prometheus-node-exporter and kube-state-metrics, prometheus-adapter 5.3.0 (tests/samples/test_helm_values.py; read 2026-11-21).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from components.kubernetes.alloy_config import alloy_config
from components.kubernetes.scaling import adapter_rules
from gpu_fleet.host.scrape_interval import DEFAULT_S
from gpu_fleet.on_cluster.nodes import TAINT
from gpu_fleet.stackfile.counters import Counters
from gpu_fleet.stackfile.kubernetes import Kubernetes
from gpu_fleet.stackfile.readiness import Readiness
from gpu_fleet.stackfile.sections import Logs, Metrics, Server
from gpu_fleet.stackfile.settings import http_headers
from gpu_fleet.toolchain.versions import Image, image

Values = dict[str, Any]

DCGM_EXPORTER: Final = "dcgm-exporter"  # the exporter_mode of everything a cluster sends
SECRET: Final = "gpu-fleet"  # noqa: S105 - the Secret's name; its keys are the file names that hosts have too
SECRETS_DIRECTORY: Final = "/etc/gpu-fleet/secrets"
ADAPTER_AUTH_KEY: Final = "adapter-kubeconfig"
GRAFANA_USER_KEY: Final = "grafana-admin-user"
GRAFANA_PASSWORD_KEY: Final = "grafana-admin-password"  # noqa: S105
ALLOY_PORT: Final = 12345
# Default of scrapeInterval of the operator's Prometheus (API reference of monitoring.coreos.com/v1, read 2026-11-28).
_OPERATOR_S: Final = 30

# How many nodes at once an upgrade may leave without an exporter or agent. One at a time takes hours on a thousand nodes.
_AT_ONCE: Final = "10%"
_EVERYWHERE: Final = [{"operator": "Exists"}]  # agents of the nodes themselves

# Labels that mark a GPU node: GPU feature discovery, node feature discovery (a device of NVIDIA's PCI vendor), GKE.
_GPU_NODE_LABELS: Final[tuple[Values, ...]] = (
    {"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]},
    {"key": "feature.node.kubernetes.io/pci-10de.present", "operator": "In", "values": ["true"]},
    {"key": "cloud.google.com/gke-accelerator", "operator": "Exists"},
)


# A cluster may have Windows nodes. Linux nodes that are machines: AWS labels those of Fargate, and the Virtual Kubelet of AKS and
# others its own (virtual-kubelet, "type"; the AWS guide "Fargate pod configuration"; both read 2026-11-25).
_LINUX: Final = {"kubernetes.io/os": "linux"}
_MACHINES: Final[list[Values]] = [
    {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
    {"key": "eks.amazonaws.com/compute-type", "operator": "NotIn", "values": ["fargate"]},
    {"key": "type", "operator": "NotIn", "values": ["virtual-kubelet"]},
]


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """What the values depend on. It holds no secret: logins are in a Secret of their own.

    `workloads`: kind and name of the DaemonSets, Deployments and StatefulSets of each release, for Alloy's configuration.
    """

    datacenter: str
    cluster: str
    section: Kubernetes
    metrics: Metrics | None  # None only with an operator
    logs: Logs | None
    counters: Counters
    readiness: Readiness | None = None
    scrape_interval_s: int = DEFAULT_S
    workloads: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)

    @property
    def pushed_to(self) -> tuple[Server, ...]:
        """The stores that Alloy itself pushes to."""
        stores: tuple[Server | None, ...] = (None if self.scrapes_by_operator else self.metrics, self.logs)
        return tuple(store for store in stores if store is not None)

    @property
    def scrapes_by_operator(self) -> bool:
        return self.section.prometheus_operator != "none"


def merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Values:
    """As Helm merges values: mappings key by key, everything else as a whole; theirs wins."""
    result = dict(ours)
    for key, value in theirs.items():
        before = result.get(key)
        result[key] = merged(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return result


# --- GPU exporter -------------------------------------------------------------------------------------------------------


def dcgm_exporter(plan: ClusterPlan) -> Values:
    section, pinned = plan.section, image("dcgm-exporter")
    values: Values = {
        # The chart joins repository and tag without looking at the tag, so every version accepts a digest.
        "image": {"repository": pinned.repository, "tag": _tag(pinned)},
        "arguments": ["-f", "/etc/dcgm-exporter/default-counters.csv"],
        "customMetrics": plan.counters.text,
        # The list is mounted by subPath, which is never updated in a running pod, and the exporter reads it once.
        "podAnnotations": {"gpu-fleet/counters": hashlib.sha256(plan.counters.text.encode()).hexdigest()[:16]},
        "securityContext": {
            "capabilities": {"add": ["SYS_ADMIN"] if plan.counters.needs_sys_admin else [], "drop": ["ALL"]},
        },
        "kubeletPath": section.pod_resources,
        "tolerations": _tolerations(plan),
        "rollingUpdate": {"maxUnavailable": _AT_ONCE, "maxSurge": 0},
        "kubernetes": _pod_labels(section),
        "kubernetesDRA": {"enabled": section.dra},
        "serviceMonitor": _service_monitor(plan),
    }
    if section.node_selector is None:
        values["affinity"] = _on_gpu_nodes()
    elif section.node_selector:
        values["nodeSelector"] = dict(section.node_selector)
    if section.mig != "none":
        values["extraEnv"] = _mig_env()
    return values


def gpu_operator(plan: ClusterPlan) -> Values:
    """The operator's dcgm-exporter; driver, toolkit and device plugin stay as its chart has them."""
    section, pinned = plan.section, image("dcgm-exporter")
    repository, _, name = pinned.repository.rpartition("/")
    env = [{"name": "KUBERNETES_ENABLE_DRA", "value": "true"}] if section.dra else []
    env += _mig_env() if section.mig != "none" else []
    exporter: Values = {
        "enabled": True,
        "repository": repository,
        "image": name,
        # The operator accepts a digest as version, and joins it with @.
        "version": pinned.digest or pinned.tag,
        "config": {"create": True, "name": "gpu-fleet-counters", "data": plan.counters.text},
        "serviceMonitor": _service_monitor(plan),
        "enablePodLabels": bool(section.pod_labels),
        "env": env,
    }
    if section.pod_labels:
        exporter["podLabelAllowlistRegex"] = list(section.pod_labels)
    values: Values = {"dcgmExporter": exporter, "daemonsets": {"tolerations": _tolerations(plan)}}
    if section.mig != "none":
        values["mig"] = {"strategy": section.mig}
    return values


def _tag(pinned: Image) -> str:
    return pinned.tag + (f"@{pinned.digest}" if pinned.digest else "")


def _tolerations(plan: ClusterPlan) -> list[Values]:
    """With our own taint, or an exporter that is restarted on a node that has it would never say that the node is well again."""
    ours = [{"key": TAINT, "operator": "Exists"}] if plan.readiness and plan.readiness.kubernetes == "taint" else []
    return [*(toleration.model_dump(exclude_none=True) for toleration in plan.section.tolerations), *ours]


def _on_gpu_nodes() -> Values:
    return _on_nodes([{"matchExpressions": [label, *_MACHINES]} for label in _GPU_NODE_LABELS])


def _on_machines() -> Values:
    """Agents tolerate every taint, and without this their pods would wait for ever on nodes that are no Linux machines."""
    return _on_nodes([{"matchExpressions": _MACHINES}])


def _on_nodes(terms: Sequence[Values]) -> Values:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def node_terms(section: Kubernetes) -> list[dict[str, str]]:
    """Labels of the exporter's nodes: one of these sets a node must have; an empty value is any, no set is every node."""
    if section.node_selector is None:
        return [{label["key"]: (label.get("values") or [""])[0]} for label in _GPU_NODE_LABELS]
    return [dict(section.node_selector)] if section.node_selector else []


def _mig_env() -> list[Values]:
    # f: GPUs without MIG, and the instances of those with it, so nothing is counted twice.
    return [{"name": "DCGM_EXPORTER_DEVICES_STR", "value": "f"}]


def _pod_labels(section: Kubernetes) -> Values:
    return {"enablePodLabels": bool(section.pod_labels), "podLabelAllowlistRegex": list(section.pod_labels)}


def _service_monitor(plan: ClusterPlan) -> Values:
    if not plan.scrapes_by_operator:
        return {"enabled": False}
    return {
        "enabled": True,
        # The interval of hosts; the exporter itself reads the GPUs every 30 s.
        "interval": f"{plan.scrape_interval_s}s",
        "scrapeTimeout": "10s",
        # pod, namespace and container are of the pod that holds the GPU, not of the exporter.
        "honorLabels": True,
        "additionalLabels": dict(plan.section.monitor_labels),
        "relabelings": relabelings(plan, "gpu-exporter"),
    }


def relabelings(plan: ClusterPlan, job: str) -> list[Values]:
    """Gives the operator's targets the labels that hosts have."""
    fixed = {"datacenter": plan.datacenter, "cluster": plan.cluster, "exporter_mode": DCGM_EXPORTER, "job": job}
    return [
        {"action": "replace", "sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance"},
        *({"action": "replace", "targetLabel": label, "replacement": value} for label, value in fixed.items()),
    ]


# --- Alloy --------------------------------------------------------------------------------------------------------------


def alloy(plan: ClusterPlan) -> Values:
    section, pinned = plan.section, image("alloy")
    registry, _, repository = pinned.repository.partition("/")
    mounts = [
        {"name": "machine-id", "mountPath": "/etc/machine-id", "readOnly": True},  # identifies the journal
        {"name": "run-log", "mountPath": "/run/log", "readOnly": True},  # a journal that is not persistent
        {"name": "state", "mountPath": "/var/lib/alloy"},
    ]
    volumes: list[Values] = [
        {"name": "machine-id", "hostPath": {"path": "/etc/machine-id", "type": "File"}},
        {"name": "run-log", "hostPath": {"path": "/run/log", "type": "DirectoryOrCreate"}},
        # On the node, so that a new pod continues where the old one stopped sending and reading.
        {"name": "state", "hostPath": {"path": "/var/lib/gpu-fleet/alloy", "type": "DirectoryOrCreate"}},
    ]
    if any(needs_files(store) for store in plan.pushed_to):
        mounts.append({"name": "secrets", "mountPath": SECRETS_DIRECTORY, "readOnly": True})
        volumes.append({"name": "secrets", "secret": {"secretName": SECRET}})
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    monitor: Values = {"enabled": plan.scrapes_by_operator}
    if plan.scrapes_by_operator:
        monitor |= {
            "additionalLabels": dict(section.monitor_labels),
            "interval": f"{plan.scrape_interval_s}s",
            "relabelings": relabelings(plan, "alloy"),
            "metricRelabelings": [{"action": "keep", "sourceLabels": ["__name__"], "regex": _OF_ALLOY}],
        }
    return {
        "serviceMonitor": monitor,
        "image": {"registry": registry, "repository": repository, "tag": pinned.tag, "digest": pinned.digest},
        "crds": {"create": False},  # PodLogs, which this configuration does not use
        "alloy": {
            # The chart renders it as a template.
            "configMap": {"content": _as_helm_literal(_alloy_config(plan))},
            "storagePath": "/var/lib/alloy",
            "listenPort": ALLOY_PORT,
            "enableReporting": False,
            "extraEnv": _environment(plan),
            "mounts": {"varlog": True, "extra": mounts},
            "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
            # User 0 owns what it reads (the journal, logs of pods, its directory on the node), so it needs no capability.
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        },
        # What this configuration reads from the API server, and no more; the chart's own rules would let it read every secret.
        "rbac": {
            "rules": rules,
            "clusterRules": [
                {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
                {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
            ],
        },
        "controller": {
            "type": "daemonset",
            "tolerations": _EVERYWHERE,
            "affinity": _on_machines(),
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": _AT_ONCE}},
            "volumes": {"extra": volumes},
        },
    }


def _alloy_config(plan: ClusterPlan) -> str:
    return alloy_config(
        plan.section, plan.metrics, plan.logs, has_readiness=plan.readiness is not None, scrape_interval_s=plan.scrape_interval_s
    )


def _as_helm_literal(text: str) -> str:
    return text.replace("{{", '{{ "{{" }}')


# The series of collect_agent.alloy that rules use and that exist where Alloy pushes no metrics.
_OF_ALLOY: Final = (
    "gpu_fleet_.*|alloy_(build_info|config_last_load_successful|component_controller_running_components)"
    "|process_(cpu_seconds_total|resident_memory_bytes|open_fds|start_time_seconds)"
    "|loki_process_dropped_lines(_by_label)?_total|loki_source_.*_(lines|bytes|errors)_total"
    "|loki_write_(sent_entries|sent_bytes|dropped_entries|dropped_bytes|batch_retries)_total"
)


def needs_files(store: Server) -> bool:
    """Whether its login or certificates are files of the Secret."""
    return bool(store.username or store.bearer_token or store.tls.ca or store.tls.certificate)


def access(store: Server | None, name: str) -> dict[str, str]:
    """The variables of export_metrics.alloy and export_logs.alloy; the certificates are in the Secret too."""
    tls = store.tls if store else None
    files = {
        "BEARER_TOKEN": ("bearer-token", store and store.bearer_token),
        "CA": ("ca.pem", tls and tls.ca),
        "CERTIFICATE": ("certificate.pem", tls and tls.certificate),
        "CLIENT_KEY": ("client-key", tls and tls.certificate),
    }
    paths = {
        f"GPU_FLEET_{name.upper()}_{key}_FILE": f"{SECRETS_DIRECTORY}/{name}-{file}" if is_set else ""
        for key, (file, is_set) in files.items()
    }
    return {f"GPU_FLEET_{name.upper()}_HEADERS": http_headers(store), **paths}


def _environment(plan: ClusterPlan) -> list[Values]:
    """The variables that hosts have in /etc/gpu-fleet/environment, for the same files."""
    metrics, logs = None if plan.scrapes_by_operator else plan.metrics, plan.logs
    fixed = {
        "GPU_FLEET_DATACENTER": plan.datacenter,
        "GPU_FLEET_CLUSTER": plan.cluster,
        "GPU_FLEET_EXPORTER_MODE": DCGM_EXPORTER,
        "GPU_FLEET_ALLOY_LISTEN": f"127.0.0.1:{ALLOY_PORT}",
    }
    if metrics:
        fixed |= {
            "GPU_FLEET_METRICS_URL": metrics.url,
            "GPU_FLEET_METRICS_TENANT": metrics.tenant or "",
            "GPU_FLEET_METRICS_USERNAME": metrics.username or "",
            "GPU_FLEET_METRICS_WAL_KEEP": f"{metrics.outage_s * 3 // 2}s",  # see export_metrics.alloy
            **access(metrics, "metrics"),
        }
    if logs:
        fixed |= {
            "GPU_FLEET_LOGS_URL": logs.url,
            "GPU_FLEET_LOGS_TENANT": logs.tenant or "",
            "GPU_FLEET_LOGS_USERNAME": logs.username or "",
            **access(logs, "logs"),
        }
    if not plan.scrapes_by_operator:
        section = plan.section
        fixed |= {
            "GPU_FLEET_GPU_EXPORTER_NAMESPACES": _namespaces(section, section.exporter),
            "GPU_FLEET_NODE_EXPORTER_NAMESPACES": _namespaces(section, section.node_exporter),
            "GPU_FLEET_STATE_METRICS_NAMESPACES": _namespaces(section, section.kube_state_metrics),
            "GPU_FLEET_GPU_EXPORTER_CONTROLLERS": _controllers(plan, "dcgm-exporter", "DaemonSet"),
            "GPU_FLEET_NODE_EXPORTER_CONTROLLERS": _controllers(plan, "node-exporter", "DaemonSet"),
            "GPU_FLEET_STATE_METRICS_CONTROLLERS": _controllers(plan, "kube-state-metrics", "ReplicaSet|StatefulSet"),
            "GPU_FLEET_KUBELET_CERTIFICATES": section.kubelet_certificates,
        }
        if plan.readiness:
            fixed["GPU_FLEET_READINESS_NAMESPACE"] = section.namespace
    if plan.section.pod_logs:
        fixed["GPU_FLEET_POD_LOG_NAMESPACES"] = ",".join(plan.section.pod_logs)
    node = {"name": "GPU_FLEET_INSTANCE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    return [node, *({"name": name, "value": value} for name, value in fixed.items())]


def _namespaces(section: Kubernetes, exporter: str) -> str:
    """Regular expression of where an exporter can run: our namespace, and for an existing one also those of the stack file."""
    return "|".join([section.namespace, *(section.exporter_namespaces if exporter == "existing" else ())])


def _controllers(plan: ClusterPlan, release: str, kinds: str) -> str:
    """Regular expression of kind and name of what controls an exporter's pods. Of an exporter that the stack does not install
    the kind alone is known."""
    found = plan.workloads.get(release)
    if release == "dcgm-exporter" and plan.section.gpu_operator:
        found = [("DaemonSet", "nvidia-dcgm-exporter")]  # by the operator, not by its chart
    if not found:
        return f"({kinds});.*"
    # A Deployment's pods are controlled by a ReplicaSet, whose name ends with the sum of its template.
    return "|".join(f"ReplicaSet;{name}-[a-z0-9]+" if kind == "Deployment" else f"{kind};{name}" for kind, name in found)


# --- the nodes and the cluster ------------------------------------------------------------------------------------------


def node_exporter(plan: ClusterPlan) -> Values:
    monitor: Values = {"enabled": plan.scrapes_by_operator}
    if plan.scrapes_by_operator:
        monitor |= {
            "additionalLabels": dict(plan.section.monitor_labels),
            "relabelings": relabelings(plan, "node-exporter"),
            **_of_operator(plan),
        }
    return {
        "tolerations": _EVERYWHERE,
        "affinity": _on_machines(),
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": _AT_ONCE}},
        # It runs in the node's network, where no NetworkPolicy holds: so it listens on the address that Kubernetes knows.
        "service": {"listenOnAllInterfaces": False},
        "prometheus": {"monitor": monitor},
    }


def _of_operator(plan: ClusterPlan) -> Values:
    """What is about the nodes and the cluster is scraped as often as the operator does by itself, every 30 s, or less often."""
    return {"interval": f"{plan.scrape_interval_s}s"} if plan.scrape_interval_s > _OPERATOR_S else {}


def kube_state_metrics(plan: ClusterPlan) -> Values:
    monitor: Values = {"enabled": plan.scrapes_by_operator}
    if plan.scrapes_by_operator:
        monitor |= {
            "additionalLabels": dict(plan.section.monitor_labels),
            "http": {"honorLabels": True, "relabelings": _of_cluster(plan, "kube-state-metrics"), **_of_operator(plan)},
        }
    return {"nodeSelector": dict(_LINUX), "prometheus": {"monitor": monitor}}


# --- existing exporters, scraped by the operator -----------------------------------------------------------------------------

# What rules and dashboards use of kube-state-metrics; the same list as in collect_state.alloy.
_OF_STATE: Final = "|".join(
    (
        "kube_node_(info|spec_taint|spec_unschedulable|status_(allocatable|capacity|condition))",
        "kube_pod_(info|owner|status_phase|status_reason|container_resource_(requests|limits))",
        "kube_pod_container_status_(restarts_total|waiting_reason|last_terminated_reason)",
        "kube_daemonset_status_(desired_number_scheduled|number_ready)",
        "kube_(deployment_status_replicas_(available|unavailable)|job_status_failed)",
        "kube_horizontalpodautoscaler_(status_current_replicas|status_desired_replicas|spec_max_replicas)",
    )
)


def monitors(plan: ClusterPlan) -> list[Values]:
    """PodMonitors of the exporters that the cluster has: existing monitors do not set the labels that our rules need, and they
    are not ours to change. The pods are the ones that Alloy would scrape (discover_pods.alloy)."""
    section = plan.section
    if not plan.scrapes_by_operator:
        return []
    # (is it scraped so, name, labels of the pod, kind of its controller, names of ports, relabelings, metrics)
    found = (
        ("existing" if plan.readiness else "none", "ready", "gpu-fleet-ready;.*", "ReplicaSet", "metrics", "gpu-fleet-ready", ""),
        (
            section.exporter,
            "gpu-exporter",
            "(gke-managed-)?dcgm-exporter;.*|.*;nvidia-dcgm-exporter",
            "DaemonSet",
            "metrics",
            "",
            "",
        ),
        (section.node_exporter, "node-exporter", "(prometheus-)?node-exporter;.*", "DaemonSet", "metrics|http-metrics", "", ""),
        (
            section.kube_state_metrics,
            "kube-state-metrics",
            "kube-state-metrics;.*",
            "ReplicaSet|StatefulSet",
            "http|http-metrics",
            "kube-state-metrics",
            _OF_STATE,
        ),
    )
    made = []
    for installed, name, pods, owner, ports, of_cluster, kept in found:
        if installed != "existing":
            continue
        endpoint: Values = {
            "interval": f"{plan.scrape_interval_s}s",
            "scrapeTimeout": "10s",
            # pod, namespace and container are of the pod that the series is about, not of the exporter.
            "honorLabels": True,
            "relabelings": [
                *(
                    {"action": "keep", "sourceLabels": labels, "regex": regex}
                    for labels, regex in (
                        (["__meta_kubernetes_pod_label_app_kubernetes_io_name", "__meta_kubernetes_pod_label_app"], pods),
                        (["__meta_kubernetes_pod_controller_kind"], owner),
                        (["__meta_kubernetes_pod_container_port_name"], ports),
                    )
                ),
                # The operator has set them by the exporter's pod, and honorLabels keeps those of the series.
                {"action": "labeldrop", "regex": "pod|namespace|container|endpoint"},
                *(_of_cluster(plan, of_cluster) if of_cluster else relabelings(plan, name)),
            ],
        }
        if kept:
            endpoint["metricRelabelings"] = [{"action": "keep", "sourceLabels": ["__name__"], "regex": kept}]
        made.append(
            {
                "apiVersion": "monitoring.coreos.com/v1",
                "kind": "PodMonitor",
                "metadata": {
                    "name": f"gpu-fleet-{name}",
                    "namespace": section.namespace,
                    **({"labels": dict(section.monitor_labels)} if section.monitor_labels else {}),
                },
                "spec": {
                    "selector": {},
                    "namespaceSelector": {"matchNames": sorted({section.namespace, *section.exporter_namespaces})},
                    "podMetricsEndpoints": [endpoint],
                },
            }
        )
    return made


def _of_cluster(plan: ClusterPlan, job: str) -> list[Values]:
    """The series are the cluster's, not those of the node where this pod runs."""
    fixed = {
        "datacenter": plan.datacenter,
        "cluster": plan.cluster,
        "exporter_mode": DCGM_EXPORTER,
        "job": job,
        "instance": job,
    }
    return [{"action": "replace", "targetLabel": label, "replacement": value} for label, value in fixed.items()]


def kube_prometheus_stack(plan: ClusterPlan) -> Values:
    section, metrics = plan.section, plan.metrics
    labels = {"datacenter": plan.datacenter, "cluster": plan.cluster}
    selects_all = {
        f"{kind}SelectorNilUsesHelmValues": False for kind in ("serviceMonitor", "podMonitor", "rule", "probe", "scrapeConfig")
    }
    return {
        "prometheus": {
            "prometheusSpec": {
                **selects_all,
                "externalLabels": labels,
                # Otherwise its name and its replica's would be labels of every series, which series of hosts do not have.
                "replicaExternalLabelNameClear": True,
                "prometheusExternalLabelNameClear": True,
                "remoteWrite": [_remote_write(metrics)] if metrics else [],
                "retention": "1d",  # Mimir keeps the rest
            }
        },
        "grafana": _operator_grafana(section),
        # Mimir sends the alerts: it has the metrics of every cluster.
        "alertmanager": {"enabled": False},
        "defaultRules": {"create": False},
        # No rule and no panel uses the control plane's metrics, and the API server alone has more series than all GPUs.
        **{part: {"enabled": False} for part in _CONTROL_PLANE},
        # Always releases of their own: as subcharts they would start while the old ones still hold their port.
        "nodeExporter": {"enabled": False},
        "kubeStateMetrics": {"enabled": False},
        "kubelet": {"serviceMonitor": _kubelet_relabelings(plan)},
    }


def _remote_write(metrics: Metrics) -> Values:
    write: Values = {"url": metrics.url}
    headers = {**({"X-Scope-OrgID": metrics.tenant} if metrics.tenant else {}), **metrics.headers}
    if headers:
        write["headers"] = headers

    def of_secret(key: str) -> Values:
        return {"name": SECRET, "key": f"metrics-{key}"}

    if metrics.username:
        write["basicAuth"] = {"username": of_secret("username"), "password": of_secret("password")}
    if metrics.bearer_token:
        write["authorization"] = {"credentials": of_secret("bearer-token")}
    tls: Values = {"ca": {"secret": of_secret("ca.pem")}} if metrics.tls.ca else {}
    if metrics.tls.certificate:
        tls |= {"cert": {"secret": of_secret("certificate.pem")}, "keySecret": of_secret("client-key")}
    if tls:
        write["tlsConfig"] = tls
    return write


def _operator_grafana(section: Kubernetes) -> Values:
    if section.operator_grafana == "none":
        return {"enabled": False}
    return {
        "enabled": True,
        "service": {"type": section.operator_grafana},
        # By default the chart generates a new password at each rendering, and restarts Grafana for it.
        "admin": {"existingSecret": SECRET, "userKey": GRAFANA_USER_KEY, "passwordKey": GRAFANA_PASSWORD_KEY},
    }


_CONTROL_PLANE: Final = ("kubeApiServer", "kubeControllerManager", "coreDns", "kubeEtcd", "kubeScheduler", "kubeProxy")


def _kubelet_relabelings(plan: ClusterPlan) -> Values:
    """The chart keeps its path label first; a list replaces the whole default, so it is repeated here."""
    path = {"action": "replace", "sourceLabels": ["__metrics_path__"], "targetLabel": "metrics_path"}
    node = {"action": "replace", "sourceLabels": ["__meta_kubernetes_endpoint_address_target_name"], "targetLabel": "instance"}

    def rules(job: str) -> Sequence[Values]:
        fixed = {"datacenter": plan.datacenter, "cluster": plan.cluster, "exporter_mode": DCGM_EXPORTER, "job": job}
        return [path, node, *({"action": "replace", "targetLabel": k, "replacement": v} for k, v in fixed.items())]

    return {"relabelings": rules("kubelet"), "cAdvisorRelabelings": rules("cadvisor"), "probesRelabelings": rules("kubelet")}


# --- who may connect ------------------------------------------------------------------------------------------------------


def network_policies(plan: ClusterPlan) -> list[Values]:
    """name and spec of each: only the scraper connects to our exporters and to Alloy, whose interface shows its configuration.

    They hold where the cluster's network enforces them, and not for node_exporter, which runs in the node's network.
    """
    section = plan.section
    program = "prometheus" if plan.scrapes_by_operator else "alloy"
    scraper: Values = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": program}}}
    if section.prometheus_operator == "existing":
        scraper["namespaceSelector"] = {}  # it is in a namespace of its own

    def policy(name: str, pods: Values) -> Values:
        return {"name": name, "spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": [{"from": [scraper]}]}}

    ours = ["alloy", "dcgm-exporter", "kube-state-metrics", *(["gpu-fleet-ready"] if plan.readiness else [])]
    releases = {"key": "app.kubernetes.io/instance", "operator": "In", "values": ours}
    made = [policy("gpu-fleet", {"matchExpressions": [releases]})]
    if section.gpu_operator:
        made.append(policy("gpu-fleet-operator", {"matchLabels": {"app": "nvidia-dcgm-exporter"}}))
    return made


# --- scaling ------------------------------------------------------------------------------------------------------------


def prometheus_adapter(plan: ClusterPlan) -> Values:
    """Queries Mimir, where the vocabulary is: the same metric names whatever exporter or version measures."""
    metrics = plan.metrics
    assert metrics is not None, "validated: the adapter needs a store to query"
    values: Values = {
        "nodeSelector": dict(_LINUX),
        # The chart joins url, port and path; port 0 omits its default.
        "prometheus": {"url": metrics.queries, "port": 0, "path": ""},
        "rules": {"default": False, "custom": adapter_rules(plan.datacenter, plan.cluster)},
    }
    headers = {**({"X-Scope-OrgID": metrics.tenant} if metrics.tenant else {}), **metrics.headers}
    arguments = [f"--prometheus-header={name}={value}" for name, value in headers.items()]
    files = {
        # The adapter reads a login from a kubeconfig; a file, because every user of the node can read arguments.
        "auth-config": (ADAPTER_AUTH_KEY, metrics.username),
        "token-file": ("metrics-bearer-token", metrics.bearer_token),
        "ca-file": ("metrics-ca.pem", metrics.tls.ca),
        "client-tls-cert-file": ("metrics-certificate.pem", metrics.tls.certificate),
        "client-tls-key-file": ("metrics-client-key", metrics.tls.certificate),
    }
    arguments += [f"--prometheus-{flag}={SECRETS_DIRECTORY}/{file}" for flag, (file, is_set) in files.items() if is_set]
    if needs_files(metrics):
        values["extraVolumes"] = [{"name": "secrets", "secret": {"secretName": SECRET}}]
        values["extraVolumeMounts"] = [{"name": "secrets", "mountPath": SECRETS_DIRECTORY, "readOnly": True}]
    if arguments:
        values["extraArguments"] = arguments
    return values
