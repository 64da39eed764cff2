"""What pods print, read by the real Alloy with a cluster's configuration from files as a kubelet writes them."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from components.kubernetes import values
from components.kubernetes.alloy_config import alloy_config
from gpu_fleet import toolchain
from lab.kubernetes import Cluster
from lab.ports import free_ports
from tests.host.parts.receiver import Receiver
from tests.kubernetes.plans import plan


def running_pod(cluster: Cluster, namespace: str, node: str) -> str:
    """A pod of this node; its uid."""
    spec = {
        "nodeName": node,
        "containers": [{"name": "train", "image": "r.example/x:1"}],
        "tolerations": [{"operator": "Exists"}],
    }
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"on-{node}", "namespace": namespace}, "spec": spec})
    pod = cluster.api.read("v1", "Pod", f"on-{node}", namespace)
    return str(pod["metadata"]["uid"])


def write_log(pods: Path, namespace: str, pod: str, uid: str, text: str, ago_s: float = 0) -> None:
    file = pods / f"{namespace}_{pod}_{uid}" / "train" / "0.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000000000Z", time.gmtime(time.time() - ago_s))
    with file.open("a") as log:
        log.write(f"{stamp} stdout F {text}\n")


def test_logs_of_chosen_namespaces_go_to_loki_and_a_pod_makes_no_stream(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    receiver, pods = Receiver(), tmp_path / "pods"
    wanted = plan(
        metrics={"url": f"{receiver.url}/api/v1/push"},
        logs={"url": f"{receiver.url}/loki/api/v1/push"},
        prometheusOperator="existing",
        podLogs=[namespace],
    )
    uids = {node: running_pod(cluster, namespace, node) for node in ("gpu-node-1", "gpu-node-2")}
    for node, uid in uids.items():
        write_log(pods, namespace, f"on-{node}", uid, "days before Alloy was installed", 8 * 3600)
        write_log(pods, namespace, f"on-{node}", uid, f"loss 0.1 on {node}")
    write_log(pods, "kube-system", "other", "0", "not ours")
    text = alloy_config(wanted.section, wanted.metrics, wanted.logs).replace("/var/log/pods", str(pods))
    (tmp_path / "config.alloy").write_text(text)
    (port,) = free_ports(1)
    environment = {one["name"]: one.get("value", "gpu-node-1") for one in values.alloy(wanted)["alloy"]["extraEnv"]}
    environment |= {
        "KUBECONFIG": str(cluster.kubeconfig),
        "GPU_FLEET_ALLOY_LISTEN": f"127.0.0.1:{port}",
        "PATH": os.environ["PATH"],
    }
    command = [toolchain.find("alloy"), "run", tmp_path / "config.alloy", f"--storage.path={tmp_path / 'data'}"]
    options = [f"--server.http.listen-addr=127.0.0.1:{port}", "--disable-reporting"]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen([*command, *options], env=environment, stderr=log) as process:
        try:
            receiver.wait_for(lambda: receiver.lines)
            # Alloy finds all files at once: what must not come would come before what is written only now.
            write_log(pods, namespace, "on-gpu-node-1", uids["gpu-node-1"], "loss 0.05 on gpu-node-1")
            receiver.wait_for(lambda: any(line.line == "loss 0.05 on gpu-node-1" for line in receiver.lines))
        finally:
            process.terminate()
    receiver.close()
    line, _ = receiver.lines
    # Nor what Loki would refuse as too old, and LogsLost would count.
    assert line.line == "loss 0.1 on gpu-node-1", "an agent reads its own node alone, and only the namespaces asked for"
    assert line.labels == {
        "job": "pods",
        "namespace": namespace,
        "container_shard": line.labels["container_shard"],
        "instance": "gpu-node-1",
        "datacenter": "us-west",
        "cluster": "training",
        "exporter_mode": "dcgm-exporter",
    }
    assert line.metadata == {"pod": "on-gpu-node-1", "container": "train"}
