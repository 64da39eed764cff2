"""One host of a stack with every default filled in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpu_fleet.stackfile.hosts import Bastion, Exporter, Ports, Role, ServiceManager, Vendor


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
    min_driver: str | None  # None: any version
    exporter: Exporter
    vendor: Vendor
    kernel_log: str  # "auto", "journal" or the path of a file
    tool_path: tuple[str, ...]
    service_manager: ServiceManager
    supervisord: str | None
    python: str  # "auto", "present" or the path of a program
    ports: Ports
    adopt: bool
    replace_old_collector: bool
    maintenance: str | None  # why the host is out of service; None: it is in service
    lost: bool
    role: Role
