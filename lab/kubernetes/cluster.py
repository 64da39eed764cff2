"""A cluster: its servers, its nodes, its users. What it holds is reached by `api` or by any program that takes a kubeconfig."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from lab.kubernetes import kubeconfig, servers
from lab.kubernetes.api import Api, ApiError, Manifest
from lab.kubernetes.certificates import Authority, write_key_pair
from lab.kubernetes.servers import Server
from lab.ports import free_ports

READY_S = 300.0  # it takes 3 s on an idle machine
T = TypeVar("T")
PREFIX = "gpu-fleet-kubernetes-"  # of a cluster's temporary directory; its starter's process id follows
ADMINS = "system:masters"  # the group that RBAC lets do everything


class ClusterError(Exception):
    """The cluster did not come up, or did not come to what was waited for."""


class Cluster:
    """`directory` holds its certificates, logs and data; `kubeconfig` is that of an administrator.

    `pod_cidr`: pods get their addresses from it. It is on loopback, so that a program can listen on a pod's address.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.kubeconfig = directory / "kubeconfig"
        # Another cluster on this machine must not give the same ones: what is put on them would collide.
        self.pod_cidr = f"127.{random.randrange(20, 250)}.{random.randrange(256)}.0/24"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._authority = Authority(directory)
        self._port, self._etcd_port, self._peer_port, self._manager_port, self._scheduler_port = free_ports(5)
        self.url = f"https://127.0.0.1:{self._port}"

    @classmethod
    def up(cls, directory: Path | None = None) -> Cluster:
        """Starts one and waits until it can be used. Raises ClusterError, leaving nothing.

        `directory` must be empty; without one it is a temporary one, removed by `down`.
        """
        if directory is None:
            remove_abandoned()
            directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        cluster = cls(directory)
        try:
            cluster._start()
        except BaseException:
            cluster.down()
            raise
        return cluster

    def down(self) -> None:
        """Ends the servers, clients first: etcd and the API server wait for theirs."""
        while self._processes:
            servers.stop(self._processes.pop())
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    # --- nodes and users ---

    def add_node(
        self,
        name: str,
        *,
        gpus: int = 0,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
        address: str = "127.0.0.1",
        kubelet_port: int = 10250,
    ) -> Manifest:
        """A node that becomes Ready within a second. One with GPUs has the labels of NVIDIA's GPU feature discovery.

        `taints`: e.g. {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}. `address`: its InternalIP.
        """
        resources = {"cpu": "32", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti"}
        known = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        if gpus:
            resources["nvidia.com/gpu"] = str(gpus)
            known |= {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": str(gpus)}
        return self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": known | dict(labels or {})},
                "spec": {"taints": [dict(taint) for taint in taints]},
                "status": {
                    "capacity": resources,
                    "allocatable": resources,
                    "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
                    "nodeInfo": {"kubeletVersion": self.version},
                    "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
                },
            }
        )

    def login(self, user: str, rules: Sequence[Mapping[str, Any]] = (), *, namespace: str = "") -> Path:
        """The kubeconfig of a person who may do what `rules` (of a ClusterRole) say and nothing else.

        `namespace`: the rules hold there alone.
        """
        rbac = "rbac.authorization.k8s.io"
        self.api.apply(
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "ClusterRole",
                "metadata": {"name": user},
                "rules": [dict(rule) for rule in rules],
            }
        )
        self.api.apply(
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
                "metadata": {"name": user, **({"namespace": namespace} if namespace else {})},
                "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": user},
                "subjects": [{"apiGroup": rbac, "kind": "User", "name": user}],
            }
        )
        return self._write_kubeconfig(self.directory / f"{user}.kubeconfig", user)

    def server_certificate(self, name: str) -> tuple[Path, Path]:
        """Certificate and key of a server on this machine that the cluster's authority signed."""
        return self._authority.server(name)

    def namespace(self, name: str) -> str:
        """Makes a namespace in which pods can be created at once."""
        self.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.wait_for(f"the service account of {name}", lambda: self.api.read("v1", "ServiceAccount", "default", name))
        return name

    # --- what it holds ---

    @property
    def api(self) -> Api:
        return self._api

    @property
    def version(self) -> str:
        """As the API server says it, e.g. v1.36.3."""
        return self.api.get("/version")["gitVersion"]

    def apply(self, *manifests: Manifest) -> list[Manifest]:
        return [self.api.apply(manifest, force=True) for manifest in manifests]

    def wait_for(self, what: str, holds: Callable[[], T], within_s: float = 180.0, shown: Callable[[], object] = lambda: "") -> T:
        """The first true value of `holds()`. Raises ClusterError with what is `shown` then."""
        deadline = time.monotonic() + within_s
        while not (value := holds()):
            if time.monotonic() > deadline:
                raise ClusterError(f"{what}: not within {within_s} s: {shown()}")
            time.sleep(0.05)
        return value

    # --- starting it ---

    def _start(self) -> None:
        self._authority.server("kube-apiserver")
        self._authority.client("front-proxy")
        write_key_pair(self.directory, "service-accounts")
        self._write_kubeconfig(self.kubeconfig, "admin", ADMINS)
        self._api = Api(kubeconfig.connection(kubeconfig.read(str(self.kubeconfig))))
        self._run(servers.etcd(self._etcd_port, self._peer_port))
        self._run(servers.kube_apiserver(self._port, self._etcd_port))
        self.wait_for("the API server", self._is_ready, READY_S)
        self._run(servers.kube_controller_manager(self._manager_port))
        self._run(servers.kube_scheduler(self._scheduler_port))
        self._run(servers.kwok(self.pod_cidr))
        self.namespace("default")

    def _run(self, server: Server) -> None:
        self._processes.append(server.start(self.directory))

    def _is_ready(self) -> bool:
        for process in self._processes:
            if process.poll() is not None:
                raise ClusterError(f"{Path(str(process.args[0])).name} ended:\n{self._end_of_log(process)}")
        try:
            return self.api.text("/readyz") == "ok"
        except ApiError:
            return False

    def _end_of_log(self, process: subprocess.Popen[bytes]) -> str:
        return "\n".join((self.directory / f"{Path(str(process.args[0])).name}.log").read_text().splitlines()[-15:])

    def _write_kubeconfig(self, file: Path, user: str, *groups: str) -> Path:
        certificate, key = self._authority.client(user, groups)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "lab", "cluster": {"server": self.url, "certificate-authority": str(self._authority.certificate_file)}}
            ],
            "users": [{"name": user, "user": {"client-certificate": str(certificate), "client-key": str(key)}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
            "current-context": "lab",
        }
        file.touch(mode=0o600)
        file.write_text(yaml.safe_dump(config))
        return file


def remove_abandoned() -> None:
    """The directories of clusters whose starter was killed: their servers ended with it, 124 MB each did not."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}[0-9]*-*"):
        if not Path("/proc", directory.name.removeprefix(PREFIX).partition("-")[0]).exists():
            shutil.rmtree(directory, ignore_errors=True)
