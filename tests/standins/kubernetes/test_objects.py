"""Objects of any kind: made, previewed by the API server, changed, drifted, repaired, in conflict, waited for, deleted."""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import struct_pb2
from pulumi.runtime.proto import provider_pb2

from lab.kubernetes import Cluster
from lab.standins.kubernetes.client import Client
from lab.standins.kubernetes.objects import KubernetesObject
from lab.standins.plugin import Call, Failure
from tests.standins.running import REPO, UNKNOWN, Refused, Resource, RunningPlugin, is_secret, revealed, secret


def config_map(namespace: str, name: str = "settings", **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


def deployment(namespace: str, image: str = "registry.example/x:1", **annotations: str) -> dict[str, Any]:
    pod = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "main", "image": image}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "x", "namespace": namespace, "annotations": {f"pulumi.com/{k}": v for k, v in annotations.items()}},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "x"}}, "template": pod},
    }


def of_config_map(plugin: RunningPlugin) -> Resource:
    return plugin.resource("kubernetes:core/v1:ConfigMap", "settings")


@pytest.fixture
def settings(mutable: RunningPlugin, namespace: str) -> Resource:
    resource = of_config_map(mutable)
    resource.create(**config_map(namespace, a="1"))
    return resource


@pytest.fixture
def elsewhere(cluster: Cluster) -> str:
    """The cluster's kubeconfig with an address where nothing listens."""
    return cluster.kubeconfig.read_text().replace(cluster.url, "https://127.0.0.1:1")


def test_an_object_is_made_and_known_by_namespace_and_name(settings: Resource, cluster: Cluster, namespace: str) -> None:
    assert settings.id == f"{namespace}/settings"
    assert settings.outputs["metadata"]["uid"] and settings.outputs["metadata"]["managedFields"]
    assert cluster.api.read("v1", "ConfigMap", "settings", namespace)["data"] == {"a": "1"}


def test_the_preview_of_a_creation_is_what_the_api_server_would_make(
    kubernetes: RunningPlugin, namespace: str, cluster: Cluster
) -> None:
    resource = kubernetes.resource("kubernetes:apps/v1:Deployment", "x")
    shown = resource.preview(**deployment(namespace))
    assert shown["spec"]["strategy"]["type"] == "RollingUpdate", "a default that the API server fills in"
    assert cluster.api.read("apps/v1", "Deployment", "x", namespace) is None


def test_a_field_that_does_not_exist_is_dropped_without_a_word(kubernetes: RunningPlugin, namespace: str) -> None:
    wrong = deployment(namespace)
    wrong["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    resource = kubernetes.resource("kubernetes:apps/v1:Deployment", "x")
    assert "imagee" not in str(resource.preview(**wrong))
    assert "imagee" not in str(resource.create(**wrong))
    assert resource.diff(**wrong) == ({}, set())


def test_a_value_that_the_cluster_rejects_is_reported_in_its_words(kubernetes: RunningPlugin, namespace: str) -> None:
    wrong = deployment(namespace)
    wrong["spec"]["selector"]["matchLabels"] = {"app": "other"}
    with pytest.raises(Refused, match="`selector` does not match template `labels`"):
        kubernetes.resource("kubernetes:apps/v1:Deployment", "x").preview(**wrong)


def test_an_object_in_a_future_namespace_is_no_error_in_the_preview(kubernetes: RunningPlugin) -> None:
    assert of_config_map(kubernetes).preview(**config_map("not-there-yet", a="1"))["data"] == {"a": "1"}


@pytest.fixture
def monitor(namespace: str) -> dict[str, Any]:
    """Of a group of its own, which the cluster does not know."""
    metadata = {"name": "m", "namespace": namespace}
    return {"apiVersion": f"{namespace}.example.com/v1", "kind": "Monitor", "metadata": metadata, "spec": {"port": "metrics"}}


def test_a_future_kind_is_no_error_in_the_preview_and_the_creation_waits_for_it(
    kubernetes: RunningPlugin, monitor: dict[str, Any], cluster: Cluster, namespace: str
) -> None:
    resource = kubernetes.resource(f"kubernetes:{monitor['apiVersion']}:Monitor", "m")
    assert resource.preview(**monitor)["kind"] == "Monitor"
    group = monitor["apiVersion"].removesuffix("/v1")
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"monitors.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": "Monitor", "plural": "monitors", "singular": "monitor"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    later = threading.Timer(2, cluster.apply, [crd])
    later.start()
    try:
        assert resource.create(**monitor)["spec"] == {"port": "metrics"}
    finally:
        later.join()
        cluster.api.delete(crd)


def test_a_missing_kind_is_waited_for_longer_than_a_minute(
    monitor: dict[str, Any], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the stand-in alone: with the official plugin the minute cannot be shortened."""
    slept: list[float] = []
    monkeypatch.setattr("lab.standins.kubernetes.objects.time.sleep", slept.append)
    client = Client()
    client.configure({"kubeconfig": str(cluster.kubeconfig)})
    resource = KubernetesObject(client, f"kubernetes:{monitor['apiVersion']}:Monitor", "Monitor")
    with pytest.raises(Failure, match=r'required CRDs .* no matches for kind "Monitor" in version'):
        resource.create(Call("m", lambda _: None, lambda _: contextlib.nullcontext()), monitor)
    assert slept == [1, 2, 4, 8, 16, 32]


def test_an_object_without_a_name_or_a_namespace_gets_them(kubernetes: RunningPlugin, cluster: Cluster) -> None:
    resource = of_config_map(kubernetes)
    resource.create(apiVersion="v1", kind="ConfigMap", data={"a": "1"})
    metadata = resource.outputs["metadata"]
    try:
        assert metadata["namespace"] == "default" and metadata["name"].startswith("settings-")
        assert resource.diff(apiVersion="v1", kind="ConfigMap", data={"a": "1"}) == ({}, set()), "the next run keeps the name"
    finally:
        resource.delete()
    assert cluster.api.read("v1", "ConfigMap", metadata["name"]) is None


def test_an_existing_object_is_not_taken_over(settings: Resource, mutable: RunningPlugin, namespace: str) -> None:
    with pytest.raises(Refused, match="already exists"):
        of_config_map(mutable).create(**config_map(namespace, b="2"))


def test_a_change_is_shown_by_its_path_and_made_in_place(settings: Resource, namespace: str, cluster: Cluster) -> None:
    assert settings.diff(**config_map(namespace, a="2")) == ({"data.a": "UPDATE"}, set())
    settings.update(**config_map(namespace, a="2"))
    assert cluster.api.read("v1", "ConfigMap", "settings", namespace)["data"] == {"a": "2"}


def test_a_removed_key_is_deleted(settings: Resource, namespace: str, cluster: Cluster) -> None:
    settings.update(**config_map(namespace, a="1", b="2"))
    assert settings.diff(**config_map(namespace, b="2")) == ({"data.a": "DELETE"}, set())
    settings.update(**config_map(namespace, b="2"))
    assert cluster.api.read("v1", "ConfigMap", "settings", namespace)["data"] == {"b": "2"}


def test_a_config_map_is_replaced_unless_the_provider_says_that_it_may_change(kubernetes: RunningPlugin, namespace: str) -> None:
    resource = of_config_map(kubernetes)
    resource.create(**config_map(namespace, a="1"))
    assert resource.diff(**config_map(namespace, a="2"))[1] == {"data.a"}


def test_a_quantity_in_another_notation_is_no_change(kubernetes: RunningPlugin, namespace: str) -> None:
    def quota(cpu: str) -> dict[str, Any]:
        return {**config_map(namespace, "quota"), "kind": "ResourceQuota", "spec": {"hard": {"cpu": cpu}}} | {"data": None}

    resource = kubernetes.resource("kubernetes:core/v1:ResourceQuota", "quota")
    resource.create(**quota("1000m"))
    assert resource.inputs["spec"]["hard"]["cpu"] == "1", "as the API server writes it"
    assert resource.diff(**quota("1000m")) == resource.diff(**quota("1")) == ({}, set())


def test_drift_is_found_by_a_refresh_and_the_next_update_repairs_it(settings: Resource, namespace: str, cluster: Cluster) -> None:
    cluster.api.apply(config_map(namespace, a="by hand"), manager="kubectl", force=True)
    assert settings.refresh() and settings.inputs["data"] == {"a": "by hand"}
    wanted = config_map(namespace, a="1")
    wanted["metadata"]["annotations"] = {"pulumi.com/patchForce": "true"}
    changes, replaces = settings.diff(**wanted)
    assert changes["data.a"] == "UPDATE" and not replaces
    settings.update(**wanted)
    assert cluster.api.read("v1", "ConfigMap", "settings", namespace)["data"] == {"a": "1"}


def test_what_others_add_beside_ours_is_no_drift(settings: Resource, namespace: str, cluster: Cluster) -> None:
    cluster.api.apply(config_map(namespace, theirs="x"), manager="them")
    settings.refresh()
    assert settings.diff(**config_map(namespace, a="1")) == ({}, set())


CONFLICT = r'field conflict detected(?s:.*)conflict with "argocd": \.data\.a'


def test_a_field_that_another_manager_took_is_a_conflict_of_the_update_and_not_of_the_first_preview(
    settings: Resource, namespace: str, cluster: Cluster
) -> None:
    cluster.api.apply(config_map(namespace, a="theirs"), manager="argocd", force=True)
    settings.refresh()
    assert settings.preview_update(**config_map(namespace, a="1"))["data"] == {"a": "1"}
    with pytest.raises(Refused, match=CONFLICT) as refused:
        settings.update(**config_map(namespace, a="1"))
    assert refused.value.kept_id == settings.id, "the engine keeps it, and the next run tries again"
    assert cluster.api.read("v1", "ConfigMap", "settings", namespace)["data"] == {"a": "theirs"}


def test_once_an_object_was_updated_the_preview_shows_a_conflict_too(
    settings: Resource, namespace: str, cluster: Cluster
) -> None:
    settings.update(**config_map(namespace, a="2"))
    cluster.api.apply(config_map(namespace, a="theirs"), manager="argocd", force=True)
    settings.refresh()
    with pytest.raises(Refused, match=CONFLICT):
        settings.preview_update(**config_map(namespace, a="1"))


def test_an_object_that_was_deleted_by_hand_is_gone_after_a_refresh(settings: Resource, namespace: str, cluster: Cluster) -> None:
    cluster.api.delete(config_map(namespace))
    settings.delete()  # gone already is no error
    assert not settings.refresh()


def test_a_secret_stays_secret(mutable: RunningPlugin, namespace: str, cluster: Cluster) -> None:
    resource = mutable.resource("kubernetes:core/v1:Secret", "login")
    inputs = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login", "namespace": namespace}}
    outputs = resource.create(**inputs, stringData=secret({"password": "hunter2"}))
    assert is_secret(outputs["data"]) and "stringData" not in outputs, "stored as data, whatever it was given as"
    assert "hunter2" not in str({name: value for name, value in outputs.items() if not is_secret(value)})
    stored = cluster.api.read("v1", "Secret", "login", namespace)["data"]["password"]
    assert base64.b64decode(stored) == b"hunter2"
    assert resource.refresh() and revealed(resource.inputs["data"]) == {"password": base64.b64encode(b"hunter2").decode()}
    assert is_secret(resource.inputs["data"]) and is_secret(resource.outputs["data"])
    assert resource.diff(**inputs, stringData=secret({"password": "hunter2"})) == ({}, set())
    assert resource.diff(**inputs, stringData=secret({"password": "new"})) == ({"data.password": "UPDATE"}, set())


def test_a_deployment_is_waited_for(kubernetes: RunningPlugin, namespace: str) -> None:
    resource = kubernetes.resource("kubernetes:apps/v1:Deployment", "x")
    assert resource.create(**deployment(namespace))["status"]["availableReplicas"] == 1


def test_a_deployment_that_does_not_come_up_is_an_error_and_is_kept(
    kubernetes: RunningPlugin, namespace: str, cluster: Cluster
) -> None:
    resource = kubernetes.resource("kubernetes:apps/v1:Deployment", "x")
    with pytest.raises(Refused, match="timed out") as refused:
        resource.create(**deployment(namespace, "registry.example/x:missing", timeoutSeconds="1"))
    assert refused.value.kept_id == f"{namespace}/x", "the engine keeps it, so that the next run continues and destroy removes it"
    assert cluster.api.read("apps/v1", "Deployment", "x", namespace)


def test_skip_await_does_not_wait(kubernetes: RunningPlugin, namespace: str) -> None:
    resource = kubernetes.resource("kubernetes:apps/v1:Deployment", "x")
    resource.create(**deployment(namespace, "registry.example/x:missing", skipAwait="true"))


def test_a_failed_job_ends_the_wait(kubernetes: RunningPlugin, namespace: str) -> None:
    pod = {
        "metadata": {"annotations": {"lab.gpu-fleet.invalid/crash": "true"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "registry.example/x:1"}]},
    }
    inputs = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": namespace}}
    with pytest.raises(Refused, match="Job has reached the specified backoff limit"):
        kubernetes.resource("kubernetes:batch/v1:Job", "j").create(**inputs, spec={"backoffLimit": 0, "template": pod})


def test_a_deletion_waits_until_the_object_is_gone(kubernetes: RunningPlugin, cluster: Cluster, namespace: str) -> None:
    resource = kubernetes.resource("kubernetes:apps/v1:Deployment", "x")
    resource.create(**deployment(namespace))
    resource.delete()
    assert cluster.api.read("apps/v1", "Deployment", "x", namespace) is None
    assert cluster.api.list("v1", "Pod", namespace) == []


def test_an_object_is_imported_by_its_id(settings: Resource, mutable: RunningPlugin, namespace: str) -> None:
    imported = of_config_map(mutable)
    assert imported.import_(settings.id)
    assert imported.inputs["data"] == {"a": "1"} and imported.inputs["metadata"] == {"name": "settings", "namespace": namespace}


def test_values_that_are_not_known_yet_are_not_sent(settings: Resource, namespace: str) -> None:
    changes, _ = settings.diff(**config_map(namespace, a=UNKNOWN))
    assert changes == {"data.a": "UPDATE"}
    assert settings.preview_update(**config_map(namespace, a=UNKNOWN))["data"] == {"a": UNKNOWN}


@pytest.mark.parametrize(
    "token", ["kubernetes:core/v1:ConfigMapPatch", "kubernetes:yaml/v2:ConfigGroup", "kubernetes:core/v1:PodList"]
)
def test_what_the_stand_in_leaves_out_is_refused(token: str, tmp_path: Path, cluster: Cluster) -> None:
    """Of the stand-in alone: the official plugin has them."""
    stand_in = RunningPlugin(REPO / "lab/standins/bin/pulumi-resource-kubernetes", tmp_path)
    try:
        stand_in.configure({"kubeconfig": str(cluster.kubeconfig)})
        with pytest.raises(Refused, match=f"has no {token}"):
            stand_in.resource(token).failures({})
    finally:
        stand_in.stop()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"kubeconfig": "/nowhere/config"}, "failed to parse kubeconfig data"),
        ({"context": "production"}, "context.*production.*does not exist"),
        ({}, "[Cc]onnection refused"),
    ],
)
def test_a_cluster_that_cannot_be_reached_is_reported(
    config: dict[str, str], reason: str, configured: Callable[..., RunningPlugin], elsewhere: str
) -> None:
    plugin = configured(**{"kubeconfig": elsewhere, **config})
    with pytest.raises(Refused, match=f"configured Kubernetes cluster is unreachable: (?s:.*){reason}"):
        of_config_map(plugin).create(**config_map("default", a="1"))


def test_the_configuration_is_what_the_variables_say_and_not_the_arguments(
    started: Callable[[], RunningPlugin], cluster: Cluster, elsewhere: str, namespace: str
) -> None:
    arguments = struct_pb2.Struct()
    arguments["kubeconfig"] = elsewhere
    variables = {"kubernetes:config:kubeconfig": str(cluster.kubeconfig), "kubernetes:config:enableConfigMapMutable": "true"}
    plugin = started()
    plugin.call("Configure", provider_pb2.ConfigureRequest(variables=variables, args=arguments, acceptSecrets=True))
    resource = of_config_map(plugin)
    resource.create(**config_map(namespace, a="1"))
    assert resource.diff(**config_map(namespace, a="2")) == ({"data.a": "UPDATE"}, set())


def test_a_cluster_that_is_gone_can_be_forgotten(
    configured: Callable[..., RunningPlugin], elsewhere: str, settings: Resource
) -> None:
    forgotten = of_config_map(configured(kubeconfig=elsewhere, deleteUnreachable="true"))
    forgotten.id, forgotten.inputs, forgotten.outputs = settings.id, settings.inputs, settings.outputs
    forgotten.delete()


def test_missing_permissions_of_a_login_are_reported(
    configured: Callable[..., RunningPlugin], cluster: Cluster, namespace: str
) -> None:
    reader = cluster.login("reader", [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}])
    with pytest.raises(Refused, match='User "reader" cannot create resource "configmaps"'):
        of_config_map(configured(kubeconfig=str(reader))).create(**config_map(namespace, a="1"))
