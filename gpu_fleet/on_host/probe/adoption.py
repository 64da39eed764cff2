"""Which existing exporters are adopted: those that respond on loopback with the metrics of their kind, if the stack file says so.

GPU_FLEET_ADOPT: yes or no. GPU_FLEET_EXPORTER: the stack file's setting, which an adopted GPU exporter has to match. They are
asked on our address for them, and on the default ports of the GPU exporters.
"""

from __future__ import annotations

import re
from typing import Mapping

from .. import page
from .host import Host

PATIENCE_S = 10  # nvidia_gpu_exporter queries every GPU before it responds
DCGM_PORT, NVIDIA_PORT = 9400, 9835
# What shows that GPUs are readable: an open port alone does not.
_OF_GPUS = (
    ("dcgm-exporter", r'DCGM_FI_[A-Z_]*\{gpu="'),
    ("nvidia_gpu_exporter", r"nvidia_smi_gpu_info\{"),
)


def probe(host: Host) -> Mapping[str, str]:
    """GPU_FLEET_NODE_EXPORTER_ADOPTED and _REASON, GPU_FLEET_GPU_EXPORTER_ADOPTED, and of an adopted one what it is and where."""
    if host.setting("ADOPT", "no") != "yes":
        return {**_node_exporter("no", "ours, because the stack file does not set adopt: true"), **_NO_GPU_EXPORTER}
    listen = host.setting("NODE_EXPORTER_LISTEN")
    if _is_ours(host, "node-exporter"):
        node = _node_exporter("no", "ours is already installed")
    else:
        metrics = _metrics(listen)
        if not metrics:
            node = _node_exporter("no", f"ours, because none responds on {listen}")
        elif re.search(r"^node_uname_info\{", metrics, re.MULTILINE):
            node = _node_exporter("yes", f"adopted: already running on {listen}")
        else:
            node = _node_exporter("no", f"ours, because the program on {listen} is not a node_exporter")
    return {**node, **_gpu_exporter(host)}


_NO_GPU_EXPORTER = {"GPU_FLEET_GPU_EXPORTER_ADOPTED": "no"}


def _node_exporter(is_adopted: str, reason: str) -> dict[str, str]:
    return {"GPU_FLEET_NODE_EXPORTER_ADOPTED": is_adopted, "GPU_FLEET_NODE_EXPORTER_REASON": reason}


def _gpu_exporter(host: Host) -> Mapping[str, str]:
    if _is_ours(host, "dcgm-exporter", "dcgm-exporter-podman", "dcgm-exporter-host", "nvidia-gpu-exporter"):
        return _NO_GPU_EXPORTER
    wanted = host.setting("EXPORTER", "auto")
    ports = [f"127.0.0.1:{port}" for port in (DCGM_PORT, NVIDIA_PORT)]
    for address in dict.fromkeys([host.setting("GPU_EXPORTER_LISTEN"), *ports]):
        mode = exporter_of(_metrics(address))
        if mode and wanted in ("auto", mode):
            return {
                "GPU_FLEET_GPU_EXPORTER_ADOPTED": "yes",
                "GPU_FLEET_EXPORTER_MODE": mode,
                "GPU_FLEET_EXPORTER_REASON": f"adopted: already running on {address}",
                "GPU_FLEET_GPU_EXPORTER_LISTEN": address,
            }
    return _NO_GPU_EXPORTER


def exporter_of(metrics: str) -> str:
    """dcgm-exporter, nvidia_gpu_exporter, or empty."""
    return next((mode for mode, shown_by in _OF_GPUS if re.search(f"^{shown_by}", metrics, re.MULTILINE)), "")


def _metrics(address: str) -> str:
    """What the program on this address says, empty where none responds."""
    try:
        return page.metrics(address, PATIENCE_S)
    except (OSError, ValueError):
        return ""


def _is_ours(host: Host, *units: str) -> bool:
    """Did we place one of these units? Then it is the one that responds."""
    return any(host.has_placed("unit", f"gpu-fleet-{unit}") for unit in units)
