"""The life of a cluster with the real pulumi: preview, installation, change, failure, drift, other options, and nothing left.

One stack for all tests, as an installation takes most of the time. A test that needs it installed uses the fixture, changes its
own copy of the configuration, and can be run alone.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_fleet import toolchain
from lab.kubernetes import Cluster
from lab.kubernetes.chart_packages import package
from tests.checkout import REPO
from tests.hosts.stack import Stack
from tests.signals.custom import examples

NAMESPACE = "gpu-monitoring"
PASSWORD = "planted-secret"
GRAFANA_PASSWORD = "planted-for-grafana"
CHARTS = {
    "dcgmExporter": "dcgm-exporter",
    "alloy": "alloy",
    "nodeExporter": "node-exporter",
    "kubeStateMetrics": "kube-state-metrics",
}
OPERATORS = {"gpuOperator": "gpu-operator", "kubePrometheusStack": "kube-prometheus-stack"}


@pytest.fixture(scope="module")
def stack(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("stack")
    (directory / "charts").mkdir()
    config = {
        "datacenter": "lab-west",
        "cluster": "training",
        "metrics": {"url": "http://127.0.0.1:9009/api/v1/push", "tenant": "lab", "username": "writer"},
        "kubernetes": {
            "kubeconfig": str(cluster.kubeconfig),
            "namespace": NAMESPACE,
            "timeout": 300,
            "charts": {key: {"chart": chart(directory, name)} for key, name in CHARTS.items()},
        },
    }
    stack = Stack(directory, "cluster", config, {"metricsPassword": PASSWORD}).create()
    yield stack
    stack.clear()


@pytest.fixture(scope="module")
def installation(stack: Stack) -> str:
    """What the first run printed."""
    return stack.up()


@pytest.fixture
def section(stack: Stack, installation: str) -> Iterator[dict[str, Any]]:
    """`gpu-fleet:kubernetes` of the installed stack, for a test to change; afterwards the whole stack file is as it was."""
    before = copy.deepcopy(stack.config)
    yield stack.config["kubernetes"]
    stack.config = before
    stack.write()


def chart(directory: Path, name: str) -> str:
    """A lab chart, as the stack file names it."""
    return str(package(name, directory / "charts").relative_to(directory))


def daemon_set(cluster: Cluster, name: str = "dcgm-exporter") -> dict[str, Any]:
    return cluster.api.read("apps/v1", "DaemonSet", name, NAMESPACE)


def ours(cluster: Cluster) -> set[str]:
    """The objects that Helm marked as its own, and the namespace."""
    kinds = {
        "apps/v1": ("DaemonSet", "Deployment"),
        "v1": ("ConfigMap", "Secret", "ServiceAccount", "Service"),
        "rbac.authorization.k8s.io/v1": ("ClusterRole", "ClusterRoleBinding"),
    }
    found = [one for version, names in kinds.items() for kind in names for one in cluster.api.list(version, kind)]
    marked = [
        one
        for one in found
        if one["metadata"].get("annotations", {}).get("meta.helm.sh/release-namespace") == NAMESPACE
        or (one["metadata"].get("namespace") == NAMESPACE and one["metadata"]["name"] != "kube-root-ca.crt")
    ]
    return {one["metadata"]["name"] for one in marked} - {"default"}


def test_a_preview_shows_every_object_and_makes_none(stack: Stack, cluster: Cluster) -> None:
    output = stack.pulumi("preview", "--diff")
    assert "+ 16 to create" in output
    assert f"DaemonSet {NAMESPACE}/dcgm-exporter" in output and "gpus   : 16" in output
    assert PASSWORD not in output
    assert cluster.api.read("v1", "Namespace", NAMESPACE) is None


def test_the_exporter_runs_on_the_gpu_nodes_and_the_agent_on_all(stack: Stack, installation: str, cluster: Cluster) -> None:
    assert "16 created" in installation and PASSWORD not in installation
    # Helm waits for all pods but one: a rolling update may have so many unavailable.
    ready = lambda: [daemon_set(cluster, name)["status"]["numberReady"] for name in ("dcgm-exporter", "alloy")]  # noqa: E731
    cluster.wait_for("the pods", lambda: ready() == [2, 3], shown=ready)
    secret = cluster.api.read("v1", "Secret", "gpu-fleet", NAMESPACE)
    assert set(secret["data"]) == {"metrics-username", "metrics-password"}
    assert PASSWORD not in (stack.directory / "state").joinpath(".pulumi/stacks/gpu-fleet/cluster.json").read_text()


@pytest.mark.usefixtures("installation")
def test_the_second_run_and_a_refresh_change_nothing(stack: Stack, cluster: Cluster) -> None:
    found = toolchain.located("pulumi-resource-kubernetes")
    if found and found.how == "go":
        # Before 4.30 the plugin lost empty lists among the values (pulumi-kubernetes #4269): the chart's own default, SYS_ADMIN,
        # stood in the cluster. The program finds that as drift and reverts it; nothing else may differ.
        assert "SYS_ADMIN" in json.dumps(daemon_set(cluster))
        assert "~ 1 updated" in stack.up("--refresh")
    assert "SYS_ADMIN" not in json.dumps(daemon_set(cluster))
    assert re.search(r"Resources:\s+16 unchanged\s+Duration:", stack.up_unchanged())


def test_a_change_of_the_stack_file_or_of_a_chart_under_its_version_is_seen_in_the_objects_before_it_is_made(
    stack: Stack, section: dict[str, Any], cluster: Cluster
) -> None:
    stack.config["dcgm"] = {"counters": "profiling"}
    stack.write()
    template = stack.directory / "charts/sources/alloy/templates/all.yaml"
    as_it_was = template.read_text()
    added = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: added-later, namespace: {{ .Release.Namespace }}}\n"
    template.write_text(f"{as_it_was.rstrip()}\n{added}")
    try:
        chart(stack.directory, "alloy")
        output = stack.pulumi("preview", "--diff")
        assert "~ description" in output and "ConfigMap added-later" in output.replace(f"{NAMESPACE}/", "")
        assert "SYS_ADMIN" in output and "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" in output
        assert cluster.api.read("v1", "ConfigMap", "added-later", NAMESPACE) is None, "a preview changes nothing"
        assert "SYS_ADMIN" not in json.dumps(daemon_set(cluster))
        assert "4 updated" in stack.up(), "two releases, and the objects of each as text"
        assert cluster.api.read("v1", "ConfigMap", "added-later", NAMESPACE), "what `up` reported must exist in the cluster"
        assert "SYS_ADMIN" in json.dumps(daemon_set(cluster))
    finally:
        template.write_text(as_it_was)
        chart(stack.directory, "alloy")
    stack.up()
    assert cluster.api.read("v1", "ConfigMap", "added-later", NAMESPACE) is None


def test_an_upgrade_that_does_not_come_up_is_rolled_back(stack: Stack, section: dict[str, Any], cluster: Cluster) -> None:
    before = daemon_set(cluster)["spec"]["template"]
    section["charts"]["dcgmExporter"]["values"] = {"image": {"tag": "missing"}}
    section["timeout"] = 15  # the way back has as long
    stack.write()
    output = stack.up(ok=False)
    assert "dependents were not updated: resource dcgm-exporter" in output and "Traceback" not in output
    assert " - " not in output.partition("Diagnostics:")[0], "what is not registered because of a failed release is not deleted"
    assert daemon_set(cluster)["spec"]["template"]["spec"]["containers"] == before["spec"]["containers"]
    section["timeout"] = 300
    del section["charts"]["dcgmExporter"]["values"]
    stack.write()
    assert re.search(r"[0-9]+ (updated|unchanged)", stack.up()), "the next run continues with the release that failed"


@pytest.mark.usefixtures("installation")
def test_manual_changes_are_found_by_a_check_and_reverted_by_the_next_run(stack: Stack, cluster: Cluster) -> None:
    live = daemon_set(cluster)
    (container,) = live["spec"]["template"]["spec"]["containers"]
    container["env"].append({"name": "BY_HAND", "value": "1"})
    cluster.api.patch(live, {"spec": {"template": {"spec": {"containers": [container]}}}})
    cluster.api.delete(identity("v1", "ConfigMap", "alloy"))
    cluster.api.delete(identity("networking.k8s.io/v1", "NetworkPolicy", "gpu-fleet"))
    output = check(stack)
    assert "ConfigMap alloy: is missing" in output and "containers[exporter].env[BY_HAND]" in output
    assert "release node-exporter" in output and "2 drift" in output
    assert re.search("object NetworkPolicy gpu-fleet +not installed", output), "no chart has it"
    assert cluster.api.read("v1", "ConfigMap", "alloy", NAMESPACE) is None, "a check changes nothing"
    stack.up("--refresh")
    assert cluster.api.read("v1", "ConfigMap", "alloy", NAMESPACE) is not None
    assert cluster.api.read("networking.k8s.io/v1", "NetworkPolicy", "gpu-fleet", NAMESPACE) is not None
    assert "BY_HAND" not in json.dumps(daemon_set(cluster)["spec"])
    cluster.wait_for("both pods", lambda: daemon_set(cluster)["status"].get("numberReady") == 2)


def identity(version: str, kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}}


def check(stack: Stack) -> str:
    done = subprocess.run(
        [stack.directory / ".venv/bin/python", "-m", "gpu_fleet.operations.check", "--stack", stack.name],
        cwd=stack.directory,
        env={**os.environ, **stack._environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_a_value_that_a_chart_does_not_have_stops_everything(stack: Stack, section: dict[str, Any]) -> None:
    section["charts"]["alloy"]["values"] = {"controler": {"replicas": 1}}
    stack.write()
    output = stack.pulumi("preview", ok=False)
    assert "gpu-fleet:kubernetes.charts.alloy.values.controler: the chart alloy has no such value" in output
    assert "did you mean controller?" in output
    assert "Traceback" not in output


def test_a_cluster_out_of_reach_stops_a_run_before_anything(stack: Stack, section: dict[str, Any]) -> None:
    section["context"] = "elsewhere"
    stack.write()
    output = stack.up(ok=False)
    assert "elsewhere" in output and "gpu-fleet:kubernetes names kubeconfig and context" in output and "Traceback" not in output


def test_with_the_options_of_the_example_and_every_other_a_second_run_and_a_refresh_change_nothing(
    stack: Stack, section: dict[str, Any], cluster: Cluster
) -> None:
    """With somebody else's operator: its kinds exist already; the rules have the labels that its Prometheus selects by."""
    example = yaml.safe_load((REPO / "examples/kubernetes/Pulumi.eu-west-serving.yaml").read_text())["config"]
    of_example = {key: value for key, value in example["gpu-fleet:kubernetes"].items() if key != "context"}
    section |= of_example
    section["charts"]["prometheusAdapter"] = {"chart": chart(stack.directory, "prometheus-adapter")}
    stack.config |= {"dcgm": example["gpu-fleet:dcgm"], "logs": {"url": "http://127.0.0.1:3100/loki/api/v1/push"}}
    crds = REPO / "lab/kubernetes/charts/kube-prometheus-stack/crds"
    cluster.apply(*(yaml.safe_load(file.read_text()) for file in crds.glob("*.yaml")))
    for kind in ("ServiceMonitor", "PrometheusRule"):
        cluster.wait_for(kind, lambda kind=kind: cluster.api.serves("monitoring.coreos.com/v1", kind))
    others = {"mig": "mixed", "dra": True, "podResources": "/var/lib/kubelet/others", "nodeSelector": {}}
    others |= {"tolerations": [{"operator": "Exists"}]}
    others |= {"prometheusOperator": "existing", "monitorLabels": {"release": "theirs"}, "sidecarDashboards": True}
    assert not others.keys() & of_example.keys(), "each option is tested as written"
    section |= others
    examples(stack.directory)
    stack.config |= {"custom": "custom", "alerts": {"rules": {"GpuTemperatureHigh": {"threshold": 88, "labels": {"team": "ml"}}}}}
    stack.write()
    stack.up()
    rules = {
        rule.get("alert"): rule
        for one in cluster.api.list("monitoring.coreos.com/v1", "PrometheusRule", NAMESPACE)
        for group in one["spec"]["groups"]
        for rule in group["rules"]
    }
    assert rules["GpuTemperatureHigh"]["expr"].endswith(">= 88") and rules["GpuTemperatureHigh"]["labels"]["team"] == "ml"
    assert "ModelServerDown" in rules
    maps = cluster.api.list("v1", "ConfigMap", NAMESPACE)
    assert "our-models" in str([one["data"] for one in maps if "grafana_dashboard" in one["metadata"].get("labels", {})])
    rule = cluster.api.read("monitoring.coreos.com/v1", "PrometheusRule", "gpu-fleet-xid", NAMESPACE)
    assert rule["metadata"]["labels"] == {"release": "theirs"}
    stack.up_unchanged()


@pytest.fixture(scope="module")
def operators(stack: Stack, installation: str) -> None:
    """The stack with both operators instead of what they bring; it stays so."""
    section = stack.config["kubernetes"]
    section |= {"gpuOperator": True, "prometheusOperator": "install", "operatorGrafana": "ClusterIP", "keepCrds": False}
    del section["charts"]["dcgmExporter"]
    section["charts"] |= {key: {"chart": chart(stack.directory, name)} for key, name in OPERATORS.items()}
    stack.write()
    stack.pulumi("config", "set", "--secret", "gpu-fleet:operatorGrafanaPassword", stdin=GRAFANA_PASSWORD)
    stack.up()


@pytest.mark.usefixtures("operators")
def test_with_the_operators_their_exporter_is_the_only_one(cluster: Cluster) -> None:
    assert daemon_set(cluster) is None, "two exporters on a node report every GPU twice"
    (monitor,) = [
        one
        for one in cluster.api.list("monitoring.coreos.com/v1", "ServiceMonitor", NAMESPACE)
        if "dcgm" in one["metadata"]["name"]
    ]
    assert monitor["spec"]["endpoints"][0]["honorLabels"] is True
    rules = cluster.api.list("monitoring.coreos.com/v1", "PrometheusRule", NAMESPACE)
    assert {"gpu-fleet-gpu", "gpu-fleet-xid", "gpu-fleet-vocabulary"} <= {rule["metadata"]["name"] for rule in rules}


@pytest.mark.usefixtures("operators")
def test_with_the_operators_a_second_run_and_a_refresh_change_nothing(stack: Stack) -> None:
    stack.up_unchanged()


@pytest.mark.usefixtures("operators")
def test_the_operators_grafana_has_the_password_of_the_stack_file(stack: Stack, cluster: Cluster) -> None:
    grafana = cluster.api.read("apps/v1", "Deployment", "kube-prometheus-stack-grafana", NAMESPACE)
    (container,) = grafana["spec"]["template"]["spec"]["containers"]
    keys = [entry["valueFrom"]["secretKeyRef"] for entry in container["env"]]
    assert {key["name"] for key in keys} == {"gpu-fleet"}
    data = cluster.api.read("v1", "Secret", "gpu-fleet", NAMESPACE)["data"]
    assert [base64.b64decode(data[key["key"]]).decode() for key in keys] == ["admin", GRAFANA_PASSWORD]
    assert GRAFANA_PASSWORD not in (stack.directory / "state").joinpath(".pulumi/stacks/gpu-fleet/cluster.json").read_text()


@pytest.mark.usefixtures("operators")
def test_without_the_section_nothing_is_left(stack: Stack, cluster: Cluster) -> None:
    stack.destroy()
    cluster.wait_for("the namespace to go", lambda: cluster.api.read("v1", "Namespace", NAMESPACE) is None)
    cluster.wait_for("the objects to go", lambda: not ours(cluster), shown=lambda: ours(cluster))

    def crds() -> list[str]:
        names = [one["metadata"]["name"] for one in cluster.api.list("apiextensions.k8s.io/v1", "CustomResourceDefinition")]
        return [name for name in names if name.endswith(("monitoring.coreos.com", "nvidia.com"))]

    cluster.wait_for("their kinds to go, as keepCrds is false", lambda: not crds(), shown=crds)
