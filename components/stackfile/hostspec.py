"""One host of a stack with every default filled in, and what it is told in its environment file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from components.stackfile.hosts import Bastion, Exporter, HostEntry, Ports, ServiceManager, Vendor

if TYPE_CHECKING:
    from components.config import StackConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSpec:
    """One host. Paths of local hosts are absolute on this machine; `prefix` is empty for hosts reached by SSH, and
    `private_key_file` is as the stack file writes it."""

    name: str  # label `instance`, never the address
    address: str
    port: int
    user: str
    connection: Literal["ssh", "local", "pull"]  # nothing is done from here to one that pulls
    prefix: str
    private_key_file: str | None
    bastion: Bastion | None
    sudo: bool
    host_key: str | None
    gpus: int | None  # None: the driver check does not count
    exporter: Exporter
    vendor: Vendor
    kernel_log: str  # "auto", "journal" or the path of a file
    tool_path: tuple[str, ...]
    service_manager: ServiceManager
    supervisord: str | None
    ports: Ports
    adopt: bool
    lost: bool

    def settings(self, stack: StackConfig) -> dict[str, str]:
        """Its environment file, as the stack file alone decides it: defaults of parts and facts are not here."""
        metrics, logs = stack.metrics, stack.logs
        values = {
            "STACK": f"{stack.datacenter}/{stack.cluster}",
            "INSTANCE": self.name,
            "DATACENTER": stack.datacenter,
            "CLUSTER": stack.cluster,
            "EXPORTER": self.exporter,
            "VENDOR": self.vendor,
            "ADOPT": "yes" if self.adopt else "no",
            "GPUS": "" if self.gpus is None else str(self.gpus),
            "TOOL_PATH": ":".join(self.tool_path),
            "SERVICE_MANAGER": self.service_manager,
            "SUPERVISORD": self.supervisord or "",
            "KERNEL_LOG": self.kernel_log,
            "GPU_EXPORTER_LISTEN": f"127.0.0.1:{self.ports.gpu_exporter}",
            "NODE_EXPORTER_LISTEN": f"127.0.0.1:{self.ports.node_exporter}",
            "ALLOY_LISTEN": f"127.0.0.1:{self.ports.alloy}",
            "METRICS_URL": metrics.url if metrics else "",
            "METRICS_TENANT": (metrics and metrics.tenant) or "",
            "METRICS_USERNAME": (metrics and metrics.username) or "",
            "LOGS_URL": logs.url if logs else "",
            "LOGS_TENANT": (logs and logs.tenant) or "",
            "LOGS_USERNAME": (logs and logs.username) or "",
        }
        return {f"GPU_FLEET_{name}": value for name, value in values.items()}


# What every host has of its own. The stack is told with the host, so that what is removed from it knows whose it was.
_OF_ONE_HOST = {"GPU_FLEET_STACK", "GPU_FLEET_INSTANCE"}


def shared_settings(stack: StackConfig) -> dict[str, str]:
    """What a host is told of which the stack file says nothing but that it exists."""
    entry = HostEntry()
    spec = HostSpec(
        name="",
        address="",
        port=0,
        user="",
        connection="local",
        prefix="",
        private_key_file=None,
        bastion=None,
        sudo=False,
        host_key=None,
        gpus=entry.gpus,
        exporter=entry.exporter,
        vendor=entry.vendor,
        kernel_log=entry.kernel_log,
        tool_path=(),
        service_manager=entry.service_manager,
        supervisord=entry.supervisord,
        ports=entry.ports,
        adopt=entry.adopt,
        lost=False,
    )
    return {name: value for name, value in spec.settings(stack).items() if name not in _OF_ONE_HOST}
