"""A first installation whose run is killed: releases are in the cluster and not in the state. One `make up` completes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_fleet import toolchain
from gpu_fleet.operations import leftovers
from lab.kubernetes import Cluster
from lab.kubernetes.chart_packages import package
from tests.hosts.stack import UP, Stack

NAMESPACE = "gpu-killed"
CHARTS = {"dcgmExporter": "dcgm-exporter", "alloy": "alloy"}


@pytest.fixture
def stack(cluster: Cluster, tmp_path: Path) -> Iterator[Stack]:
    (tmp_path / "charts").mkdir()
    config = {
        "datacenter": "lab-west",
        "cluster": "training",
        "metrics": {"url": "http://127.0.0.1:9009/api/v1/push", "tenant": "lab"},
        "kubernetes": {
            "kubeconfig": str(cluster.kubeconfig),
            "namespace": NAMESPACE,
            "timeout": 300,
            "nodeExporter": "existing",
            "kubeStateMetrics": "existing",
            "charts": {
                key: {"chart": str(package(name, tmp_path / "charts").relative_to(tmp_path))} for key, name in CHARTS.items()
            },
        },
    }
    stack = Stack(tmp_path, "killed", config).create()
    yield stack
    stack.clear()
    cluster.api.delete({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    cluster.wait_for("the namespace to go", lambda: cluster.api.read("v1", "Namespace", NAMESPACE) is None)


def records(cluster: Cluster) -> dict[str, str]:
    """Status by release, as Helm labels what it keeps of each."""
    secrets = cluster.api.list("v1", "Secret", NAMESPACE)
    labels = [one["metadata"].get("labels") or {} for one in secrets]
    return {one["name"]: one["status"] for one in labels if one.get("owner") == "helm"}


def daemons(cluster: Cluster) -> dict[str, str]:
    return {one["metadata"]["name"]: one["metadata"]["uid"] for one in cluster.api.list("apps/v1", "DaemonSet", NAMESPACE)}


def killed(stack: Stack, cluster: Cluster) -> None:
    """The engine alone, at the moment in which Helm has begun and the engine has not been answered."""
    process = stack.start(*UP)
    cluster.wait_for("a release", lambda: "dcgm-exporter" in records(cluster))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    stack.unlock()


def killed_below_make_up(stack: Stack, cluster: Cluster, status: str) -> str:
    """What `make up` says when its engine is killed while dcgm-exporter has this status."""
    command = [sys.executable, "-m", "gpu_fleet.operations.deploy", "--stack", stack.name, "up", "--yes", "--skip-preview"]
    environment = {**os.environ, **stack._environment()}
    process = subprocess.Popen(
        command, cwd=stack.directory, env=environment, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    cluster.wait_for(status, lambda: records(cluster).get("dcgm-exporter") == status)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (engine,) = [int(child) for child in children if Path(f"/proc/{child}/comm").read_text() == "pulumi\n"]
    os.kill(engine, signal.SIGKILL)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert not list(leftovers._leftovers(stack.name)), "they would go on beside the next run"
    stack.unlock()
    return printed


def make_up(stack: Stack) -> str:
    return stack.operation("deploy", "up", "--yes", "--skip-preview")


def assert_as_the_code_says(stack: Stack, cluster: Cluster) -> None:
    assert set(records(cluster)) == set(CHARTS.values()) and set(records(cluster).values()) <= {"deployed", "superseded"}
    state: dict[str, Any] = json.loads(stack.pulumi("stack", "export"))["deployment"]
    assert not state.get("pending_operations"), "pulumi would warn of them in every run"
    stack.up("--refresh")  # before 4.30 the plugin loses empty lists among the values: the program reverts what that made
    stack.up_unchanged()


def test_releases_that_were_installed_and_not_saved_are_taken_into_the_state(stack: Stack, cluster: Cluster) -> None:
    killed(stack, cluster)
    cluster.wait_for("the plugin to go on", lambda: set(records(cluster).values()) == {"deployed"})
    before = daemons(cluster)
    plain = stack.pulumi(*UP, ok=False)
    assert "cannot re-use a name that is still in use" in plain, plain
    assert "`make up STACK=killed` takes it into the state and completes it" in plain, "Helm names no way on"
    output = make_up(stack)
    assert "dcgm-exporter" in output
    assert before.items() <= daemons(cluster).items(), "what runs is kept"
    assert_as_the_code_says(stack, cluster)


def test_an_installation_and_an_upgrade_that_were_killed_midway_are_completed(
    stack: Stack, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stack.directory)
    section = stack.config["kubernetes"]["charts"]["dcgmExporter"]
    section["values"] = {"image": {"tag": "missing"}}  # its pods do not become ready: Helm waits
    stack.write()
    printed = killed_below_make_up(stack, cluster, "pending-install")
    assert "of Pulumi's plugins running: they have ended" in printed
    assert "`make up STACK=killed` completes what it was doing" in printed
    before = daemons(cluster)
    del section["values"]
    stack.write()
    make_up(stack)
    assert before.items() <= daemons(cluster).items(), "what runs is kept"
    assert_as_the_code_says(stack, cluster)

    section["values"] = {"image": {"tag": "missing"}}
    stack.write()
    killed_below_make_up(stack, cluster, "pending-upgrade")
    del section["values"]
    stack.write()
    make_up(stack)
    assert before.items() <= daemons(cluster).items()
    assert_as_the_code_says(stack, cluster)


def test_what_a_killed_installation_left_is_removed_with_the_stack(
    stack: Stack, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stack.directory)
    stack.config["kubernetes"]["charts"]["dcgmExporter"]["values"] = {"image": {"tag": "missing"}}
    stack.write()
    killed_below_make_up(stack, cluster, "pending-install")
    assert "dcgm-exporter" in daemons(cluster)
    stack.operation("destroy", "--yes")
    assert not stack.resources()
    cluster.wait_for("the namespace to go", lambda: cluster.api.read("v1", "Namespace", NAMESPACE) is None)
    roles = [one["metadata"]["name"] for one in cluster.api.list("rbac.authorization.k8s.io/v1", "ClusterRole")]
    assert not {"dcgm-exporter", "alloy"} & set(roles), "what belongs to no namespace is Helm's to remove"


def test_a_release_of_somebody_else_is_named_before_anything_is_touched(stack: Stack, cluster: Cluster) -> None:
    cluster.namespace(NAMESPACE)
    theirs = stack.directory / "charts/theirs"
    (theirs / "templates").mkdir(parents=True)
    (theirs / "Chart.yaml").write_text("apiVersion: v2\nname: theirs\nversion: 1.0.0\n")
    (theirs / "templates/map.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: theirs}\n")
    subprocess.run(
        [toolchain.find("helm"), "install", "alloy", theirs, "--namespace", NAMESPACE, "--kubeconfig", cluster.kubeconfig],
        check=True,
        capture_output=True,
    )
    stack.config["kubernetes"]["createNamespace"] = False
    stack.write()
    output = stack.up(ok=False)
    assert f"the Helm release alloy exists in the namespace {NAMESPACE}, and this stack did not create it" in output, output
    assert set(records(cluster)) == {"alloy"}, "nothing was installed"
    assert cluster.api.read("v1", "ConfigMap", "theirs", NAMESPACE) is not None
