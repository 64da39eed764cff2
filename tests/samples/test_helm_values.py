"""Every key that our values set is a key of the official chart; and the official default is what we think it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components.kubernetes import values
from components.kubernetes.charts import Chart
from components.kubernetes.values import ClusterPlan
from tests.kubernetes.chart_files import chart_file
from tests.kubernetes.plans import plan
from tests.samples.conftest import SAMPLES

HELM = SAMPLES / "helm"
STATE = HELM / "kube-state-metrics/values.yaml"
NODE = HELM / "prometheus-node-exporter/values.yaml"
EVERYTHING = {
    "podLabels": ["^app$"],
    "nodeSelector": {"gpu": "true"},
    "mig": "mixed",
    "dra": True,
    "podLogs": ["jobs"],
    "customMetrics": "install",
}
PLANS = {
    "defaults": plan(),
    "everything": plan(dcgm="profiling", **EVERYTHING),
    "operator installed": plan(prometheusOperator="install", operatorGrafana="NodePort", **EVERYTHING),
    "operator existing": plan(prometheusOperator="existing", monitorLabels={"release": "prom"}, **EVERYTHING),
}
CHARTS: dict[str, tuple[Callable[[ClusterPlan], dict[str, Any]], dict[str, Path]]] = {
    "dcgm-exporter-4.8.2": (values.dcgm_exporter, {"values.yaml": HELM / "dcgm-exporter-4.8.2/values.yaml"}),
    "gpu-operator": (values.gpu_operator, {"values.yaml": HELM / "gpu-operator-v26.7.0/values.yaml"}),
    "alloy": (values.alloy, {"values.yaml": HELM / "alloy-1.11.1/values.yaml"}),
    "node-exporter": (values.node_exporter, {"values.yaml": NODE}),
    "kube-state-metrics": (values.kube_state_metrics, {"values.yaml": STATE}),
    "kube-prometheus-stack": (
        values.kube_prometheus_stack,
        {
            "Chart.yaml": HELM / "kube-prometheus-stack-88.5.3/Chart.yaml",
            "values.yaml": HELM / "kube-prometheus-stack-88.5.3/values.yaml",
            "charts/kube-state-metrics/values.yaml": STATE,
            "charts/prometheus-node-exporter/values.yaml": NODE,
        },
    ),
    "prometheus-adapter": (values.prometheus_adapter, {"values.yaml": HELM / "prometheus-adapter/values.yaml"}),
}


def official(directory: Path, name: str) -> Chart:
    return chart_file(directory, {path: file.read_text() for path, file in CHARTS[name][1].items()}, "sample")


@pytest.mark.parametrize("of", PLANS)
@pytest.mark.parametrize("name", CHARTS)
def test_every_key_is_one_of_the_official_chart(name: str, of: str, tmp_path: Path) -> None:
    found = list(official(tmp_path, name).errors(CHARTS[name][0](PLANS[of])))
    # Grafana's own values are not among the samples; its chart has service.type.
    assert [line for line in found if not line.startswith("grafana.service")] == []


def test_keys_hold_for_the_newest_dcgm_exporter_chart_too(tmp_path: Path) -> None:
    """Its sample has no comments, and customMetrics is in one: the key is read by its template."""
    text = (HELM / "dcgm-exporter-4.8.4/values-without-comments.yaml").read_text()
    chart = chart_file(tmp_path, {"values.yaml": text, "templates/a.yaml": "{{ .Values.customMetrics }}"})
    assert [line for of in PLANS.values() for line in chart.errors(values.dcgm_exporter(of))] == []


def test_a_wrong_key_is_found_in_an_official_chart(tmp_path: Path) -> None:
    found = list(official(tmp_path, "kube-prometheus-stack").errors({"prometheus": {"prometheusSpec": {"remoteWrites": []}}}))
    assert found == [
        "prometheus.prometheusSpec.remoteWrites: the chart kube-prometheus-stack has no such value; did you mean remoteWrite?"
    ]


def test_what_we_take_away_is_what_the_official_chart_grants(tmp_path: Path) -> None:
    """SYS_ADMIN is the chart's default; where profiling is not asked for our empty list must be the one that counts."""
    chart = official(tmp_path, "dcgm-exporter-4.8.2")
    assert chart.values["securityContext"]["capabilities"]["add"] == ["SYS_ADMIN"]
    assert values.dcgm_exporter(plan())["securityContext"]["capabilities"]["add"] == []
    assert values.dcgm_exporter(plan(dcgm="profiling"))["securityContext"]["capabilities"]["add"] == ["SYS_ADMIN"]


def test_the_counters_are_mounted_where_the_arguments_read_them(tmp_path: Path) -> None:
    mounts = official(tmp_path, "dcgm-exporter-4.8.2").values["extraVolumeMounts"]
    assert values.dcgm_exporter(plan())["arguments"][-1] in [mount["mountPath"] for mount in mounts]
