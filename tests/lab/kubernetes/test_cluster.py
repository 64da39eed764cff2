"""The throw-away cluster: what its nodes and pods do, who may do what, and that nothing of it stays."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.kubernetes import Api, ApiError, Cluster, connection, kubeconfig
from lab.kubernetes.cluster import remove_abandoned

TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists"}


def template(
    app: str, *, tolerates: bool = True, image: str = "registry.example/x:1", gpus: int = 0, **more: Any
) -> dict[str, Any]:
    container = {"name": "main", "image": image, **({"resources": {"limits": {"nvidia.com/gpu": gpus}}} if gpus else {})}
    annotations = more.pop("annotations", {})
    return {
        "metadata": {"labels": {"app": app}, "annotations": annotations},
        "spec": {"containers": [container | more.pop("container", {})], "tolerations": [TOLERATION] * tolerates, **more},
    }


def daemon_set(namespace: str, app: str, **pod: Any) -> dict[str, Any]:
    spec = {"selector": {"matchLabels": {"app": app}}, "template": template(app, **pod)}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": app, "namespace": namespace}, "spec": spec}


def job(namespace: str, name: str, **pod: Any) -> dict[str, Any]:
    spec = {"backoffLimit": 0, "template": template(name, restartPolicy="Never", **pod)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


@pytest.fixture
def pods(cluster: Cluster, namespace: str) -> Callable[[str], list[dict[str, Any]]]:
    return lambda app: cluster.api.list("v1", "Pod", namespace, f"app={app}")


def conditions(cluster: Cluster, namespace: str, name: str) -> list[str]:
    status = cluster.api.read("batch/v1", "Job", name, namespace)["status"]
    return [each["type"] for each in status.get("conditions", [])]


def test_a_daemon_set_runs_where_its_tolerations_let_it(cluster: Cluster, namespace: str, pods: Callable) -> None:
    cluster.apply(daemon_set(namespace, "tolerant"), daemon_set(namespace, "shy", tolerates=False))
    ready = lambda: sum(pod["status"].get("phase") == "Running" for pod in [*pods("tolerant"), *pods("shy")]) == 4  # noqa: E731
    cluster.wait_for("three tolerant pods and one shy", ready)
    assert {pod["spec"]["nodeName"] for pod in pods("tolerant")} == {"cpu-node-1", "gpu-node-1", "gpu-node-2"}
    assert {pod["spec"]["nodeName"] for pod in pods("shy")} == {"cpu-node-1"}


def test_pods_have_addresses_of_their_own_on_loopback(cluster: Cluster, namespace: str, pods: Callable) -> None:
    cluster.apply(daemon_set(namespace, "addressed"))
    cluster.wait_for("three addresses", lambda: sum("podIP" in pod["status"] for pod in pods("addressed")) == 3)
    addresses = {pod["status"]["podIP"] for pod in pods("addressed")}
    assert len(addresses) == 3 and all(address.startswith("127.") for address in addresses), "a scraper must stay on this machine"


def test_gpus_are_scheduled_as_long_as_there_are_some(cluster: Cluster, namespace: str, pods: Callable) -> None:
    cluster.apply(job(namespace, "fits", gpus=8), job(namespace, "too-big", gpus=9))
    cluster.wait_for("the job on 8 GPUs", lambda: "Complete" in conditions(cluster, namespace, "fits"))
    reasons = lambda: [each.get("message", "") for pod in pods("too-big") for each in pod["status"].get("conditions", [])]  # noqa: E731
    cluster.wait_for("the reason", lambda: any("Insufficient nvidia.com/gpu" in reason for reason in reasons()))


def test_a_load_test_takes_as_long_as_its_command_says(cluster: Cluster, namespace: str) -> None:
    cluster.apply(
        job(namespace, "load", container={"args": ["dcgmproftester12", "--no-dcgm-validation", "-t", "1004", "-d", "5"]})
    )
    cluster.wait_for("its end", lambda: "Complete" in conditions(cluster, namespace, "load"))
    status = cluster.api.read("batch/v1", "Job", "load", namespace)["status"]
    began, ended = (datetime.datetime.fromisoformat(status[key]) for key in ("startTime", "completionTime"))
    assert (ended - began).total_seconds() >= 4, "whole seconds, of five"


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        ({"image": "registry.example/x:missing"}, "ImagePullBackOff"),
        ({"annotations": {"lab.gpu-fleet.invalid/crash": "true"}}, "CrashLoopBackOff"),
    ],
)
def test_a_pod_can_be_made_to_fail(pod: dict, reason: str, cluster: Cluster, namespace: str, pods: Callable) -> None:
    cluster.apply(daemon_set(namespace, "failing", tolerates=False, **pod))
    states = lambda: [each["state"] for pod in pods("failing") for each in pod["status"].get("containerStatuses", [])]  # noqa: E731
    reasons = lambda: [state.get("waiting", {}).get("reason") for state in states()]  # noqa: E731
    cluster.wait_for("the state", lambda: reasons() == [reason], shown=states)


def test_a_crashed_job_has_failed(cluster: Cluster, namespace: str) -> None:
    cluster.apply(job(namespace, "crash", annotations={"lab.gpu-fleet.invalid/crash": "true"}))
    cluster.wait_for("its failure", lambda: "Failed" in conditions(cluster, namespace, "crash"))


def test_a_login_may_do_what_its_rules_say_and_nothing_else(cluster: Cluster, namespace: str) -> None:
    config = cluster.login("reader", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}], namespace=namespace)
    api = Api(connection(kubeconfig.read(str(config))))
    assert api.list("v1", "Pod", namespace) == []
    for refused in (lambda: api.list("v1", "Pod", "default"), lambda: api.list("v1", "Secret", namespace)):
        with pytest.raises(ApiError, match='User "reader" cannot list resource') as refusal:
            refused()
        assert (refusal.value.code, refusal.value.reason) == (403, "Forbidden")


def test_a_field_that_another_manager_owns_is_a_conflict(cluster: Cluster, namespace: str) -> None:
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shared", "namespace": namespace}}
    cluster.api.apply({**config_map, "data": {"key": "theirs"}}, manager="them")
    with pytest.raises(ApiError, match=r'conflict with "them": \.data\.key') as conflict:
        cluster.api.apply({**config_map, "data": {"key": "ours"}}, manager="us", dry_run=True)
    assert conflict.value.code == 409
    assert cluster.api.apply({**config_map, "data": {"key": "ours"}}, manager="us", force=True)["data"] == {"key": "ours"}


def test_a_kind_that_is_not_installed_is_reported_with_its_version(cluster: Cluster) -> None:
    with pytest.raises(ApiError, match=r'no matches for kind "ServiceMonitor" in version "monitoring\.coreos\.com/v9"'):
        cluster.api.list("monitoring.coreos.com/v9", "ServiceMonitor")


def _runs(pid: str) -> bool:
    """False for a process that has ended, even before its exit status is read."""
    try:
        return Path("/proc", pid, "cmdline").read_bytes() != b""
    except OSError:
        return False


def test_nothing_of_a_killed_cluster_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-m", "lab.kubernetes", "--nodes", "1"],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        lines = [starter.stdout.readline() for _ in range(2)]
        config = lines[1].strip().removeprefix("export KUBECONFIG=")
        api = Api(connection(kubeconfig.read(config)))
        assert [node["metadata"]["name"] for node in api.list("v1", "Node")] == ["gpu-node-1"]
        servers = subprocess.run(["pgrep", "-P", str(starter.pid)], capture_output=True, text=True, check=True).stdout.split()
        assert len(servers) == 5
    finally:
        starter.send_signal(signal.SIGKILL)
        starter.wait()
        starter.stdout.close()
    deadline = time.monotonic() + 120
    while left := [server for server in servers if _runs(server)]:  # a killed process ends in a moment
        assert time.monotonic() < deadline, f"processes {left} run on"
        time.sleep(0.05)
    with pytest.raises(ApiError, match="cannot be reached"):
        api.get("/version")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert list(tmp_path.iterdir())
    remove_abandoned()  # as the next one that is started does
    assert not list(tmp_path.iterdir())
