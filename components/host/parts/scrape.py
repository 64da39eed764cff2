"""Exporters that a Prometheus may reach from outside: a second process of each, over TLS and with a login.

The first ones stay on loopback in clear for Alloy, so that nothing here (an expired certificate, a wrong password) can stop what
is pushed. dcgm-exporter has none: a second one would compete with the first for the GPUs' counters. Adopted exporters are opened
by whoever runs them.
"""

from __future__ import annotations

from dataclasses import dataclass

from components.host.part import File, Part, Unit, User
from components.host.parts import node_exporter, nvidia_gpu_exporter
from components.host.parts.adoption import GPU_EXPORTER_ADOPTED, NODE_EXPORTER_ADOPTED
from components.host.parts.exporter_choice import NVIDIA_GPU_EXPORTER

WEB_CONFIG = "scrape-web-config"  # secret: the exporters' web configuration, with the login's hash
_PUSHED = {"GPU_FLEET_MODE": ("push",)}  # a host that pulls is handed no secret of the stack
_START = "/opt/gpu-fleet/libexec/start-scrape"
_START_NODE = f"{_START}-node"
_START_GPU = f"{_START}-gpu"


@dataclass(frozen=True, kw_only=True)
class Scrape:
    """Where each listens, as address:port."""

    node_exporter_listen: str
    gpu_exporter_listen: str

    def parts(self) -> tuple[Part, ...]:
        return (
            Part(
                name="scrape-node",
                when={**_PUSHED, NODE_EXPORTER_ADOPTED: ("no",)},
                # gpu-fleet: the secret and the site's key; ssl-cert: keys as Debian keeps them.
                users=(User(name="gpu-fleet-scrape-node", groups=("gpu-fleet", "ssl-cert")),),
                files=(File.from_rootfs(_START_NODE),),
                settings={"GPU_FLEET_SCRAPE_NODE_LISTEN": self.node_exporter_listen},
                secrets=(WEB_CONFIG,),
                units=(_unit("gpu-fleet-scrape-node", node_exporter.PROGRAM, node_exporter.START, _START_NODE),),
            ),
            Part(
                name="scrape-gpu",
                when={**_PUSHED, "GPU_FLEET_EXPORTER_MODE": (NVIDIA_GPU_EXPORTER,), GPU_EXPORTER_ADOPTED: ("no",)},
                users=(User(name="gpu-fleet-scrape-gpu", groups=("gpu-fleet", "ssl-cert", "video", "render")),),
                files=(File.from_rootfs(_START_GPU),),
                settings={"GPU_FLEET_SCRAPE_GPU_LISTEN": self.gpu_exporter_listen},
                secrets=(WEB_CONFIG,),
                units=(_unit("gpu-fleet-scrape-gpu", nvidia_gpu_exporter.PROGRAM, nvidia_gpu_exporter.START, _START_GPU),),
            ),
        )


def _unit(name: str, *causes: str) -> Unit:
    return Unit(name=name, restart_on=(*causes, "settings", f"secrets/{WEB_CONFIG}"))
