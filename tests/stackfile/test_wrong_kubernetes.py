"""Errors in the section `kubernetes`: each reported once, where it is, with a fix."""

from __future__ import annotations

from pathlib import Path

from gpu_fleet.stackfile.config import StackConfig
from tests.stackfile.stacks import problems, stack

LOKI = {"url": "https://loki.example.com/loki/api/v1/push"}


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
