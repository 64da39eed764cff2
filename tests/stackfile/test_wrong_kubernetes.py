"""Errors in the section `kubernetes`: each reported once, where it is, with a fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_fleet.stackfile.config import StackConfig
from tests.stackfile.stacks import REMOVED, problems, stack

LOKI = {"url": "https://loki.example.com/loki/api/v1/push"}

# What is wrong, changes to a good stack, the key that is reported, words of the message.
WRONG = [
    ("unknown key", {"kubernetes": {"contxt": "a"}}, "contxt", "did you mean 'context'"),
    ("namespace", {"kubernetes": {"namespace": "GPU_fleet"}}, "namespace", "lower-case letters"),
    ("unknown mode", {"kubernetes": {"prometheusOperator": "yes"}}, "prometheusOperator", "none, install or existing"),
    ("kubeconfig does not exist", {"kubernetes": {"kubeconfig": "nowhere"}}, "kubeconfig", "does not exist"),
    ("two exporters", {"kubernetes": {"gpuOperator": True, "exporter": "existing"}}, "exporter", "one exporter per node"),
    (
        "values of an exporter that the operator installs",
        {"kubernetes": {"gpuOperator": True, "charts": {"dcgmExporter": {"values": {"hostPID": True}}}}},
        "charts.dcgmExporter",
        "through charts.gpuOperator, never both",
    ),
    (
        "values of a chart that is not installed",
        {"kubernetes": {"charts": {"prometheusAdapter": {"version": "5.0.0"}}}},
        "charts.prometheusAdapter",
        "customMetrics is none",
    ),
    (
        "values of an existing exporter",
        {"kubernetes": {"nodeExporter": "existing", "charts": {"nodeExporter": {"version": "4.56.1"}}}},
        "charts.nodeExporter",
        "nodeExporter is existing",
    ),
    (
        "labels that nothing selects by",
        {"kubernetes": {"monitorLabels": {"release": "a"}}},
        "monitorLabels",
        "prometheusOperator: existing",
    ),
    (
        "Grafana without the operator",
        {"kubernetes": {"operatorGrafana": "NodePort"}},
        "operatorGrafana",
        "prometheusOperator: install",
    ),
    (
        "logs without Loki",
        {"logs": REMOVED, "kubernetes": {"podLogs": ["jobs"]}},
        "gpu-fleet:logs",
        "kubernetes.podLogs collects",
    ),
    ("a label that is no text", {"kubernetes": {"nodeSelector": {"gpu": True}}}, "nodeSelector.gpu", "in quotes"),
    ("a chart by its name", {"kubernetes": {"charts": {"alloy": {"chart": "alloy"}}}}, "charts.alloy.chart", ".tgz"),
    (
        "a chart that does not exist",
        {"kubernetes": {"charts": {"alloy": {"chart": "a.tgz"}}}},
        "charts.alloy.chart",
        "does not exist",
    ),
    ("a range of versions", {"kubernetes": {"charts": {"alloy": {"version": "^1.0"}}}}, "charts.alloy.version", "not a range"),
    (
        "two sources of a chart",
        {"kubernetes": {"charts": {"alloy": {"chart": "oci://a/b", "repository": "https://charts.example.com"}}}},
        "charts.alloy.repository",
        "remove one of them",
    ),
    ("no regular expression", {"kubernetes": {"podLabels": ["("]}}, "podLabels[0]", "not a regular expression"),
    (
        "a value that nothing compares",
        {"kubernetes": {"tolerations": [{"key": "gpu", "value": "a"}]}},
        "tolerations[0].value",
        "operator: Exists",
    ),
    (
        "readiness without a cluster",
        {"readiness": {"kubernetes": "taint"}},
        "gpu-fleet:readiness.kubernetes",
        "the stack has no Kubernetes cluster",
    ),
    (
        "an image without a cluster",
        {"readiness": {"image": f"registry.example.com/python@sha256:{'0' * 64}"}},
        "gpu-fleet:readiness.image",
        "the stack has no Kubernetes cluster",
    ),
    (
        "an image that may change",
        {"kubernetes": {}, "readiness": {"image": "registry.example.com/python:3"}},
        "gpu-fleet:readiness.image",
        "registry/repository@sha256:digest",
    ),
    (
        "readiness from a store that is not known to answer",
        {"kubernetes": {}, "readiness": {}, "metrics": {"url": "https://receive.example.com/api/v1/receive"}},
        "gpu-fleet:metrics.queryUrl",
        "the readiness of Kubernetes nodes",
    ),
    ("effect", {"kubernetes": {"tolerations": [{"key": "gpu", "effect": "Never"}]}}, "tolerations[0].effect", "NoSchedule"),
]


@pytest.mark.parametrize(("what", "changes", "where", "words"), WRONG, ids=[case[0] for case in WRONG])
def test_an_error_is_reported_once_where_it_is(what: str, changes: dict, where: str, words: str, base: Path) -> None:
    errors = problems(stack(**changes), base)
    assert errors is not None, f"{what} was accepted"
    where = where if where.startswith("gpu-fleet:") else f"gpu-fleet:kubernetes.{where}"
    assert [problem.where for problem in errors.problems] == [where], str(errors)
    assert words in str(errors)


def test_all_errors_are_reported_at_once(base: Path) -> None:
    section = {"namespace": "A", "podLabels": ["("], "charts": {"alloy": {"chart": "x", "version": "latest"}}}
    errors = problems(stack(kubernetes=section), base)
    assert errors is not None and len(errors.problems) == 4


def test_a_cluster_needs_a_name_and_somewhere_to_send_to(base: Path) -> None:
    errors = problems({"kubernetes": {}}, base)
    assert errors is not None
    assert [problem.where for problem in errors.problems] == ["gpu-fleet:cluster", "gpu-fleet:datacenter", "gpu-fleet:metrics"]


def test_the_kubeconfig_is_a_file_or_a_secret(base: Path) -> None:
    (base / "kubeconfig").write_text("apiVersion: v1\n")
    errors = problems(stack(kubernetes={"kubeconfig": "kubeconfig"}), base, {"kubeconfig"})
    assert errors is not None and [problem.where for problem in errors.problems] == ["gpu-fleet:kubernetes.kubeconfig"]


def test_a_kubeconfig_without_a_cluster_is_an_error(base: Path) -> None:
    errors = problems(stack(), base, {"kubeconfig"})
    assert errors is not None and [problem.where for problem in errors.problems] == ["gpu-fleet:kubernetes"]


def test_the_operators_grafana_and_its_password_go_together(base: Path) -> None:
    grafana = {"prometheusOperator": "install", "operatorGrafana": "ClusterIP"}
    errors = problems(stack(kubernetes=grafana), base)
    assert errors is not None and [problem.where for problem in errors.problems] == ["gpu-fleet:operatorGrafanaPassword"]
    assert "pulumi config set --secret gpu-fleet:operatorGrafanaPassword" in str(errors)
    assert problems(stack(kubernetes=grafana), base, {"operatorGrafanaPassword"}) is None

    errors = problems(stack(kubernetes={}), base, {"operatorGrafanaPassword"})
    assert errors is not None and [problem.where for problem in errors.problems] == ["gpu-fleet:kubernetes.operatorGrafana"]
    errors = problems(stack(), base, {"operatorGrafanaPassword"})
    assert errors is not None and [problem.where for problem in errors.problems] == ["gpu-fleet:kubernetes"]


def test_an_empty_section_is_a_cluster_as_kubectl_finds_it(base: Path) -> None:
    section = StackConfig.load(stack(kubernetes={}, logs=LOKI), base).kubernetes
    assert section is not None and section.context is None and section.namespace == "gpu-fleet"
    assert [toleration.key for toleration in section.tolerations] == ["nvidia.com/gpu"]
