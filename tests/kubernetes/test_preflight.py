"""The check of a cluster before anything is installed: what it reads from a real API server, and what it reports."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_fleet.on_cluster.nodes import TAINT
from gpu_fleet.provider.kubernetes import ClusterApi, KubeconfigError, Refused, Unreachable
from gpu_fleet.provider.resources.cluster import Cluster as ClusterResource
from gpu_fleet.provider.resources.cluster import Node, Seen, _kubelets_sign_themselves, look, notes, problems
from gpu_fleet.provider.resources.resource import Call, ResourceError
from lab.kubernetes import Cluster

INPUTS: dict[str, Any] = {
    "namespace": "gpu-fleet",
    "exporter": "install",
    "nodeTerms": [{"nvidia.com/gpu.present": "true"}, {"cloud.google.com/gke-accelerator": ""}],
    "nodeExporter": "install",
    "prometheusOperator": "none",
    "releases": ["alloy"],
}
GOOD = Seen(
    version=(1, 33),
    nodes=[Node(name="gpu-1", gpus=8, labels={"nvidia.com/gpu.present": "true"}), Node(name="cpu-1", gpus=0, labels={})],
    forbidden=[],
    has_monitors=False,
    exporters={},
    node_exporters=[],
    interrupted={},
)
OPERATORS = {"the GPU Operator": ["gpu-operator/nvidia-dcgm-exporter-x on gpu-1"]}

# As GPU feature discovery labels nodes: before 0.16 in three parts, since then in one.
DRIVERS = {
    "old": {"driver-version.full": "570.26"},
    "same": {"driver-version.full": "570.86"},
    "new": {"driver-version.full": "580.65.06"},
    "longer": {"driver-version.full": "1000.10.01"},  # older than 570.86 if compared as text
    "shorter": {"driver-version.full": "99.9"},  # newer, if compared as text
    "legacy": {"driver.major": "550", "driver.minor": "54", "driver.rev": "14"},
}


def labelled(name: str, **labels: str) -> Node:
    named = {f"nvidia.com/cuda.{key}": value for key, value in labels.items()}
    return Node(name=name, gpus=8, labels={"nvidia.com/gpu.present": "true", **named})


def gpu_node(name: str, *taints: dict[str, str], **labels: str) -> Node:
    return Node(name=name, gpus=8, labels={"nvidia.com/gpu.present": "true", **labels}, taints=taints)


def taint(key: str, value: str = "", effect: str = "NoSchedule") -> dict[str, str]:
    return {"key": key, "value": value, "effect": effect}


CASES = [
    ("too old", {"version": (1, 24)}, {}, "Kubernetes 1.24 is too old"),
    (
        "may not",
        {"forbidden": ["create daemonsets.apps"]},
        {},
        "this login lacks permission to create daemonsets.apps (namespace gpu-fleet)",
    ),
    ("no CRDs", {}, {"prometheusOperator": "existing"}, "write `prometheusOperator: install`"),
    ("no GPU", {"nodes": GOOD.nodes[1:]}, {}, "no node advertises a GPU (1 nodes"),
    (
        "GPU node without the label",
        {"nodes": [Node(name="gpu-2", gpus=8, labels={"nvidia.com/gpu.present": "no"})]},
        {},
        "dcgm-exporter would not run on gpu-2",
    ),
    (
        "a driver older than the stack file wants",
        {"nodes": [*GOOD.nodes, *(labelled(name, **labels) for name, labels in DRIVERS.items())]},
        {"minDriver": "570.86"},
        "these nodes have older NVIDIA drivers: old (570.26), shorter (99.9), legacy (550.54.14). Upgrade the drivers",
    ),
    (
        "the taint of Microsoft's guide for AKS",
        {"nodes": [gpu_node("aks-gpu-1", taint("sku", "gpu"))]},
        {},
        "would not run on aks-gpu-1: they have GPUs and the taint sku=gpu:NoSchedule. If it stays there, add "
        "{key: sku, operator: Equal, value: gpu, effect: NoSchedule} to kubernetes.tolerations",
    ),
    (
        "Container-Optimized OS (NVIDIA/dcgm-exporter issue 484)",
        {"nodes": [gpu_node("gke-1", **{"cloud.google.com/gke-os-distribution": "cos"})]},
        {},
        "would find no driver on gke-1",
    ),
    (
        "k3s (NVIDIA/dcgm-exporter issue 612)",
        {"runtime_class": "nvidia"},
        {},
        "write kubernetes.charts.dcgmExporter.values: {runtimeClassName: nvidia}",
    ),
    (
        "an exporter without a known label, to scrape",
        {"unlabelled_exporters": ["amazon-cloudwatch/dcgm-exporter"]},
        {"exporter": "existing"},
        "which amazon-cloudwatch/dcgm-exporter lacks",
    ),
    ("and beside ours", {"unlabelled_exporters": ["amazon-cloudwatch/dcgm-exporter"]}, {}, "Write `exporter: existing`"),
    ("two exporters", {"exporters": OPERATORS}, {}, "gpu-operator/nvidia-dcgm-exporter-x on gpu-1"),
    ("no exporter to scrape", {}, {"exporter": "existing"}, "no dcgm-exporter runs in the cluster"),
    (
        "an exporter where it is not scraped",
        {"exporters": OPERATORS},
        {"exporter": "existing", "exporterNamespaces": ["kube-system"]},
        "add its namespace to kubernetes.exporterNamespaces",
    ),
    ("kubelets that nothing verifies", {"kubelets_self_signed": True}, {"kubeletCertificates": "cluster"}, "self-signed"),
    ("two node_exporters", {"node_exporters": ["monitoring/node-exporter-x on gpu-1"]}, {}, "write `nodeExporter: existing`"),
    ("interrupted", {"interrupted": {"alloy": "pending-upgrade (revision 3)"}}, {}, "helm rollback alloy --namespace gpu-fleet"),
    ("a first installation", {"interrupted": {"alloy": "pending-install (revision 1)"}}, {}, "`make up`, which completes"),
    (
        "a release of somebody else",
        {"taken": {"alloy": "Install complete"}},
        {},
        "this stack did not create it (Install complete): install into another namespace (kubernetes.namespace), or, if nothing "
        "needs it, helm uninstall alloy --namespace gpu-fleet",
    ),
]


@pytest.mark.parametrize(("what", "seen", "inputs", "words"), CASES, ids=[case[0] for case in CASES])
def test_what_would_fail_is_reported_once_with_the_fix(what: str, seen: dict, inputs: dict, words: str) -> None:
    (found,) = problems(replace(GOOD, **seen), {**INPUTS, **inputs})
    assert words in found


def test_a_good_cluster_is_left_alone() -> None:
    assert list(problems(GOOD, INPUTS)) == []
    assert list(problems(replace(GOOD, exporters=OPERATORS), {**INPUTS, "exporter": "existing"})) == []
    scraped = {"exporter": "existing", "exporterNamespaces": ["gpu-operator"], "kubeletCertificates": "cluster"}
    assert list(problems(replace(GOOD, exporters=OPERATORS), {**INPUTS, **scraped})) == []
    assert list(problems(replace(GOOD, kubelets_self_signed=True), {**INPUTS, "kubeletCertificates": "self-signed"})) == []


def test_labels_that_no_prometheus_selects_are_named_with_those_that_it_selects() -> None:
    chart = {"matchLabels": {"release": "kps"}}
    prometheus = {
        "metadata": {"namespace": "monitoring", "name": "kps"},
        "spec": {"ruleSelector": chart, "podMonitorSelector": chart},
    }
    everything = {"metadata": {"namespace": "m", "name": "all"}, "spec": {"ruleSelector": {}, "podMonitorSelector": {}}}
    seen = replace(GOOD, prometheuses=[prometheus])
    inputs = {**INPUTS, "prometheusOperator": "existing", "monitorLabels": {"release": "kube-prometheus-stack"}}
    (note,) = notes(seen, inputs)
    assert (
        "monitorLabels is {'release': 'kube-prometheus-stack'}" in note and "monitoring/kps ruleSelector {'matchLabels'" in note
    )
    assert not list(notes(seen, {**inputs, "monitorLabels": {"release": "kps"}}))
    assert not list(notes(replace(GOOD, prometheuses=[prometheus, everything]), inputs)), "one is enough"
    assert not list(notes(GOOD, inputs)), "which there are may not be readable for this login"
    without_monitors = {**prometheus, "spec": {"ruleSelector": chart}}
    assert list(notes(replace(GOOD, prometheuses=[without_monitors]), {**inputs, "monitorLabels": {"release": "kps"}}))


def test_any_of_the_labels_marks_a_gpu_node() -> None:
    google = Node(name="g", gpus=1, labels={"cloud.google.com/gke-accelerator": "nvidia-h100"})
    assert list(problems(replace(GOOD, nodes=[google]), INPUTS)) == []
    bare = Node(name="b", gpus=1, labels={})
    assert list(problems(replace(GOOD, nodes=[bare]), {**INPUTS, "nodeTerms": []})) == [], "without a label: every node"


def test_taints_are_compared_as_the_scheduler_does_and_one_node_s_stops_no_run() -> None:
    drained = gpu_node("gpu-2", taint("example.com/maintenance"))
    tolerated = gpu_node(
        "gpu-3",
        taint("nvidia.com/gpu", "present"),
        taint("node.kubernetes.io/unschedulable"),
        taint("prefer", effect="PreferNoSchedule"),
    )
    seen = replace(GOOD, nodes=[*GOOD.nodes, drained, tolerated])
    assert list(problems(seen, INPUTS)) == []
    [note] = notes(seen, INPUTS)
    assert note.startswith("dcgm-exporter would not run on gpu-2: ") and "{key: example.com/maintenance}" in note
    for tolerations in ([{"operator": "Exists"}], [{"key": "example.com/maintenance", "operator": "Equal", "value": ""}]):
        assert not [note for note in notes(replace(seen, nodes=[drained]), {**INPUTS, "tolerations": tolerations})]


def test_nodes_that_are_no_linux_machines_are_named_and_need_no_exporter() -> None:
    fargate = Node(name="fargate-1", gpus=0, labels={"eks.amazonaws.com/compute-type": "fargate"}, taints=[taint("eks", "f")])
    virtual = Node(name="aci", gpus=0, labels={"type": "virtual-kubelet"})
    windows = Node(name="win-1", gpus=1, labels={"kubernetes.io/os": "windows", **GOOD.nodes[0].labels}, is_windows=True)
    seen = replace(GOOD, nodes=[*GOOD.nodes, fargate, virtual, windows])
    assert list(problems(seen, INPUTS)) == []
    assert [note.rpartition("(")[2] for note in notes(seen, INPUTS)] == [
        "win-1)",
        "not monitored, since no DaemonSet runs on Fargate and virtual nodes: fargate-1, aci",
    ]


def test_a_driver_that_the_stack_file_mounts_or_a_runtime_class_that_it_names_is_found() -> None:
    cos = gpu_node("gke-1", **{"cloud.google.com/gke-os-distribution": "cos"})
    given = {"hostPaths": ["/home/kubernetes/bin/nvidia"], "runtimeClass": "nvidia"}
    assert list(problems(replace(GOOD, nodes=[cos], runtime_class="nvidia"), {**INPUTS, **given})) == []


def test_a_cluster_that_later_scales_to_zero_gpus_is_no_error() -> None:
    assert list(problems(replace(GOOD, nodes=GOOD.nodes[1:]), INPUTS, is_new=False)) == []


def test_the_operator_may_be_what_makes_nodes_offer_gpus() -> None:
    assert list(problems(replace(GOOD, nodes=GOOD.nodes[1:]), {**INPUTS, "exporter": "operator"})) == []


def test_all_problems_are_reported_at_once() -> None:
    bad = replace(GOOD, version=(1, 20), forbidden=["create secrets"], nodes=[], interrupted={"alloy": "pending-install"})
    assert len(list(problems(bad, INPUTS))) == 4


@pytest.mark.parametrize(
    ("configuration", "by_themselves"),
    [
        ({}, True),  # kubeadm's default
        ({"serverTLSBootstrap": False, "tlsCertFile": "/var/lib/kubelet/pki/kubelet.crt"}, True),
        ({"serverTLSBootstrap": True}, False),
        ({"tlsCertFile": "/var/lib/rancher/k3s/agent/serving-kubelet.crt"}, False),
        (None, False),  # this login may not see it
    ],
)
def test_who_signs_the_certificates_of_kubelets_is_in_their_configuration(
    configuration: dict | None, by_themselves: bool
) -> None:
    class Api:
        def get(self, path: str) -> Any:
            assert path == "/api/v1/nodes/gpu-1/proxy/configz"
            if configuration is None:
                raise Refused(403, "Forbidden", "cannot get resource nodes/proxy")
            return {"kubeletconfig": {"kind": "KubeletConfiguration", **configuration}}

    assert _kubelets_sign_themselves(Api(), GOOD.nodes) is by_themselves  # type: ignore[arg-type]


# --- on a real API server -----------------------------------------------------------------------------------------------


def api(kubeconfig: Path, **options: Any) -> ClusterApi:
    return ClusterApi(file=str(kubeconfig), **options)


def test_an_administrator_of_a_gpu_cluster_sees_no_problem(cluster: Cluster, namespace: str) -> None:
    inputs = {**INPUTS, "namespace": namespace}
    seen = look(api(cluster.kubeconfig), inputs)
    assert {node.name: node.gpus for node in seen.gpu_nodes} == {"gpu-node-1": 8, "gpu-node-2": 8}
    assert seen.version >= (1, 30) and list(problems(seen, inputs)) == []


def test_what_a_login_may_not_make_is_listed(cluster: Cluster, namespace: str) -> None:
    rules = [
        {"apiGroups": [""], "resources": ["nodes", "pods", "namespaces", "secrets"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
    ]
    viewer = cluster.login(f"viewer-{namespace}", rules=rules)
    seen = look(api(viewer), {**INPUTS, "namespace": namespace})
    assert "create daemonsets.apps" in seen.forbidden and "create configmaps" not in seen.forbidden
    assert "create namespaces" not in seen.forbidden, "it is there"


def test_a_login_that_may_not_even_look_is_refused_in_the_servers_words(cluster: Cluster, namespace: str) -> None:
    nobody = cluster.login(f"nobody-{namespace}", rules=[])
    with pytest.raises(Refused, match=r"cannot (get|list) resource"):
        look(api(nobody), INPUTS)


def test_a_release_that_a_killed_run_left_in_the_middle_is_seen(cluster: Cluster, namespace: str) -> None:
    labels = {"owner": "helm", "name": "alloy", "status": "pending-upgrade", "version": "2"}
    metadata = {"name": "sh.helm.release.v1.alloy.v2", "namespace": namespace, "labels": labels}
    cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    assert look(api(cluster.kubeconfig), {**INPUTS, "namespace": namespace}).interrupted == {
        "alloy": "pending-upgrade (revision 2)"
    }


def test_no_data_of_a_secret_is_read_to_see_its_labels(cluster: Cluster, namespace: str) -> None:
    metadata = {"name": "sh.helm.release.v1.alloy.v1", "namespace": namespace, "labels": {"owner": "helm"}}
    cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"release": "planted-values"}})
    path = f"/api/v1/namespaces/{namespace}/secrets"
    (found,) = api(cluster.kubeconfig).list(path, only_metadata=True, labelSelector="owner=helm")
    assert found["metadata"]["labels"] == {"owner": "helm"} and "data" not in found
    assert "data" in next(api(cluster.kubeconfig).list(path, labelSelector="owner=helm"))


def call(warnings: list[str]) -> Call:
    def nothing(*arguments: str) -> None: ...

    return Call(
        urn="x", is_preview=True, timeout_s=None, progress=nothing, info=nothing, warning=warnings.append, sending=nothing
    )


def test_a_look_at_the_cluster_fails_no_run_that_changes_nothing_of_it(cluster: Cluster, namespace: str) -> None:
    """The stack may have hosts and rules too."""
    nobody = cluster.login(f"nobody-diff-{namespace}", rules=[])
    inputs = {**INPUTS, "namespace": namespace}
    warnings: list[str] = []
    for kubeconfig in (nobody, Path("/no-such-file")):
        assert asyncio.run(ClusterResource(api(kubeconfig)).diff(inputs, inputs, {}, call(warnings))) == []
    assert "refuses this login" in warnings[0] and "no-such-file" in warnings[1]
    assert all(warning.endswith("Nothing of the cluster changes in this run, so it goes on") for warning in warnings)
    with pytest.raises(ResourceError, match="refuses this login"):
        asyncio.run(ClusterResource(api(nobody)).update("cluster", inputs, inputs, {}, call([])))


def test_existing_exporters_are_seen_and_our_own_are_not(cluster: Cluster, namespace: str) -> None:
    container = {"name": "exporter", "image": "r.example/dcgm:1"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "theirs", "namespace": namespace, "labels": {"app": "nvidia-dcgm-exporter"}},
        "spec": {"containers": [container], "tolerations": [{"operator": "Exists"}]},
    }
    cluster.apply(pod)
    seen = look(api(cluster.kubeconfig), INPUTS)
    assert [pods[0].split(" on ")[0] for who, pods in seen.exporters.items() if who == "the GPU Operator"] == [
        f"{namespace}/theirs"
    ]
    ours = look(api(cluster.kubeconfig), {**INPUTS, "namespace": namespace})
    assert ours.exporters["the GPU Operator"] == []


def test_who_would_not_start_again_on_a_node_that_we_taint_is_named(cluster: Cluster, namespace: str) -> None:
    """An exporter that is gone keeps its node unknown, and unknown removes no taint."""
    ours = {"key": TAINT, "operator": "Exists"}
    of = {
        "exporter": ({"app": "nvidia-dcgm-exporter"}, "r.example/exporter:1", [{"key": "nvidia.com/gpu", "operator": "Exists"}]),
        "by-image": ({"app": "mine"}, "r.example/dcgm-exporter:4", [{"key": TAINT, "operator": "Exists", "effect": "NoExecute"}]),
        "plugin": ({"name": "nvidia-device-plugin-ds"}, "r.example/plugin:1", []),
        "tolerates": ({"app": "nvidia-dcgm-exporter"}, "r.example/exporter:1", [ours]),
        "tolerates-all": ({"app": "nvidia-dcgm-exporter"}, "r.example/exporter:1", [{"operator": "Exists"}]),
        "another": ({"app": "logs"}, "r.example/logs:1", []),
    }
    for name, (labels, image, tolerations) in of.items():
        spec = {"containers": [{"name": "c", "image": image}], "tolerations": tolerations, "nodeSelector": {"none": "such"}}
        template = {"metadata": {"labels": labels}, "spec": spec}
        daemons = {"selector": {"matchLabels": labels}, "template": template}
        metadata = {"name": name, "namespace": namespace}
        cluster.apply({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": daemons})
    tainting = {**INPUTS, "taint": TAINT}
    seen = look(api(cluster.kubeconfig), tainting)
    strict = [name.partition("/")[2] for name in seen.strict if name.startswith(f"{namespace}/")]
    assert sorted(strict) == ["by-image", "exporter", "plugin"]
    (note,) = notes(replace(GOOD, strict=["theirs/exporter"]), tainting)
    assert note.startswith("theirs/exporter would not start again on a node with the taint gpu-fleet/not-ready")
    assert note.endswith("add {key: gpu-fleet/not-ready, operator: Exists} to the tolerations there")
    assert look(api(cluster.kubeconfig), INPUTS).strict == [], "nothing taints"


def test_a_server_that_does_not_answer_is_named(cluster: Cluster, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(cluster.kubeconfig.read_text().replace(cluster.url, "https://127.0.0.1:9"))
    with pytest.raises(Unreachable, match=r"^https://127\.0\.0\.1:9 does not answer: \[Errno 111\] Connection refused$"):
        api(kubeconfig).get("/version")


def test_a_context_that_is_not_there_is_named(cluster: Cluster) -> None:
    with pytest.raises(KubeconfigError, match="nowhere"):
        api(cluster.kubeconfig, context="nowhere").get("/version")


def test_an_invalid_kubeconfig_is_reported_without_its_text(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=r"secret gpu-fleet:kubeconfig: is not YAML") as raised:
        ClusterApi(text="a: [planted-secret").get("/version")
    assert "planted" not in str(raised.value)
    with pytest.raises(KubeconfigError, match="no-such-file"):
        api(tmp_path / "no-such-file").get("/version")


def test_a_secret_kubeconfig_works_as_a_file_does(cluster: Cluster) -> None:
    assert ClusterApi(text=cluster.kubeconfig.read_text()).get("/version")["major"] == "1"
