"""What the charts are given for what the stack file says."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
import yaml

from components.kubernetes import values
from components.kubernetes.alloy_config import alloy_config
from components.kubernetes.values import merged
from gpu_fleet import toolchain
from gpu_fleet.host.part import ROOTFS
from tests.kubernetes.chart_files import chart_file
from tests.kubernetes.plans import MIMIR, plan


def exporter(**section: object) -> dict:
    return values.dcgm_exporter(plan(**section))


def collected(**section: object) -> set[str]:
    """The fields that dcgm-exporter reads in its list of counters, where each has a type and a help text."""
    lines = [line.split(",") for line in exporter(**section)["customMetrics"].splitlines() if line and not line.startswith("#")]
    assert all(len(line) >= 3 for line in lines)
    return {line[0] for line in lines}


def test_a_cluster_collects_what_hosts_collect() -> None:
    on_hosts = (ROOTFS / "etc/dcgm-exporter/standard.csv").read_text().splitlines()
    assert collected() == {line.partition(",")[0] for line in on_hosts if line and not line.startswith("#")}
    assert collected(dcgm="profiling") - collected() >= {"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"}


def test_another_list_of_counters_restarts_the_exporter() -> None:
    """It is mounted by subPath, which never changes in a running pod."""
    assert exporter()["podAnnotations"] != exporter(dcgm="profiling")["podAnnotations"]


def test_sys_admin_is_for_profiling_alone() -> None:
    assert exporter()["securityContext"]["capabilities"] == {"add": [], "drop": ["ALL"]}
    assert exporter(dcgm="profiling")["securityContext"]["capabilities"]["add"] == ["SYS_ADMIN"]


def test_images_of_the_exporter_and_the_agent_are_the_pinned_ones_by_their_digests() -> None:
    image = exporter()["image"]
    assert image["repository"] == "nvcr.io/nvidia/k8s/dcgm-exporter" and "@sha256:" in image["tag"]
    operator = values.gpu_operator(plan(gpuOperator=True))["dcgmExporter"]
    assert (operator["repository"], operator["image"]) == ("nvcr.io/nvidia/k8s", "dcgm-exporter")
    assert operator["version"].startswith("sha256:")
    assert values.alloy(plan())["image"]["digest"].startswith("sha256:")


MACHINES = {"kubernetes.io/os": "In", "eks.amazonaws.com/compute-type": "NotIn", "type": "NotIn"}


def test_agents_that_tolerate_every_taint_leave_nodes_out_that_are_no_linux_machines() -> None:
    """On Fargate, virtual and Windows nodes their pods would wait for ever, and the release with them."""
    for of_agent in (values.alloy(plan())["controller"], values.node_exporter(plan())):
        assert of_agent["tolerations"] == [{"operator": "Exists"}]
        [term] = of_agent["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert {one["key"]: one["operator"] for one in term["matchExpressions"]} == MACHINES


def test_the_exporter_goes_where_the_gpus_are() -> None:
    assert exporter()["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    terms = exporter()["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    found = {expression["key"]: expression["operator"] for term in terms for expression in term["matchExpressions"]}
    assert found == {
        "nvidia.com/gpu.present": "In",
        "feature.node.kubernetes.io/pci-10de.present": "In",
        "cloud.google.com/gke-accelerator": "Exists",
        **MACHINES,
    }
    chosen = exporter(nodeSelector={"pool": "gpu"}, tolerations=[{"key": "pool", "operator": "Equal", "value": "gpu"}])
    assert chosen["nodeSelector"] == {"pool": "gpu"} and "affinity" not in chosen
    assert chosen["tolerations"] == [{"key": "pool", "operator": "Equal", "value": "gpu"}]
    everywhere = exporter(nodeSelector={})
    assert "affinity" not in everywhere and "nodeSelector" not in everywhere


def test_only_the_labels_of_pods_that_are_named_become_labels_of_series() -> None:
    assert exporter()["kubernetes"] == {"enablePodLabels": False, "podLabelAllowlistRegex": []}
    assert exporter(podLabels=["^app$"])["kubernetes"] == {"enablePodLabels": True, "podLabelAllowlistRegex": ["^app$"]}
    operator = values.gpu_operator(plan(gpuOperator=True, podLabels=["^app$"]))["dcgmExporter"]
    assert operator["enablePodLabels"] and operator["podLabelAllowlistRegex"] == ["^app$"]


def test_mig_and_dra_are_switches() -> None:
    assert exporter(dra=True)["kubernetesDRA"] == {"enabled": True}
    assert "extraEnv" not in exporter() and exporter(mig="mixed")["extraEnv"][0]["name"] == "DCGM_EXPORTER_DEVICES_STR"
    operator = values.gpu_operator(plan(gpuOperator=True, mig="single", dra=True))
    assert operator["mig"] == {"strategy": "single"}
    assert {"name": "KUBERNETES_ENABLE_DRA", "value": "true"} in operator["dcgmExporter"]["env"]


@pytest.mark.parametrize("given", [values.dcgm_exporter(plan(prometheusOperator="existing", monitorLabels={"release": "prom"}))])
def test_a_service_monitor_leaves_pods_their_labels(given: dict) -> None:
    monitor = given["serviceMonitor"]
    assert monitor["honorLabels"] is True, "without it pod, namespace and container are those of the exporter"
    assert monitor["additionalLabels"] == {"release": "prom"}, "the operator's Prometheus selects by it"
    fixed = {rule["targetLabel"]: rule.get("replacement") for rule in monitor["relabelings"]}
    assert fixed == {
        "instance": None,
        "datacenter": "us-west",
        "cluster": "training",
        "exporter_mode": "dcgm-exporter",
        "job": "gpu-exporter",
    }


def test_without_an_operator_there_is_no_service_monitor() -> None:
    assert exporter()["serviceMonitor"] == {"enabled": False}
    assert values.gpu_operator(plan(gpuOperator=True))["dcgmExporter"]["serviceMonitor"] == {"enabled": False}


def test_the_operators_prometheus_takes_every_monitor_and_pushes_with_our_labels() -> None:
    stack = values.kube_prometheus_stack(plan(prometheusOperator="install"))
    spec = stack["prometheus"]["prometheusSpec"]
    assert spec["serviceMonitorSelectorNilUsesHelmValues"] is False and spec["ruleSelectorNilUsesHelmValues"] is False
    assert spec["externalLabels"] == {"datacenter": "us-west", "cluster": "training"}
    (write,) = spec["remoteWrite"]
    assert write["url"] == MIMIR["url"] and write["headers"] == {"X-Scope-OrgID": "us-west"}
    assert write["basicAuth"]["password"] == {"name": "gpu-fleet", "key": "metrics-password"}, "no password in the values"
    assert stack["grafana"] == {"enabled": False}
    exposed = values.kube_prometheus_stack(plan(prometheusOperator="install", operatorGrafana="NodePort"))
    assert exposed["grafana"]["enabled"] and exposed["grafana"]["service"] == {"type": "NodePort"}
    assert exposed["grafana"]["admin"]["existingSecret"] == "gpu-fleet", "a chart that makes the password up does so in every run"


def test_alloy_scrapes_only_where_no_operator_does() -> None:
    alone, beside = values.alloy(plan()), values.alloy(plan(prometheusOperator="existing"))
    assert "gpu-exporter" in alone["alloy"]["configMap"]["content"]
    assert "gpu-exporter" not in beside["alloy"]["configMap"]["content"]
    assert "NVRM: Xid" in beside["alloy"]["configMap"]["content"], "the kernel log is read in any case"


def test_alloy_knows_its_node_and_takes_passwords_from_the_secret() -> None:
    given = values.alloy(plan(podLogs=["jobs", "batch"]))
    environment = {one["name"]: one for one in given["alloy"]["extraEnv"]}
    assert environment["GPU_FLEET_INSTANCE"]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert environment["GPU_FLEET_POD_LOG_NAMESPACES"]["value"] == "jobs,batch"
    assert not [name for name in environment if "PASSWORD" in name]
    assert {"name": "secrets", "secret": {"secretName": "gpu-fleet"}} in given["controller"]["volumes"]["extra"]
    without = values.alloy(plan(metrics={"url": MIMIR["url"]}))
    assert "secrets" not in [volume["name"] for volume in without["controller"]["volumes"]["extra"]]


def test_alloy_may_read_no_secret_of_the_cluster() -> None:
    rbac = values.alloy(plan())["rbac"]
    resources = {resource for rule in rbac["rules"] + rbac["clusterRules"] for resource in rule["resources"]}
    assert resources == {"pods", "nodes", "nodes/metrics"}


def test_configuration_is_no_template_of_helm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alloy's chart renders it as one; what comes out is what went in."""
    monkeypatch.setenv("PATH", str(toolchain.find("helm").parent), prepend=":")
    config = values.alloy(plan())["alloy"]["configMap"]["content"]
    template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  config: {{ tpl .Values.config . | b64enc }}\n"
    chart = chart_file(tmp_path, {"values.yaml": "config: ''", "templates/a.yaml": template})
    manifest = yaml.safe_load(chart.render("a", "b", {"config": config + values._as_helm_literal("// {{ b }}")}))
    section = plan()
    expected = alloy_config(section.section, section.metrics, section.logs) + "// {{ b }}"
    assert base64.b64decode(manifest["data"]["config"]).decode() == expected


def test_the_adapter_asks_mimir_for_this_cluster_alone() -> None:
    given = values.prometheus_adapter(plan(customMetrics="install"))
    assert given["prometheus"] == {"url": "https://mimir.example.com/prometheus", "port": 0, "path": ""}
    assert "--prometheus-header=X-Scope-OrgID=us-west" in given["extraArguments"]
    rules = given["rules"]["custom"]
    assert [rule["name"]["as"] for rule in rules] == ["gpu_utilization", "gpu_tensor_activity", "gpu_memory_used_bytes"]
    assert all('datacenter="us-west",cluster="training"' in rule["metricsQuery"] for rule in rules)


def test_a_users_values_win_and_lists_are_replaced_as_helm_does() -> None:
    assert merged({"a": {"b": 1, "c": [1, 2]}}, {"a": {"c": [3]}, "d": 4}) == {"a": {"b": 1, "c": [3]}, "d": 4}


@pytest.mark.parametrize(
    ("section", "program", "anywhere"),
    [
        ({}, "alloy", False),
        ({"prometheusOperator": "install"}, "prometheus", False),
        ({"prometheusOperator": "existing"}, "prometheus", True),
    ],
)
def test_only_the_scraper_may_connect_to_exporters_and_agents(section: dict, program: str, anywhere: bool) -> None:
    (policy,) = values.network_policies(plan(**section))
    (rule,) = policy["spec"]["ingress"]
    (peer,) = rule["from"]
    assert (
        peer["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": program}} and ("namespaceSelector" in peer) is anywhere
    )
    (selected,) = policy["spec"]["podSelector"]["matchExpressions"]
    assert {"alloy", "dcgm-exporter", "kube-state-metrics"} <= set(selected["values"]) and policy["spec"]["policyTypes"] == [
        "Ingress"
    ]
    names = [policy["name"] for policy in values.network_policies(plan(gpuOperator=True, **section))]
    assert names == ["gpu-fleet", "gpu-fleet-operator"], "the operator's exporter has other labels"


def test_the_agent_has_no_capability_and_the_node_exporter_one_address() -> None:
    given = values.alloy(plan())["alloy"]["securityContext"]
    assert given["capabilities"] == {"drop": ["ALL"]} and given["allowPrivilegeEscalation"] is False
    assert values.node_exporter(plan())["service"] == {"listenOnAllInterfaces": False}


def test_exporters_are_scraped_in_our_namespace_and_existing_ones_also_where_the_stack_file_says() -> None:
    def namespaces(**section: object) -> dict[str, str]:
        environment = values.alloy(plan(**section))["alloy"]["extraEnv"]
        return {one["name"]: one["value"] for one in environment if one["name"].endswith("_NAMESPACES")}

    assert set(namespaces(namespace="gpus").values()) == {"gpus"}
    existing = namespaces(namespace="gpus", exporter="existing", exporterNamespaces=["nvidia"])
    assert existing["GPU_FLEET_GPU_EXPORTER_NAMESPACES"] == "gpus|nvidia"
    assert existing["GPU_FLEET_NODE_EXPORTER_NAMESPACES"] == "gpus", "that one is ours"


def intervals_s(config: str) -> list[int]:
    return sorted(int(seconds) for seconds in re.findall(r'scrape_interval\s*=\s*"(\d+)s"', config))


def test_alloy_scrapes_in_the_interval_of_the_stack_file_and_some_things_less_often() -> None:
    def config(**given: int) -> str:
        return values.alloy(plan(readiness={}, **given))["alloy"]["configMap"]["content"]

    usual, kube_state, kubelet = 15, 30, 60
    assert set(intervals_s(config())) == {usual, kube_state, kubelet}
    assert set(intervals_s(config(scrape_interval_s=30))) == {30, kubelet}
    assert set(intervals_s(config(scrape_interval_s=60))) == {60}


def test_so_does_the_prometheus_of_an_operator() -> None:
    def monitored(interval_s: int) -> dict[str, str | None]:
        of = plan(readiness={}, exporter="existing", prometheusOperator="existing", scrape_interval_s=interval_s)
        ours = plan(prometheusOperator="existing", scrape_interval_s=interval_s)
        pods = {one["metadata"]["name"]: one["spec"]["podMetricsEndpoints"][0]["interval"] for one in values.monitors(of)}
        return pods | {
            "dcgm": values.dcgm_exporter(ours)["serviceMonitor"]["interval"],
            "operator's dcgm": values.gpu_operator(ours)["dcgmExporter"]["serviceMonitor"]["interval"],
            "alloy": values.alloy(ours)["serviceMonitor"]["interval"],
            "nodes": values.node_exporter(ours)["prometheus"]["monitor"].get("interval"),
            "state": values.kube_state_metrics(ours)["prometheus"]["monitor"]["http"].get("interval"),
        }

    by_itself = {"nodes": None, "state": None}  # every 30 s
    assert monitored(15) == {**dict.fromkeys(monitored(15), "15s"), **by_itself}
    assert monitored(30) == {**dict.fromkeys(monitored(30), "30s"), **by_itself}
    assert set(monitored(60).values()) == {"60s"}
