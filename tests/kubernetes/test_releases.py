"""What a cluster gets as Helm releases: the objects that a preview shows, and what makes a release a changed one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from components.kubernetes.charts import ChartSource
from components.kubernetes.releases import Release, releases, warning_of_unverified
from gpu_fleet import toolchain
from gpu_fleet.stackfile.kubernetes import Charts
from lab.kubernetes.chart_packages import package
from tests.kubernetes.chart_files import chart_file
from tests.kubernetes.plans import plan

# As Grafana's chart does without an existing Secret: a password of its own in every rendering, and its sum on the pods.
GENERATES_A_PASSWORD = """\
{{- $password := randAlphaNum 40 }}
apiVersion: v1
kind: Secret
metadata: {name: generated}
stringData: {password: {{ $password | quote }}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: grafana}
spec:
  template:
    metadata: {annotations: {checksum/secret: {{ $password | sha256sum | quote }}, checksum/config: abc}}
"""
ONLY_ALLOY = {"exporter": "existing", "nodeExporter": "none", "kubeStateMetrics": "none"}


@pytest.fixture(autouse=True)
def helm_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(toolchain.find("helm")).parent), prepend=":")


def alloy_of(file: Path) -> Release:
    (release,) = releases(plan(**ONLY_ALLOY, charts={"alloy": {"chart": str(file)}}), file.parent)
    return release


def chart_that_takes_our_values(directory: Path, template: str) -> Path:
    values = "{image: {}, crds: {}, alloy: {}, rbac: {}, controller: {}, serviceMonitor: {}}\n"
    return chart_file(directory, {"values.yaml": values, "templates/all.yaml": template}, "alloy").file


def test_objects_of_a_chart_that_generates_a_password_are_the_same_in_every_run(tmp_path: Path) -> None:
    file = chart_that_takes_our_values(tmp_path, GENERATES_A_PASSWORD)
    first, second = alloy_of(file), alloy_of(file)
    assert first.objects == second.objects, "every run would show a change, and make none"
    deployment = first.objects["Deployment grafana"]
    assert "checksum/secret: (not shown)" in deployment and "checksum/config: abc" in deployment


def test_another_file_of_the_same_version_is_another_description_of_the_release(tmp_path: Path) -> None:
    file = chart_that_takes_our_values(tmp_path, "# as it was\n")
    before = alloy_of(file).description
    assert before is not None and alloy_of(file).description == before, "the same file is the same release"
    chart_that_takes_our_values(tmp_path, "# changed\n")
    assert alloy_of(file).description != before, "Pulumi's provider compares nothing else that differs between them"


def test_a_chart_of_a_repository_is_described_by_its_version_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = tmp_path / "gpu-fleet/charts/http-127.0.0.1-9-alloy-1.99.0"
    kept.mkdir(parents=True)
    package("alloy", kept)
    section = {**ONLY_ALLOY, "charts": {"alloy": {"repository": "http://127.0.0.1:9", "version": "1.99.0"}}}
    (release,) = releases(plan(**section), tmp_path)
    assert release.description is None and release.source.version == "1.99.0"


def test_a_chart_whose_content_is_not_known_is_named_in_a_warning(tmp_path: Path) -> None:
    file = alloy_of(chart_that_takes_our_values(tmp_path, "# empty\n"))
    source = ChartSource(name="alloy", reference="alloy", version="1.99.0", repository="https://charts.example.com")
    unknown, pinned = (replace(file, source=replace(source, sha256=sha256)) for sha256 in (None, "0" * 64))
    warning = warning_of_unverified([file, unknown, pinned])
    assert warning.startswith(
        "Helm charts that are not verified: alloy 1.99.0 of https://charts.example.com. gpu_fleet/toolchain/"
    )
    assert warning_of_unverified([file, pinned]) == ""


def test_alloy_scrapes_an_installed_exporter_under_the_name_of_its_workload_and_another_by_kind(tmp_path: Path) -> None:
    """The names are those that the charts render: values of the stack file change them."""

    def controllers(**section: object) -> dict[str, str]:
        names = ("alloy", "dcgm-exporter", "gpu-operator", "kube-state-metrics", "node-exporter")
        charts: dict[str, dict[str, object]] = {name: {"chart": str(package(name, tmp_path))} for name in names}
        charts["dcgm-exporter"]["values"] = {"fullnameOverride": "gpus"}
        aliases = {name: str(Charts.model_fields[name.replace("-", "_")].alias) for name in names}
        made = releases(plan(**section, charts={aliases[name]: charts[name] for name in names}), tmp_path)
        (alloy,) = (release for release in made if release.name == "alloy")
        variables = {one["name"]: one.get("value", "") for one in alloy.values["alloy"]["extraEnv"]}
        ours = {name: text for name, text in variables.items() if name.endswith("_CONTROLLERS")}
        return {name.removeprefix("GPU_FLEET_").removesuffix("_CONTROLLERS"): text for name, text in ours.items()}

    assert controllers() == {
        "GPU_EXPORTER": "DaemonSet;gpus",
        "NODE_EXPORTER": "DaemonSet;node-exporter-prometheus-node-exporter",
        "STATE_METRICS": "ReplicaSet;kube-state-metrics-[a-z0-9]+",
    }
    assert controllers(gpuOperator=True)["GPU_EXPORTER"] == "DaemonSet;nvidia-dcgm-exporter"
    existing = controllers(exporter="existing", kubeStateMetrics="existing")
    assert (existing["GPU_EXPORTER"], existing["STATE_METRICS"]) == ("(DaemonSet);.*", "(ReplicaSet|StatefulSet);.*")
