"""The real engine with the kubernetes stand-in: a whole life of a stack."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.kubernetes import Cluster
from tests.standins.project import Project

PROGRAM = """
import pulumi
import pulumi_kubernetes as k8s
config = pulumi.Config()
provider = k8s.Provider("cluster", kubeconfig=config.require("kubeconfig"), enable_config_map_mutable=True)
options = pulumi.ResourceOptions(provider=provider)
namespace = k8s.core.v1.Namespace("space", metadata={"name": config.require("namespace")}, opts=options)
inside = {"namespace": namespace.metadata["name"]}
data = {"a": config.get("a") or "1"}
settings = k8s.core.v1.ConfigMap("settings", metadata={**inside, "name": "settings"}, data=data, opts=options)
group = config.require("namespace") + ".example.com"
crd = k8s.apiextensions.v1.CustomResourceDefinition(
    "monitors",
    metadata={"name": f"monitors.{group}"},
    spec={
        "group": group,
        "scope": "Namespaced",
        "names": {"kind": "Monitor", "plural": "monitors", "singular": "monitor"},
        "versions": [{
            "name": "v1", "served": True, "storage": True,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        }],
    },
    opts=options,
)
k8s.apiextensions.CustomResource(
    "monitor", api_version=f"{group}/v1", kind="Monitor", metadata={**inside, "name": "gpus"}, spec={"port": "metrics"},
    opts=pulumi.ResourceOptions(provider=provider, depends_on=[crd]),
)
release = k8s.helm.v3.Release(
    "greeter", chart=config.require("chart"), name="greeter", namespace=namespace.metadata["name"], skip_await=True,
    values={"greeting": settings.data["a"], "password": config.require_secret("password")}, opts=options,
)
pulumi.export("revision", release.status["revision"])
"""
BROKEN = """
import os
import signal

signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # as the real program does
import pulumi
import pulumi_kubernetes as k8s
config = pulumi.Config()
options = pulumi.ResourceOptions(provider=k8s.Provider("cluster", kubeconfig=config.require("kubeconfig")))
pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main", "image": config.require("image")}]}}
annotations = {"pulumi.com/timeoutSeconds": config.require("timeout")}
k8s.apps.v1.Deployment(
    "x", metadata={"name": "x", "namespace": config.require("namespace"), "annotations": annotations},
    spec={"selector": {"match_labels": {"a": "b"}}, "template": pod}, opts=options,
)
"""


@pytest.fixture
def stack(project: Project, cluster: Cluster) -> Project:
    plain = {"kubeconfig": cluster.kubeconfig, "chart": Path(__file__).with_name("chart")}
    settings = [f"--plaintext={name}={value}" for name, value in plain.items()]
    project.run("config", "set-all", *settings, "--secret=password=planted-secret")
    return project


def test_the_life_of_a_stack_in_a_cluster(stack: Project, cluster: Cluster) -> None:
    name = "life-of-a-stack"
    stack.program(PROGRAM)
    stack.run("config", "set", "namespace", name)
    assert "+ 7 to create" in stack.run("preview", "--diff"), "namespace and kind that come with the same update are no error"
    stack.up()
    assert cluster.api.read("v1", "ConfigMap", "greeter", name)["data"] == {"greeting": "1"}
    assert cluster.api.read(f"{name}.example.com/v1", "Monitor", "gpus", name)["spec"] == {"port": "metrics"}
    assert "7 unchanged" in stack.up()

    stack.run("config", "set", "a", "2")
    preview = stack.run("preview", "--diff")
    assert '~ a: "1" => "2"' in preview and "replace" not in preview
    stack.up()
    assert stack.output("revision") == "2"

    by_hand = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": name}, "data": {"a": "3"}}
    cluster.api.apply(by_hand, force=True)
    assert '"2" => "3"' in stack.run("refresh", "--yes", "--diff")
    assert "planted-secret" not in stack.state_text()
    stack.run("destroy", "--yes", "--skip-preview")
    assert cluster.api.read("v1", "Namespace", name) is None
    assert stack.state() == []


def test_what_does_not_come_up_is_kept_and_the_next_update_goes_on(stack: Project, namespace: str) -> None:
    stack.program(BROKEN)
    stack.run("config", "set", "namespace", namespace)
    stack.run("config", "set-all", "--plaintext=image=registry.example/x:missing", "--plaintext=timeout=20")
    output = stack.up(fails=True)
    assert "container main: ImagePullBackOff" in output and "Traceback" not in output
    stack.run("config", "set-all", "--plaintext=image=registry.example/x:1", "--plaintext=timeout=300")
    assert "~ 1 updated" in stack.up()
    stack.run("destroy", "--yes", "--skip-preview")
