"""A running Alloy with the configuration a host gets, and a stand-in for every neighbour it talks to."""

from __future__ import annotations

import os
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpu_fleet.toolchain import find
from lab.ports import free_ports
from tests.host.parts.places import defaults, parts_of, place
from tests.host.parts.receiver import Receiver

IDENTITY = {
    "GPU_FLEET_INSTANCE": "gpu-node-001",
    "GPU_FLEET_DATACENTER": "us-west",
    "GPU_FLEET_CLUSTER": "training",
}


@dataclass(frozen=True)
class RunningAlloy:
    receiver: Receiver
    prefix: Path
    url: str

    def wait_until_read(self, log: Path) -> None:
        """Returns when Alloy has opened this log: what is written from now on, it sees."""
        self.receiver.wait_for(lambda: self._is_reading(log))

    def _is_reading(self, log: Path) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as answer:
                return f'path="{log}"' in answer.read().decode()
        except OSError:
            return False


def kernel_log_facts(log: Path) -> dict[str, str]:
    """What the probes say of an NVIDIA host whose kernel messages are in a file."""
    return {
        "GPU_FLEET_EXPORTER_MODE": "nvidia_gpu_exporter",
        "GPU_FLEET_KERNEL_LOG_SOURCE": "file",
        "GPU_FLEET_KERNEL_LOG_FILE": str(log),
    }


@contextmanager
def running_alloy(
    prefix: Path, facts: Mapping[str, str], receiver: Receiver | None = None, config: str = "", **options: object
) -> Iterator[RunningAlloy]:
    """Alloy over the files of the parts that a host with `facts` wants, and `config`, started as its unit starts it."""
    receiver = receiver or Receiver()
    exporter = serve_metrics('node_uname_info 1\nnvidia_smi_gpu_info{instance="exporter\'s own"} 1\n')
    parts = parts_of(facts, **options)
    place(parts, prefix)
    program = prefix / "opt/gpu-fleet/bin/alloy"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.symlink_to(find("alloy"))
    for file in (prefix / "etc/gpu-fleet/alloy").iterdir():  # the same configuration, only more often
        file.write_text(file.read_text().replace('"15s"', '"1s"').replace('"10s"', '"1s"'))
    (prefix / "etc/gpu-fleet/alloy/of_the_test.alloy").write_text(config)
    [port] = free_ports(1)
    address = f"127.0.0.1:{port}"
    exporter_address = f"127.0.0.1:{exporter.server_port}"
    environment = {
        "PATH": os.environ["PATH"],
        "GPU_FLEET_PREFIX": str(prefix),
        **defaults(parts),
        **IDENTITY,
        "GPU_FLEET_NODE_EXPORTER_LISTEN": exporter_address,
        "GPU_FLEET_GPU_EXPORTER_LISTEN": exporter_address,
        "GPU_FLEET_ALLOY_LISTEN": address,
        "GPU_FLEET_METRICS_URL": f"{receiver.url}/api/v1/push",
        "GPU_FLEET_LOGS_URL": f"{receiver.url}/loki/api/v1/push",
        **facts,
    }
    with (prefix / "alloy.log").open("wb") as log:
        process = subprocess.Popen(
            [prefix / "opt/gpu-fleet/libexec/start-alloy"], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield RunningAlloy(receiver=receiver, prefix=prefix, url=f"http://{address}")
        assert process.poll() is None, (prefix / "alloy.log").read_text()[-4000:]
    finally:
        process.terminate()
        process.wait(timeout=120)
        exporter.shutdown()
        exporter.server_close()
        receiver.close()


def serve_metrics(body: str, at: tuple[str, int] = ("127.0.0.1", 0)) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(at, Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture(scope="module")
def alloy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAlloy]:
    """A host with nvidia_gpu_exporter."""
    with running_alloy(tmp_path_factory.mktemp("host"), {"GPU_FLEET_EXPORTER_MODE": "nvidia_gpu_exporter"}) as running:
        yield running
