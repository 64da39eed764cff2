"""The service account's token and the kubelets: the real Alloy of a node, and HTTPS servers in place of kubelets."""

from __future__ import annotations

import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from lab.kubernetes import Cluster
from tests.host.parts.receiver import Receiver
from tests.kubernetes.agents import TOKEN, agent
from tests.kubernetes.plans import plan


@contextmanager
def kubelet(certificate: Path, key: Path) -> Iterator[tuple[int, list[str]]]:
    """Its port, and the logins that it was sent."""
    logins: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            logins.append(self.headers.get("Authorization", ""))
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(b"kubelet_running_pods 7\n")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], logins
        server.shutdown()


@contextmanager
def node(cluster: Cluster, name: str, kubelet_port: int) -> Iterator[None]:
    cluster.add_node(name, kubelet_port=kubelet_port)
    try:
        yield
    finally:
        cluster.api.delete({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})


def ups(receiver: Receiver) -> set[float]:
    return {value for labels, value in receiver.of("up") if labels["job"] in ("kubelet", "cadvisor")}


def test_a_kubelet_gets_the_token_only_when_the_clusters_authority_signed_its_certificate(
    cluster: Cluster, tmp_path: Path
) -> None:
    own = [tmp_path / "own.crt", tmp_path / "own.key"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    made += ["-subj", "/CN=kubelet", "-addext", "subjectAltName=IP:127.0.0.1", "-out", str(own[0]), "-keyout", str(own[1])]
    subprocess.run(made, check=True, capture_output=True)
    receiver = Receiver()
    options = {"metrics": {"url": f"{receiver.url}/api/v1/push"}, "logs": None}
    with kubelet(*own) as (port, logins), node(cluster, "own-ca", port):
        with agent(cluster, plan(**options), "own-ca", tmp_path / "verified"):
            receiver.wait_for(lambda: ups(receiver) == {0})
        assert logins == [], "whoever answers at a kubelet's address would have the token"
        with agent(cluster, plan(kubeletCertificates="self-signed", **options), "own-ca", tmp_path / "unverified"):
            receiver.wait_for(lambda: ups(receiver) == {1})
    receiver.series.clear()
    with kubelet(*cluster.server_certificate("kubelet")) as (port, logins), node(cluster, "signed", port):
        with agent(cluster, plan(**options), "signed", tmp_path / "signed"):
            receiver.wait_for(lambda: ups(receiver) == {1})
        assert set(logins) == {f"Bearer {TOKEN}"}
    receiver.close()
