"""The Job that puts a known load on one GPU of a cluster: NVIDIA's dcgmproftester. Pure."""

from __future__ import annotations

from typing import Any, Final

from gpu_fleet.stackfile.kubernetes import Kubernetes
from gpu_fleet.toolchain.versions import image

NAME: Final = "gpu-load"
IMAGE: Final = "dcgm"  # in gpu_fleet/toolchain/versions.yaml
PROGRAM: Final = "dcgmproftester12"  # of CUDA 12, which newer drivers run too
_START_S: Final = 300  # until the image is pulled and a GPU is free
_KEPT_S: Final = 600  # a finished Job, for people to look at


def arguments(test: int, duration_s: int) -> list[str]:
    """Source: DCGM user guide, "Profiling metrics", dcgmproftester; read 2026-11-21."""
    return ["--no-dcgm-validation", "-t", str(test), "-d", str(duration_s)]


def load_job(
    section: Kubernetes, name: str, *, test: int, duration_s: int, resource: str, node: str | None = None
) -> dict[str, Any]:
    """`resource`: what the pod asks one of, nvidia.com/gpu or an instance of one. `node`: None: whichever has one free."""
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "tolerations": [toleration.model_dump(exclude_none=True) for toleration in section.tolerations],
        "containers": [
            {
                "name": "dcgmproftester",
                "image": image(IMAGE).reference,
                "command": [PROGRAM],
                "args": arguments(test, duration_s),
                "resources": {"limits": {resource: 1}},
                "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}},
            }
        ],
    }
    if node:
        pod["nodeSelector"] = {"kubernetes.io/hostname": node}
    labels = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/part-of": "gpu-fleet"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": section.namespace, "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": _START_S + duration_s,
            "ttlSecondsAfterFinished": _KEPT_S,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
