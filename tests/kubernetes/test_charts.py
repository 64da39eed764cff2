"""Charts: what is in one, which values it does not know, how it renders, and the error when it cannot be fetched."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from components.kubernetes import charts
from components.kubernetes.charts import ChartError, ChartSource, chart_source, fetched
from gpu_fleet import toolchain
from gpu_fleet.stackfile.kubernetes import Chart as ChartSection
from tests.kubernetes.chart_files import chart_file

VALUES = """\
image: {repository: r.example/x, tag: "1"}
nodeSelector: {}
securityContext: {runAsUser: 0}
resources: {limits: {memory: 1Gi}}
serviceMonitor:
  enabled: false
  # scrapeLimit: 3
"""
TEMPLATE = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}, namespace: {{ .Release.Namespace }}}
data:
  image: {{ .Values.image.repository }}:{{ .Values.image.tag }}
  {{- if .Values.customMetrics }}
  metrics: {{ .Values.customMetrics | quote }}
  {{- end }}
  context: {{ toYaml .Values.securityContext | nindent 4 }}
  {{- with .Values.resources.limits }}
  limits: {{ toYaml . | nindent 4 }}
  {{- end }}
"""
SECRET = """\
apiVersion: v1
kind: Secret
metadata: {name: generated}
stringData: {password: {{ randAlphaNum 8 | quote }}}
"""
MEMBERS = {"values.yaml": VALUES, "templates/configmap.yaml": TEMPLATE, "templates/secret.yaml": SECRET}


@pytest.fixture(autouse=True)
def helm_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(toolchain.find("helm")).parent), prepend=":")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"imgae": {}}, "imgae: the chart sample has no such value; did you mean image?"),
        ({"image": {"tags": "x"}}, "image.tags: the chart sample has no such value; did you mean tag?"),
        ({"image": "r.example/x:1"}, "image: is not a mapping; the chart has repository, tag there"),
    ],
)
def test_a_value_that_the_chart_does_not_have_is_reported_with_the_nearest(values: dict, words: str, tmp_path: Path) -> None:
    found = list(chart_file(tmp_path, MEMBERS).errors(values))
    assert len(found) == 1 and found[0].startswith(words), found


def test_values_that_are_read_without_a_default_are_known(tmp_path: Path) -> None:
    chart = chart_file(tmp_path, MEMBERS)
    values = {"customMetrics": "a", "nodeSelector": {"any": "label"}, "serviceMonitor": {"scrapeLimit": 1}, "global": {"x": 1}}
    assert list(chart.errors(values)) == []


def test_values_that_a_template_hands_on_whole_are_accepted_and_those_without_effect_are_named(tmp_path: Path) -> None:
    """Published values of these charts set fields of the Kubernetes API that no values.yaml lists (NVIDIA/dcgm-exporter 484)."""
    chart = chart_file(tmp_path, MEMBERS)
    context = {"privileged": True, "seccompProfile": {"type": "RuntimeDefault"}, "runAsUsers": 1}
    values = {"securityContext": context, "resources": {"limits": {"nvidia.com/gpu": 0, "memory": None}}}
    assert list(chart.errors(values)) == [] and chart.unread(values) == []
    values = {"serviceMonitor": {"interval": "15s"}, "x-anchors": {"a": 1}}
    assert list(chart.errors(values)) == [], "Helm accepts them"
    assert [path for path, _ in chart.unread(values)] == [("serviceMonitor", "interval"), ("x-anchors",)]


def test_values_of_a_subchart_are_those_below_its_name_or_alias(tmp_path: Path) -> None:
    metadata = "apiVersion: v2\nname: sample\nversion: 1.0.0\ndependencies: [{name: sub, version: 1.0.0, alias: under}]\n"
    chart = chart_file(tmp_path, {**MEMBERS, "Chart.yaml": metadata, "charts/sub/values.yaml": "replicas: 1\n"})
    assert list(chart.errors({"under": {"replicas": 2}})) == []
    assert next(chart.errors({"under": {"replica": 2}})).startswith("under.replica: ")


def test_the_charts_schema_is_kept(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"image": {"properties": {"tag": {"type": "string"}}}}}
    chart = chart_file(tmp_path, {**MEMBERS, "values.schema.json": json.dumps(schema)})
    assert list(chart.errors({"image": {"tag": 1}})) == ["image.tag: 1 is not of type 'string'"]


def test_a_bare_equals_sign_is_text_as_for_helm(tmp_path: Path) -> None:
    """Alertmanager's CRDs and configurations are full of them."""
    chart = chart_file(tmp_path, {"values.yaml": "matcher: =\n", "templates/a.yaml": "a: {{ .Values.matcher | quote }}"})
    assert chart.values == {"matcher": "="}


def test_a_chart_renders_as_helm_would_apply_it(tmp_path: Path) -> None:
    manifest = chart_file(tmp_path, MEMBERS).render("dcgm", "gpus", {"image": {"tag": "2"}, "customMetrics": "a {{ b }}"})
    assert "image: r.example/x:2" in manifest and "namespace: gpus" in manifest
    assert 'metrics: "a {{ b }}"' in manifest, "values are not templates"


def test_a_chart_that_does_not_render_is_reported_in_helms_words(tmp_path: Path) -> None:
    chart = chart_file(tmp_path, {"templates/a.yaml": '{{ fail "give me a name" }}'})
    with pytest.raises(ChartError, match=r"sample-1.0.0.tgz does not render with these values: .*give me a name"):
        chart.render("a", "b", {})


def test_a_file_that_is_not_a_chart_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "x.tgz"
    file.write_text("hello")
    with pytest.raises(ChartError, match=r"x\.tgz is not a chart"):
        list(fetched(ChartSource(name="x", reference=str(file), version="")).errors({}))


def test_a_chart_that_cannot_be_fetched_is_reported_with_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = ChartSource(name="alloy", reference="alloy", version="1.11.1", repository="http://127.0.0.1:9/charts")
    with pytest.raises(ChartError, match=r"chart alloy 1\.11\.1 of http://127\.0\.0\.1:9/charts cannot be fetched .*refused"):
        fetched(source)
    assert list(tmp_path.rglob("*.tgz")) == [] and not list((tmp_path / "gpu-fleet/charts").iterdir()), "no half chart stays"


def test_a_fetched_chart_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = ChartSource(name="a", reference="a", version="1.0.0", repository="http://127.0.0.1:9")
    kept = tmp_path / "gpu-fleet/charts/http-127.0.0.1-9-a-1.0.0"
    kept.mkdir(parents=True)
    chart_file(kept, MEMBERS)
    assert fetched(source).metadata["version"] == "1.0.0"


def test_a_chart_that_is_not_the_pinned_one_is_refused_before_anything_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repository or a mirror that serves another archive under the version, or somebody who wrote into the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = ChartSource(name="a", reference="a", version="1.0.0", repository="http://127.0.0.1:9", sha256="0" * 64)
    kept = tmp_path / "gpu-fleet/charts/http-127.0.0.1-9-a-1.0.0"
    kept.mkdir(parents=True)
    given = chart_file(kept, MEMBERS).sha256
    with pytest.raises(
        ChartError, match=f"not the one that gpu_fleet/toolchain/versions.yaml pins: found sha256 {given}, expected 0000"
    ):
        fetched(source)
    assert fetched(replace(source, sha256=given)).sha256 == given


def test_without_helm_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ChartError, match="make preview"):
        chart_file(tmp_path, MEMBERS).render("a", "b", {})


def test_a_chart_comes_from_upstream_a_mirror_a_registry_or_a_file(tmp_path: Path) -> None:
    def source(**section: str) -> ChartSource:
        return chart_source("alloy", ChartSection.model_validate(section), tmp_path)

    pinned = source()
    assert pinned.repository.startswith("https://") and pinned.version and pinned.reference == "alloy"
    mirrored = source(repository="https://mirror.example.com")
    assert mirrored.repository == "https://mirror.example.com" and mirrored.sha256 == pinned.sha256, (
        "a mirror has the same archive"
    )
    assert pinned.sha256 and source(version="9.9.9").sha256 is None
    assert source(chart="oci://r.example/charts/alloy").reference == "oci://r.example/charts/alloy"
    assert source(chart="oci://r.example/charts/alloy", version="9.9.9").version == "9.9.9"
    assert source(chart="charts/a.tgz").reference == str(tmp_path / "charts/a.tgz")


def test_helm_4_on_the_path_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helm = tmp_path / "helm"
    helm.write_text("#!/bin/sh\necho v4.0.1\n")
    helm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    chart = chart_file(tmp_path, {"templates/a.yaml": "a: 1\n"})
    charts._require_helm_3.cache_clear()
    try:
        with pytest.raises(ChartError, match=r"helm on the PATH is v4\.0\.1; expected Helm 3"):
            chart.render("r", "n", {})
    finally:
        charts._require_helm_3.cache_clear()
