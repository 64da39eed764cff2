"""Sections about hosts: how to log in, which hosts there are, what each of them is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gpu_fleet.stackfile.values import (
    Address,
    DriverVersion,
    HostKey,
    LocalPath,
    LoginName,
    Port,
    Section,
    Texts,
    duration,
    duration_s,
)

Exporter = Literal["auto", "dcgm-exporter", "nvidia_gpu_exporter", "textfile"]
Vendor = Literal["auto", "nvidia", "amd"]
ServiceManager = Literal["auto", "systemd", "supervisor"]
Role = Literal["gpu", "monitoring", "both"]
PYTHON_WORDS = ("auto", "present")
# Keys of a host whose values are paths there, and the words that may stand in their place.
PATHS: Mapping[str, tuple[str, ...]] = {
    "kernel_log": ("auto", "journal"),
    "python": PYTHON_WORDS,
    "supervisord": (),
    "tool_path": (),
}


class Bastion(Section):
    """The jump host that connections go through."""

    host: Address
    """Name or address of the jump host; its key is looked up in the known hosts file too."""
    port: Port = 22
    """Its SSH port."""
    user: LoginName | None = None
    """Login there; default: the login used on the hosts."""
    host_key: HostKey | None = None
    """Its public host key, instead of a line in the known hosts file."""


class Ssh(Section):
    """One login used for all hosts; user, port, privateKeyFile, bastion and sudo may be overridden per host."""

    user: LoginName | None = None
    """Login on the hosts."""
    port: Port = 22
    """SSH port of the hosts."""
    private_key_file: LocalPath | None = None
    """Private key file, readable by you alone. Default: the ssh-agent; in CI the secret gpu-fleet:sshPrivateKey."""
    known_hosts_file: LocalPath | None = None
    """Public keys of the hosts, collected by `make known-hosts` and reviewed. Host keys are always verified."""
    bastion: Bastion | None = None
    """The jump host that connections go through; only where the hosts cannot be reached directly."""
    sudo: bool | None = None
    """Whether to become root by sudo. Default: yes, unless the login is root. Its passwords are the secrets sudoPassword,
    sudoPasswords."""
    # A service may need five minutes until it works, the longest step that prints nothing (dcgm-exporter's,
    # gpu_fleet/host/parts).
    idle_timeout: Annotated[str, *duration("6m", "24h", "10m")] | None = None
    """A host that prints nothing for this long during an operation is given up, local hosts too. Default: 10m."""

    @property
    def idle_s(self) -> int | None:
        return None if self.idle_timeout is None else round(duration_s(self.idle_timeout) or 0)


class Ports(Section):
    """TCP ports on the host's loopback address; change them where something else uses them."""

    gpu_exporter: Port = 9400
    """The GPU exporter (dcgm-exporter or nvidia_gpu_exporter)."""
    node_exporter: Port = 9100
    """node_exporter."""
    alloy: Port = 12345
    """Alloy's own page and metrics."""


class HostEntry(Section):
    """One host, or the hosts of a pattern such as gpu-node-[001:016]."""

    address: str | None = Field(default=None, examples=["10.0.1.7", "10.0.1.[1:16]"])
    """IP address or host name; a pattern as long as the name's. Default: the host's name."""
    port: Port | None = None
    """SSH port; default: that of gpu-fleet:ssh."""
    user: LoginName | None = None
    """Login; default: that of gpu-fleet:ssh."""
    private_key_file: LocalPath | None = None
    """Private key file; default: that of gpu-fleet:ssh."""
    bastion: Bastion | None = None
    """Jump host; default: that of gpu-fleet:ssh."""
    sudo: bool | None = None
    """Whether to become root by sudo; default: that of gpu-fleet:ssh."""
    host_key: HostKey | None = None
    """The host's public key, instead of a line in the known hosts file."""
    connection: Literal["ssh", "local", "pull"] = "ssh"
    """`local` means the machine that runs Pulumi, as in the dev stack; `pull` a host that provisions itself and has to report."""
    prefix: LocalPath | None = None
    """Local hosts only: everything is placed below this directory, and nothing needs root."""
    role: Role = "gpu"
    """`monitoring`: the host is the stack's monitoring server (gpu-fleet:monitoring) and no GPU host; `both`: it is both."""
    gpus: int | None = Field(default=None, ge=1, le=64, examples=[8])
    """How many GPUs the host must have; any other count fails its driver check and fires an alert. Default: not checked."""
    min_driver: DriverVersion | None = None
    """The oldest GPU driver that the host may have; an older one fails its driver check. Default: any version."""
    exporter: Exporter = "auto"
    """GPU exporter; `auto` chooses on the host by what it is (container, bare metal or VM; NVIDIA or AMD)."""
    vendor: Vendor = "auto"
    """Vendor of the GPUs; `auto` looks for nvidia-smi, then rocm-smi and amd-smi."""
    kernel_log: LocalPath = Field(default="auto", examples=["auto", "journal", "/var/log/kern.log"])
    """Where kernel lines (XID) are read: `journal`, the absolute path of a file, or `auto` to look on the host."""
    tool_path: Annotated[tuple[LocalPath, ...], Texts] = ()
    """Directories searched first for nvidia-smi, rocm-smi and amd-smi, for example /usr/lib/wsl/lib."""
    service_manager: ServiceManager = "auto"
    """What runs the services: systemd, or supervisor in containers without it."""
    supervisord: LocalPath | None = None
    """Program of supervisor where it is not on the PATH."""
    python: LocalPath = Field(default="auto", examples=["auto", "present", "/opt/python3.12/bin/python3"])
    """The Python (3.8 or newer) that our programs on the host run with: an absolute path; `present`, the distribution's, or
    another one on the PATH; or `auto`, the same, but where there is none the distribution's is installed."""
    ports: Ports = Ports()
    """Ports that the exporters and Alloy listen on."""
    adopt: bool = False
    """Keep existing exporters that answer: node_exporter, and a GPU exporter also on 9400 and 9835."""
    replace_old_collector: bool = False
    """Disable the cron job of an earlier get_gpu_metrics.sh, whose metrics our collector writes too; a copy of it is kept."""
    maintenance: str | None = Field(default=None, min_length=1, max_length=100, examples=["new power supply, until Friday"])
    """The host is out of service, and why: alerts about what a reboot or a repair causes are inhibited. Default: in service."""
    lost: bool = False
    """The host is gone for good: it is removed from the stack without being contacted."""


def _path_alone(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


class InventoryFile(Section):
    """A file that lists the hosts."""

    path: LocalPath
    """YAML with `hosts:` as in the stack file, or an Ansible inventory (YAML or INI), read as it is."""
    limit: Annotated[tuple[str, ...], Texts] = ()
    """Only these groups and hosts of an Ansible inventory. Default: all of them."""


Inventory = Annotated[
    InventoryFile,
    BeforeValidator(_path_alone, json_schema_input_type=str | InventoryFile),
]
