"""From the stack's configuration to the arguments of GpuCluster. Creates no resource.

An error found here (a chart that cannot be fetched, a value that it refuses) ends the program with its text, without a traceback.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes

import dashboards
from alerts.prometheus_rule import prometheus_rule, prometheus_rules
from components.custom import custom_dashboards, customization
from components.inventory import inventory_of_cluster
from components.kubernetes.gpu_cluster import GpuClusterArgs
from components.kubernetes.place import kubernetes_place
from components.kubernetes.releases import ReleaseErrors, releases, warning_of_unread, warning_of_unverified
from components.kubernetes.values import ADAPTER_AUTH_KEY, GRAFANA_PASSWORD_KEY, GRAFANA_USER_KEY, ClusterPlan, monitors
from components.notifications import links
from components.stack import LoadedConfig
from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.counters import counters
from gpu_fleet.stackfile.sections import Metrics, Server


def kubernetes_provider_args(loaded: LoadedConfig) -> dict[str, Any]:
    """For Pulumi's Kubernetes provider. Without any: as kubectl finds the cluster."""
    place = kubernetes_place(loaded.config) or {}
    # Not None: pulumi_kubernetes would write the KUBECONFIG of whoever runs it into the state (4.32.0, provider.py); the provider
    # reads that variable itself.
    no_file = pulumi.Output.from_input(None)
    return {
        "context": place.get("context"),
        "kubeconfig": loaded.secrets.get("kubeconfig") or place.get("kubeconfig", no_file),
        "enable_secret_mutable": True,  # a rotated password is written into the Secret that the agents have mounted
    }


def cluster_plan(config: StackConfig) -> ClusterPlan:
    assert config.kubernetes is not None
    return ClusterPlan(
        datacenter=config.datacenter,
        cluster=config.cluster,
        section=config.kubernetes,
        metrics=config.metrics,
        logs=config.logs,
        counters=counters(config.dcgm.counters, config.base),
        readiness=config.readiness,
        scrape_interval_s=config.scrape_interval_s,
    )


def gpu_cluster_args(loaded: LoadedConfig, provider: kubernetes.Provider) -> GpuClusterArgs:
    plan = cluster_plan(loaded.config)
    try:
        charts = releases(plan, loaded.config.base)
    except ReleaseErrors as errors:
        raise pulumi.RunError(str(errors)) from None
    for warning in filter(None, (warning_of_unverified(charts), warning_of_unread(charts))):
        pulumi.log.warn(warning)
    return GpuClusterArgs(
        plan=plan,
        releases=charts,
        kubernetes=provider,
        secrets=_secrets(loaded, plan),
        rules=_rules(loaded.config),
        monitors=monitors(plan),
        dashboards=_dashboards(loaded.config),
        place=None if "kubeconfig" in loaded.secrets else kubernetes_place(loaded.config),
    )


def _rules(config: StackConfig) -> list[dict[str, Any]]:
    section = config.kubernetes
    assert section is not None
    has_operator = section.prometheus_operator != "none"
    if not (has_operator and config.rulers is None if section.prometheus_rules is None else section.prometheus_rules):
        return []
    rules = prometheus_rules(
        namespace=section.namespace, labels=section.monitor_labels, links=links(config), custom=customization(config)
    )
    expected = inventory_of_cluster(config)
    inventory = prometheus_rule("inventory-expected", expected, namespace=section.namespace, labels=section.monitor_labels)
    return [*rules, inventory]


def _dashboards(config: StackConfig) -> dict[str, str]:
    """By uid; at most 100 kB each, and a ConfigMap holds 1 MiB."""
    assert config.kubernetes is not None
    if not config.kubernetes.sidecar_dashboards:
        return {}
    boards = dashboards.all_dashboards(custom=custom_dashboards(config))
    return {uid: json.dumps(model, sort_keys=True) for uid, model in boards.items()}


def _secrets(loaded: LoadedConfig, plan: ClusterPlan) -> Mapping[str, pulumi.Input[str]]:
    """Logins of Mimir and Loki by file name, as on hosts; Prometheus also needs the user, the adapter a kubeconfig.

    And the first login of the operator's Grafana.
    """
    found: dict[str, pulumi.Input[str]] = {}
    metrics = plan.metrics
    if metrics and metrics.username:
        password = loaded.secrets["metricsPassword"]
        found |= {"metrics-username": metrics.username, "metrics-password": password}
        if plan.section.custom_metrics == "install":
            found[ADAPTER_AUTH_KEY] = password.apply(lambda text: _adapter_login(metrics, text))
    if plan.logs and plan.logs.username:
        found["logs-password"] = loaded.secrets["logsPassword"]
    stores: dict[str, Server | None] = {"metrics": metrics, "logs": plan.logs}
    for name, store in stores.items():
        if store and store.bearer_token:
            found[f"{name}-bearer-token"] = loaded.secrets[f"{name}BearerToken"]
        if store and store.tls.ca:
            found[f"{name}-ca.pem"] = loaded.config.pem(store.tls.ca)
        if store and store.tls.certificate:
            found[f"{name}-certificate.pem"] = loaded.config.pem(store.tls.certificate)
            found[f"{name}-client-key"] = loaded.secrets[f"{name}ClientKey"]
    if plan.section.operator_grafana != "none":
        found |= {GRAFANA_USER_KEY: "admin", GRAFANA_PASSWORD_KEY: loaded.secrets["operatorGrafanaPassword"]}
    return found


def _adapter_login(metrics: Metrics, password: str) -> str:
    """A kubeconfig with the login alone: the form in which Prometheus Adapter reads one."""
    login = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "mimir", "cluster": {"server": metrics.queries}}],
        "users": [{"name": "mimir", "user": {"username": metrics.username, "password": password}}],
        "contexts": [{"name": "mimir", "context": {"cluster": "mimir", "user": "mimir"}}],
        "current-context": "mimir",
    }
    return json.dumps(login)
