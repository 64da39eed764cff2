"""`make test-alert` in a cluster with the Prometheus Operator: which Prometheus is queried, and what is refused before it starts.

The test itself runs in tests/kubernetes/test_operator_prometheus.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpu_fleet.operations import alert_path, operator_alert
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.provider.kubernetes import ClusterApi, Refused
from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.kubernetes import Kubernetes
from tests.checkout import REPO

OURS = Kubernetes.model_validate({"monitorLabels": {"release": "kps"}})
ALERTMANAGER = {"namespace": "monitoring", "name": "kps-alertmanager", "port": "http-web", "pathPrefix": "/"}
SPEC: dict[str, Any] = {
    "ruleSelector": {"matchLabels": {"release": "kps"}},
    "ruleNamespaceSelector": {},
    "alerting": {"alertmanagers": [ALERTMANAGER]},
}


class Cluster(ClusterApi):
    """Prometheus objects with these specs, in the namespace `monitoring`; ours has the label team: gpu."""

    def __init__(self, *specs: dict[str, Any], answers: dict[str, str] | None = None) -> None:
        self.specs, self.answers = specs, answers or {}

    def list(self, path: str, *, only_metadata: bool = False, **query: str) -> Any:
        assert path == "/apis/monitoring.coreos.com/v1/prometheuses"
        return ({"metadata": {"namespace": "monitoring", "name": f"p{n}"}, "spec": one} for n, one in enumerate(self.specs))

    def get(self, path: str) -> Any:
        assert path == "/api/v1/namespaces/gpu-fleet"
        return {"metadata": {"labels": {"team": "gpu"}}}

    def text(self, path: str) -> str:
        if path not in self.answers:
            raise Refused(403, "Forbidden", 'services "x" is forbidden: User "me" cannot get resource "services/proxy"')
        return self.answers[path]


def test_the_servers_are_those_of_the_prometheus_that_selects_our_rules() -> None:
    other = {**SPEC, "ruleSelector": {"matchLabels": {"release": "other"}}}
    alertmanager = {**ALERTMANAGER, "scheme": "https", "pathPrefix": "/am/"}
    chosen = {**SPEC, "routePrefix": "/prom", "portName": "http", "alerting": {"alertmanagers": [alertmanager]}}
    found = operator_alert.found_in(Cluster(other, chosen), OURS)
    assert found.url == "/api/v1/namespaces/monitoring/services/prometheus-operated:http/proxy/prom"
    assert found.alertmanager == "/api/v1/namespaces/monitoring/services/https:kps-alertmanager:http-web/proxy/am"


@pytest.mark.parametrize(
    ("changes", "is_selected"),
    [
        ({}, True),
        ({"ruleSelector": None}, False),
        ({"ruleSelector": {}}, True),
        ({"ruleSelector": {"matchExpressions": [{"key": "release", "operator": "In", "values": ["kps", "x"]}]}}, True),
        ({"ruleSelector": {"matchExpressions": [{"key": "release", "operator": "NotIn", "values": ["kps"]}]}}, False),
        ({"ruleSelector": {"matchExpressions": [{"key": "release", "operator": "DoesNotExist"}]}}, False),
        ({"ruleSelector": {"matchExpressions": [{"key": "release", "operator": "Exists"}]}}, True),
        ({"ruleNamespaceSelector": None}, False),
        ({"ruleNamespaceSelector": {"matchLabels": {"team": "gpu"}}}, True),
        ({"ruleNamespaceSelector": {"matchLabels": {"team": "web"}}}, False),
    ],
)
def test_selectors_mean_what_they_mean_to_the_operator(changes: dict[str, Any], is_selected: bool) -> None:
    cluster = Cluster({**SPEC, **changes})
    if is_selected:
        operator_alert.found_in(cluster, OURS)
        return
    with pytest.raises(OperationError, match="no Prometheus of the cluster selects our rules") as refused:
        operator_alert.found_in(cluster, OURS)
    assert "monitoring/p0: ruleSelector" in str(refused.value) and "labels of the namespace gpu-fleet: {'team': 'gpu'}" in str(
        refused.value
    )


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ((), "the cluster has no Prometheus object"),
        (({**SPEC, "alerting": None},), "the Prometheus monitoring/p0 has no Alertmanager .* Set alertmanager.enabled"),
    ],
)
def test_a_cluster_in_which_nobody_would_be_notified_is_refused(specs: tuple[dict[str, Any], ...], words: str) -> None:
    with pytest.raises(OperationError, match=words):
        operator_alert.found_in(Cluster(*specs), OURS)


def test_a_login_without_access_to_the_servers_is_told_what_it_lacks_and_rules_that_are_not_loaded_what_to_do() -> None:
    config = StackConfig.from_file(REPO / "examples/kubernetes/Pulumi.eu-central-kps.yaml")
    cluster = Cluster({**SPEC, "ruleSelector": {}})
    with pytest.raises(OperationError, match='cannot get resource "services/proxy"'):
        alert_path.prepared_for_operator(config, cluster, "critical")
    rules = "/api/v1/namespaces/monitoring/services/prometheus-operated:web/proxy/api/v1/rules?type=alert"
    cluster.answers[rules] = '{"data": {"groups": []}}'
    with pytest.raises(OperationError, match="has no rule GpuFleetTestAlert: `make up` of this stack deploys it"):
        alert_path.prepared_for_operator(config, cluster, "critical")


def test_the_operator_evaluates_only_where_the_rules_are_placed_in_the_cluster() -> None:
    example = StackConfig.from_file(REPO / "examples/kubernetes/Pulumi.eu-central-kps.yaml")
    assert alert_path.evaluated_by_operator(example)
    assert not alert_path.evaluated_by_operator(StackConfig.from_file(REPO / "examples/kubernetes/Pulumi.eu-west-serving.yaml"))
