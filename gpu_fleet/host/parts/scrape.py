"""Exporters that an external Prometheus can scrape: a second process of each, with TLS and a login.

The first processes stay on loopback in plain text for Alloy, so that nothing here (an expired certificate, a wrong password) can
stop the metrics that are pushed. dcgm-exporter supports TLS and logins, but listens on only one address, and two of them cannot
share the GPUs: it "would fail to initialize some modules if there is another nv-hostengine process on the same physical machine"
(NVIDIA in dcgm-exporter's issue 61; read 2026-11-21). Its second process is a node_exporter that serves a copy of its metrics.
Adopted exporters are not exposed here; that is up to their administrator.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_fleet.host.part import File, FileCheck, Part, PortCheck, Unit, User, secret_group
from gpu_fleet.host.parts import node_exporter, nvidia_gpu_exporter
from gpu_fleet.host.parts.adoption import GPU_EXPORTER_ADOPTED, NODE_EXPORTER_ADOPTED
from gpu_fleet.host.parts.exporter_choice import DCGM_EXPORTER, NVIDIA_GPU_EXPORTER

WEB_CONFIG = "scrape-web-config"  # secret: the exporters' web configuration, with the login's hash
# gpu-fleet: the directory of the secrets, and the site's TLS key; ssl-cert: Debian's group for TLS keys.
_GROUPS = ("gpu-fleet", secret_group(WEB_CONFIG), "ssl-cert")
_PUSHED = {"GPU_FLEET_MODE": ("push",)}  # hosts in pull mode get no secrets of the stack
_START = "/opt/gpu-fleet/libexec/start-scrape"
_START_NODE = f"{_START}-node"
_START_GPU = f"{_START}-gpu"
_START_DCGM = f"{_START}-dcgm"


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
                users=(User(name="gpu-fleet-scrape-node", groups=_GROUPS),),
                files=(File.from_rootfs(_START_NODE),),
                settings={"GPU_FLEET_SCRAPE_NODE_LISTEN": self.node_exporter_listen},
                secrets=(WEB_CONFIG,),
                units=(_unit("gpu-fleet-scrape-node", node_exporter.PROGRAM, node_exporter.START, _START_NODE),),
                checks=(PortCheck(address="${GPU_FLEET_SCRAPE_NODE_LISTEN}"),),
            ),
            Part(
                name="scrape-gpu",
                when={**_PUSHED, "GPU_FLEET_EXPORTER_MODE": (NVIDIA_GPU_EXPORTER,), GPU_EXPORTER_ADOPTED: ("no",)},
                users=(User(name="gpu-fleet-scrape-gpu", groups=(*_GROUPS, "video", "render")),),
                files=(File.from_rootfs(_START_GPU),),
                settings={"GPU_FLEET_SCRAPE_GPU_LISTEN": self.gpu_exporter_listen},
                secrets=(WEB_CONFIG,),
                units=(_unit("gpu-fleet-scrape-gpu", *nvidia_gpu_exporter.STARTED_BY, _START_GPU),),
                checks=(PortCheck(address="${GPU_FLEET_SCRAPE_GPU_LISTEN}"),),
            ),
            Part(
                name="scrape-dcgm",
                when={
                    **_PUSHED,
                    "GPU_FLEET_EXPORTER_MODE": (DCGM_EXPORTER,),
                    GPU_EXPORTER_ADOPTED: ("no",),
                    NODE_EXPORTER_ADOPTED: ("no",),  # it runs our node_exporter, which is not placed on other hosts
                },
                users=(User(name="gpu-fleet-scrape-dcgm", groups=_GROUPS),),
                files=(File.from_rootfs(_START_DCGM),),
                settings={"GPU_FLEET_SCRAPE_GPU_LISTEN": self.gpu_exporter_listen},
                secrets=(WEB_CONFIG,),
                units=(_unit("gpu-fleet-scrape-dcgm", node_exporter.PROGRAM, _START_DCGM),),
                checks=(
                    FileCheck(path="/run/gpu-fleet-scrape-dcgm/dcgm-exporter.prom", fresh_s=30),
                    PortCheck(address="${GPU_FLEET_SCRAPE_GPU_LISTEN}"),
                ),
            ),
        )


def _unit(name: str, *causes: str) -> Unit:
    return Unit(name=name, restart_on=(*causes, "settings", f"secrets/{WEB_CONFIG}"))
