"""The section `kubernetes` against the others, against itself, and with the files that it names."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_fleet.stackfile.kubernetes import Chart, Charts, Kubernetes
from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.problems import Problem
from gpu_fleet.stackfile.validation.subject import Stack, problem

_GRAFANA_PASSWORD = "operatorGrafanaPassword"  # noqa: S105 - the name of the key


def check(stack: Stack) -> Iterator[Problem]:
    section = stack.file.kubernetes
    if "kubernetes" in stack.broken:
        return
    if section is None:
        for secret in ("kubeconfig", _GRAFANA_PASSWORD):
            if secret in stack.secrets_set:
                fix = f"add the section, or `pulumi config rm {PROJECT}:{secret}`"
                yield problem("kubernetes", f"is missing: {PROJECT}:{secret} is set", fix=fix)
        return
    yield from _needed(stack, section)
    yield from _kubeconfig(stack, section)
    yield from _exporter(section)
    yield from _operator(section)
    yield from _operator_grafana(stack, section)
    yield from _rules(section)
    for index, toleration in enumerate(section.tolerations):
        if (toleration.operator == "Equal") != (toleration.value is not None):
            yield problem(
                f"kubernetes.tolerations[{index}].value",
                f"does not match `operator: {toleration.operator}`",
                "a value with Equal, none with Exists",
                "correct the operator or the value",
            )
    for field in Charts.model_fields:
        yield from _chart(stack, section, field)


def _needed(stack: Stack, section: Kubernetes) -> Iterator[Problem]:
    if not stack.has_hosts:  # else the checks of hosts say so
        for key, example in {"datacenter": "us-west", "cluster": "training"}.items():
            if stack.is_absent(key):
                yield problem(
                    key,
                    "is missing, and the stack has a Kubernetes cluster",
                    fix=f"`pulumi config set {PROJECT}:{key} {example}`",
                )
        if stack.is_absent("metrics") and section.prometheus_operator == "none":
            fix = f"add `{PROJECT}:metrics: {{url: https://mimir.example.com/api/v1/push}}`"
            yield problem("metrics", "is missing, and the stack has a Kubernetes cluster: its metrics would go nowhere", fix=fix)
    metrics = stack.file.metrics
    if section.custom_metrics == "install" and "metrics" not in stack.broken and (metrics is None or metrics.queries is None):
        fix = "add it: the URL of the server that answers queries, or remove customMetrics"
        yield problem("metrics.queryUrl", "is missing, and kubernetes.customMetrics queries the store", fix=fix)
    if section.pod_logs and stack.is_absent("logs"):
        fix = f"add `{PROJECT}:logs: {{url: https://loki.example.com/loki/api/v1/push}}`, or remove podLogs"
        yield problem("logs", "is missing, and kubernetes.podLogs collects the logs of pods", fix=fix)


def _kubeconfig(stack: Stack, section: Kubernetes) -> Iterator[Problem]:
    if section.kubeconfig is None:
        return
    if "kubeconfig" in stack.secrets_set:
        fix = f"remove it, or `pulumi config rm {PROJECT}:kubeconfig`"
        yield problem("kubernetes.kubeconfig", f"{PROJECT}:kubeconfig is set too", "a file or the secret", fix)
    elif stack.is_deployed_from_here and not stack.listing.local_path(section.kubeconfig).is_file():
        yield problem(
            "kubernetes.kubeconfig",
            f"{section.kubeconfig} does not exist",
            "a kubeconfig file",
            "correct the path, relative to Pulumi.yaml",
        )


def _exporter(section: Kubernetes) -> Iterator[Problem]:
    if section.gpu_operator and section.exporter == "existing":
        yield problem(
            "kubernetes.exporter",
            "existing, and `gpuOperator: true` installs one",
            "one exporter per node",
            "remove gpuOperator where the cluster has the operator; else remove exporter",
        )


def _operator(section: Kubernetes) -> Iterator[Problem]:
    if section.monitor_labels and section.prometheus_operator != "existing":
        yield problem(
            "kubernetes.monitorLabels",
            f"has no effect with `prometheusOperator: {section.prometheus_operator}`",
            "only with `prometheusOperator: existing`",
            "remove it: ours selects every ServiceMonitor" if section.prometheus_operator == "install" else "remove it",
        )


def _operator_grafana(stack: Stack, section: Kubernetes) -> Iterator[Problem]:
    has_password = _GRAFANA_PASSWORD in stack.secrets_set
    if section.operator_grafana == "none":
        if has_password:
            fix = f"add it, or `pulumi config rm {PROJECT}:{_GRAFANA_PASSWORD}`"
            yield problem("kubernetes.operatorGrafana", f"is missing: {PROJECT}:{_GRAFANA_PASSWORD} is set", fix=fix)
    elif section.prometheus_operator != "install":
        yield problem(
            "kubernetes.operatorGrafana",
            f"has no effect with `prometheusOperator: {section.prometheus_operator}`",
            "only with `prometheusOperator: install`",
            "remove it",
        )
    elif not has_password:
        yield problem(
            _GRAFANA_PASSWORD,
            f"is missing: {PROJECT}:kubernetes.operatorGrafana is {section.operator_grafana}",
            fix=f"`pulumi config set --secret {PROJECT}:{_GRAFANA_PASSWORD}`: the password of Grafana's user admin",
        )


def _rules(section: Kubernetes) -> Iterator[Problem]:
    if section.prometheus_rules and section.prometheus_operator == "none":
        yield problem(
            "kubernetes.prometheusRules",
            "true, and there is no Prometheus Operator to evaluate them",
            "only with `prometheusOperator: install` or `existing`",
            "remove it: gpu-fleet:rulers evaluates them",
        )


def _chart(stack: Stack, section: Kubernetes, field: str) -> Iterator[Problem]:
    chart: Chart = getattr(section.charts, field)
    key = Charts.model_fields[field].alias
    where = f"kubernetes.charts.{key}"
    if chart == Chart():
        return
    if reason := _why_not_installed(section, field):
        yield problem(where, f"has no effect: {reason}", fix="remove it, or install what it is about")
    if chart.chart and chart.repository:
        yield problem(f"{where}.repository", "`chart` is set too", "chart or repository", "remove one of them")
    if chart.chart and chart.chart.endswith(".tgz") and not chart.chart.startswith("oci://"):
        if not stack.listing.local_path(chart.chart).is_file():
            fix = "correct the path, relative to Pulumi.yaml; `helm pull` writes such a file"
            yield problem(f"{where}.chart", f"{chart.chart} does not exist", "a chart as a .tgz file", fix)
        if chart.version:
            yield problem(f"{where}.version", "a .tgz file is one version", fix="remove it")


def _why_not_installed(section: Kubernetes, field: str) -> str:
    if field == "dcgm_exporter" and section.gpu_operator:
        return "with `gpuOperator: true` dcgm-exporter is set through charts.gpuOperator, never both"
    if field == "dcgm_exporter" and section.exporter == "existing":
        return "with `exporter: existing` none is installed"
    if field == "gpu_operator" and not section.gpu_operator:
        return "gpuOperator is false"
    if field == "kube_prometheus_stack" and section.prometheus_operator != "install":
        return f"prometheusOperator is {section.prometheus_operator}"
    if field == "prometheus_adapter" and section.custom_metrics == "none":
        return "customMetrics is none"
    if field in ("node_exporter", "kube_state_metrics") and (asked := getattr(section, field)) != "install":
        return f"{Kubernetes.model_fields[field].alias} is {asked}"
    return ""
