"""Existing exporters: adopted where they serve the right metrics and the stack file says so; our own are never taken for one."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.ports import free_ports
from tests.host.parts.places import parts_of
from tests.host.parts.test_probes import facts_of, probe

NODE = 'node_uname_info{nodename="gpu-node-001"} 1\n'
DCGM = 'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1"} 40\n'
NVIDIA = 'nvidia_smi_gpu_info{uuid="1",name="NVIDIA H100"} 1\n'

Serve = Callable[[str], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Gives a body at http://ADDRESS/metrics; returns the address."""
    servers = []

    def serve(body: str) -> str:
        class Metrics(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                pass

        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metrics))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"127.0.0.1:{servers[-1].server_address[1]}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def asked(prefix: Path, node: str = "", gpu: str = "", **settings: str) -> dict[str, str]:
    [port] = free_ports(1)
    nobody = f"127.0.0.1:{port}"
    environment = {
        "GPU_FLEET_PREFIX": str(prefix),
        "GPU_FLEET_ADOPT": "yes",
        "GPU_FLEET_NODE_EXPORTER_LISTEN": node or nobody,
        "GPU_FLEET_GPU_EXPORTER_LISTEN": gpu or nobody,
        **settings,
    }
    return facts_of(probe("adoption", environment))


def test_existing_exporters_are_adopted_with_their_address_and_the_reason(tmp_path: Path, serve: Serve) -> None:
    node, gpu = serve(NODE), serve(DCGM)
    assert asked(tmp_path, node, gpu) == {
        "GPU_FLEET_NODE_EXPORTER_ADOPTED": "yes",
        "GPU_FLEET_NODE_EXPORTER_REASON": f"adopted: already running on {node}",
        "GPU_FLEET_GPU_EXPORTER_ADOPTED": "yes",
        "GPU_FLEET_EXPORTER_MODE": "dcgm-exporter",
        "GPU_FLEET_EXPORTER_REASON": f"adopted: already running on {gpu}",
        "GPU_FLEET_GPU_EXPORTER_LISTEN": gpu,
    }
    assert asked(tmp_path, node, serve(NVIDIA))["GPU_FLEET_EXPORTER_MODE"] == "nvidia_gpu_exporter"


@pytest.mark.parametrize(
    ("node", "gpu", "settings"),
    [
        (NODE, DCGM, {"GPU_FLEET_ADOPT": "no"}),
        ("welcome to nginx\n", "go_goroutines 7\n", {}),
        ("", NVIDIA, {"GPU_FLEET_EXPORTER": "dcgm-exporter"}),
    ],
    ids=["adoption is off", "other programs", "not the exporter in the stack file"],
)
def test_an_exporter_that_is_not_requested_or_not_the_right_one_is_not_adopted(
    tmp_path: Path, serve: Serve, node: str, gpu: str, settings: dict[str, str]
) -> None:
    facts = asked(tmp_path, serve(node), serve(gpu), **settings)
    assert (facts["GPU_FLEET_NODE_EXPORTER_ADOPTED"], facts["GPU_FLEET_GPU_EXPORTER_ADOPTED"]) == ("no", "no")
    assert "GPU_FLEET_EXPORTER_MODE" not in facts, "choose-exporter decides"
    assert facts["GPU_FLEET_NODE_EXPORTER_REASON"].startswith("ours, because ")


def test_ours_are_not_adopted_by_the_second_run(tmp_path: Path, serve: Serve) -> None:
    records = tmp_path / "var/lib/gpu-fleet/placed"
    records.parent.mkdir(parents=True)
    units = {"gpu-fleet-node-exporter": "node-exporter", "gpu-fleet-nvidia-gpu-exporter": "nvidia-gpu-exporter"}
    records.write_text("".join(f"unit\t{unit}\t{part}\tservice\tsystemd\t-\n" for unit, part in units.items()))
    facts = asked(tmp_path, serve(NODE), serve(NVIDIA))
    assert (facts["GPU_FLEET_NODE_EXPORTER_ADOPTED"], facts["GPU_FLEET_GPU_EXPORTER_ADOPTED"]) == ("no", "no")


def test_a_host_with_adopted_exporters_gets_none_of_ours_and_reads_our_textfiles_itself() -> None:
    adopted = {"GPU_FLEET_NODE_EXPORTER_ADOPTED": "yes", "GPU_FLEET_GPU_EXPORTER_ADOPTED": "yes"}
    for mode in ("dcgm-exporter", "nvidia_gpu_exporter"):
        parts = parts_of({**adopted, "GPU_FLEET_EXPORTER_MODE": mode, "GPU_VENDOR": "nvidia"})
        units = {unit.name for part in parts for unit in part.units}
        assert units == {"gpu-fleet-textfile", "gpu-fleet-alloy", "gpu-fleet-check"}
        files = {file.path for part in parts for file in part.files if file.path.startswith("/etc/gpu-fleet/alloy/collect_")}
        assert files >= {"/etc/gpu-fleet/alloy/collect_textfiles.alloy", "/etc/gpu-fleet/alloy/collect_gpu_exporter.alloy"}
