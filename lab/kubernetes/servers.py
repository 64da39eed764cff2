"""The programs of a cluster as processes: their command lines, in the order in which they start.

Source: the reference pages of each under https://kubernetes.io/docs/reference/command-line-tools-reference/ and
https://kwok.sigs.k8s.io/docs/generated/kwok/ (read November 2026).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from gpu_fleet import toolchain

STOP_S = 20.0  # etcd and the API server take up to 15 s when others still talk to them
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class Server:
    """`program` is its name in the toolchain; `arguments` are its flags without the leading dashes."""

    program: str
    arguments: dict[str, str]
    more: tuple[str, ...] = ()

    def start(self, directory: Path) -> subprocess.Popen[bytes]:
        """Its log is `directory`/NAME.log. It ends with the process that starts it, however that ends."""
        flags = [f"--{name}={value}" for name, value in self.arguments.items()]
        with (directory / f"{self.program}.log").open("w") as log:
            return subprocess.Popen(
                [toolchain.find(self.program), *flags, *self.more],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us: we end them in the right order
                preexec_fn=end_with_parent,
            )


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_with_parent() -> None:
    parent = os.getppid()
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


def etcd(client_port: int, peer_port: int) -> Server:
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    return Server(
        "etcd",
        {
            "data-dir": "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "log-level": "warn",
        },
        more=("--unsafe-no-fsync",),
    )


def kube_apiserver(port: int, etcd_port: int) -> Server:
    return Server(
        "kube-apiserver",
        {
            "etcd-servers": f"http://127.0.0.1:{etcd_port}",
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": str(port),
            "tls-cert-file": "kube-apiserver.crt",
            "tls-private-key-file": "kube-apiserver.key",
            "client-ca-file": "ca.crt",
            "authorization-mode": "RBAC",
            "service-account-key-file": "service-accounts.pub",
            "service-account-signing-key-file": "service-accounts.key",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-cluster-ip-range": "10.0.0.0/24",
            "allow-privileged": "true",
            "endpoint-reconciler-type": "none",
            # What an aggregated API (custom metrics) trusts the callers' names from.
            "requestheader-client-ca-file": "ca.crt",
            "requestheader-allowed-names": "front-proxy",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": "front-proxy.crt",
            "proxy-client-key-file": "front-proxy.key",
        },
    )


def kube_controller_manager(port: int) -> Server:
    return Server(
        "kube-controller-manager",
        {
            "kubeconfig": "kubeconfig",
            "bind-address": "127.0.0.1",
            "secure-port": str(port),
            "service-account-private-key-file": "service-accounts.key",
            "root-ca-file": "ca.crt",
            "use-service-account-credentials": "true",
            "leader-elect": "false",
            "kube-api-qps": "200",
            "kube-api-burst": "400",
            # Its usual 15 s, 30 s and 5 min would be most of a test's time.
            "horizontal-pod-autoscaler-sync-period": "1s",
            "horizontal-pod-autoscaler-initial-readiness-delay": "1s",
            "horizontal-pod-autoscaler-downscale-stabilization": "5s",
        },
    )


def kube_scheduler(port: int) -> Server:
    return Server(
        "kube-scheduler",
        {"kubeconfig": "kubeconfig", "bind-address": "127.0.0.1", "secure-port": str(port), "leader-elect": "false"},
    )


def kwok(pod_cidr: str) -> Server:
    """The kubelets of all nodes at once; `pod_cidr` is where pods get their addresses from."""
    stages = sorted((Path(__file__).parent / "stages").glob("*.yaml"))
    return Server(
        "kwok",
        {
            "kubeconfig": "kubeconfig",
            "manage-all-nodes": "true",
            "cidr": pod_cidr,
            "node-ip": "127.0.0.1",
            "node-lease-duration-seconds": "40",
        },
        more=tuple(f"--config={stage}" for stage in stages),
    )
