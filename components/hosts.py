"""One host of a stack with every default filled in, and how the entries of a host list become hosts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from components.inventory import PATTERN_ALLOWED, Listed, PatternError, expand, is_pattern
from components.problems import Place, Problem, explain, first_causes, shown
from components.stackfile.hosts import Bastion, Exporter, HostEntry, Ports, ServiceManager, Ssh, Vendor
from components.stackfile.values import ADDRESS_ALLOWED, address_problem

if TYPE_CHECKING:
    from components.config import StackConfig

_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
LONGEST_HOST_NAME = 100  # label value and part of resource names; the longest host name DNS allows would fill a screen


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSpec:
    """One host. Paths of local hosts are absolute on this machine; `prefix` is empty for hosts reached by SSH."""

    name: str  # label `instance`, never the address
    address: str
    port: int
    user: str
    connection: Literal["ssh", "local"]
    prefix: str
    private_key_file: str | None
    bastion: Bastion | None
    sudo: bool
    host_key: str | None
    gpus: int | None  # None: the driver check does not count
    exporter: Exporter
    vendor: Vendor
    kernel_log: str  # "journal" or the path of a file
    tool_path: tuple[str, ...]
    service_manager: ServiceManager
    supervisord: str | None
    ports: Ports
    lost: bool

    def settings(self, stack: StackConfig) -> dict[str, str]:
        """What differs between hosts, as the environment file's names; the bundle is the same for all of them."""
        metrics, logs = stack.metrics, stack.logs
        values = {
            "PREFIX": self.prefix,
            "STACK": f"{stack.datacenter}/{stack.cluster}",
            "INSTANCE": self.name,
            "DATACENTER": stack.datacenter,
            "CLUSTER": stack.cluster,
            "EXPORTER": self.exporter,
            "VENDOR": self.vendor,
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
            "METRICS_OUTAGE": metrics.outage if metrics else "",
            "LOGS_URL": logs.url if logs else "",
            "LOGS_TENANT": (logs and logs.tenant) or "",
            "LOGS_USERNAME": (logs and logs.username) or "",
        }
        return {f"GPU_FLEET_{name}": value for name, value in values.items()}


@dataclass
class HostList:
    """The hosts found so far, where each was named, and what is wrong with the rest."""

    ssh: Ssh
    base: Path  # directory of the stack file
    problems: list[Problem]
    warnings: list[str]
    hosts: dict[str, HostSpec] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)

    def add_all(self, entries: Iterable[Listed]) -> None:
        for entry in entries:
            self._add(entry)

    def _add(self, listed: Listed) -> None:
        try:
            entry = HostEntry.model_validate(listed.values)
        except ValidationError as error:
            for detail in first_causes(error):
                self.problems.append(explain(detail, _schema(), listed.place, _SECRETS_OF_HOSTS))
            return
        found = len(self.problems)
        self._check_entry(entry, listed)
        addresses = self._addresses(entry, listed)
        if len(self.problems) > found:
            return
        shared = self._shared(entry)
        for name, address in zip(listed.names, addresses, strict=True):
            if name in self.hosts:
                self._problem(
                    listed.place(()), f'the host "{name}" was already listed as {self.places[name](())}', "one entry per host"
                )
                continue
            self.hosts[name] = HostSpec(name=name, address=address, **shared)
            self.places[name] = listed.place

    def _shared(self, entry: HostEntry) -> dict[str, Any]:
        """What the hosts of one entry have in common."""
        is_local = entry.connection == "local"
        user = entry.user or self.ssh.user or ""
        sudo = next((answer for answer in (entry.sudo, self.ssh.sudo) if answer is not None), user != "root")
        key_file = entry.private_key_file or self.ssh.private_key_file
        return {
            "port": entry.port or self.ssh.port,
            "user": "" if is_local else user,
            "connection": entry.connection,
            "prefix": self.local_path(entry.prefix) if entry.prefix else "",
            "private_key_file": self.local_path(key_file) if key_file and not is_local else None,
            "bastion": None if is_local else entry.bastion or self.ssh.bastion,
            "sudo": not is_local and sudo,
            "host_key": entry.host_key,
            "gpus": entry.gpus,
            "exporter": entry.exporter,
            "vendor": entry.vendor,
            "kernel_log": self._path_on_host(entry.kernel_log, is_local) if entry.kernel_log != "journal" else "journal",
            "tool_path": tuple(self._path_on_host(path, is_local) for path in entry.tool_path),
            "service_manager": entry.service_manager,
            "supervisord": self._path_on_host(entry.supervisord, is_local) if entry.supervisord else None,
            "ports": entry.ports,
            "lost": entry.lost,
        }

    def local_path(self, text: str) -> str:
        """A path of this machine as the stack file writes it: relative to that file, absolute, or with ~."""
        return str(self.base / Path(text).expanduser())

    def _path_on_host(self, text: str, is_local: bool) -> str:
        return self.local_path(text) if is_local else text

    def _problem(self, where: str, what: str, allowed: str = "", fix: str = "") -> None:
        self.problems.append(Problem(where, what, allowed, fix))

    def _addresses(self, entry: HostEntry, listed: Listed) -> tuple[str, ...]:
        names, place = listed.names, listed.place
        if entry.connection == "local":
            return ("",) * len(names)
        if entry.address is None:
            addresses, key = names, ()
        else:
            key = ("address",)
            try:
                addresses = expand(entry.address)
            except PatternError as error:
                self._problem(place(key), f'"{entry.address}": {error}', PATTERN_ALLOWED, "correct the range")
                return ()
        if len(addresses) != len(names):
            count = "1 address" if len(addresses) == 1 else f"{len(addresses)} addresses"
            what = f'"{entry.address}" gives {count} for {len(names)} host{"s" if len(names) > 1 else ""}'
            fix = "make both ranges equally long" if is_pattern(entry.address or "") else "write a pattern such as 10.0.1.[1:16]"
            self._problem(place(key), what, "one address per host", fix)
            return ()
        for address in addresses:
            if reason := address_problem(address):
                fix = (
                    "write `address`, or a name that DNS knows"
                    if entry.address is None
                    else "write the address alone: no user, no port"
                )
                self._problem(place(key), f'"{address}" {reason}', ADDRESS_ALLOWED, fix)
                break  # the other hosts of a pattern have the same mistake
        return addresses

    def _check_entry(self, entry: HostEntry, listed: Listed) -> None:
        place, given = listed.place, entry.model_fields_set
        is_local = entry.connection == "local"
        if is_local:
            for name in sorted(given & {"address", "port", "user", "private_key_file", "bastion", "sudo", "host_key"}):
                key = HostEntry.model_fields[name].alias
                self._problem(
                    place((key,)), "has no meaning with `connection: local`", fix=f"remove {key}, or remove `connection: local`"
                )
            if len(listed.names) > 1:
                self._problem(place(()), f"stands for {len(listed.names)} hosts, and all of them are this machine", "one name")
        else:
            if entry.prefix is not None:
                self._problem(
                    place(("prefix",)),
                    "has no meaning without `connection: local`",
                    fix="remove prefix, or add `connection: local`",
                )
            if not entry.user and not self.ssh.user and not entry.lost:
                self._problem(
                    place(("user",)), "no login is known for this host", fix="add `user` to gpu-fleet:ssh, or to the host"
                )
            paths = {"kernelLog": () if entry.kernel_log == "journal" else (entry.kernel_log,), "toolPath": entry.tool_path}
            paths["supervisord"] = (entry.supervisord,) if entry.supervisord else ()
            for key, values in paths.items():
                for path in values:
                    if not path.startswith("/"):
                        allowed = "`journal` or an absolute path" if key == "kernelLog" else "an absolute path"
                        self._problem(place((key,)), f'"{path}" is not an absolute path on the host', allowed, "start it with /")
        if entry.vendor == "amd" and entry.exporter in ("dcgm-exporter", "nvidia_gpu_exporter"):
            self._problem(
                place(("exporter",)),
                f"{entry.exporter} reads NVIDIA GPUs, and the vendor is amd",
                "auto or textfile",
                "write `exporter: textfile`",
            )
        if entry.supervisord and entry.service_manager == "systemd":
            self._problem(place(("supervisord",)), "has no meaning with `serviceManager: systemd`", fix="remove one of the two")
        self._check_ports(entry, place)

    def _check_ports(self, entry: HostEntry, place: Place) -> None:
        by_port: dict[int, str] = {}
        for name, model_field in Ports.model_fields.items():
            port = getattr(entry.ports, name)
            if port in by_port:
                what = f"{port} is the port of {by_port[port]} too"
                self._problem(place(("ports", model_field.alias)), what, "a port of its own for each", "change one of them")
            by_port.setdefault(port, model_field.alias or name)


_SECRETS_OF_HOSTS = (
    "it is the same for all hosts: `pulumi config set --secret gpu-fleet:sudoPassword`, or gpu-fleet:sshPrivateKey; "
    "nobody logs in by password here"
)


def entries_of(section: Mapping[str, object], place: Place, problems: list[Problem]) -> list[Listed]:
    """The entries of a `hosts` mapping, in the stack file or in a file of its own; bad keys go to `problems`."""
    entries = []
    for key, values in section.items():
        where = place((key,))
        try:
            names = expand(str(key))
        except PatternError as error:
            problems.append(Problem(where, str(error), PATTERN_ALLOWED, "correct the range"))
            continue
        if not _HOST_NAME.fullmatch(names[-1]) or len(names[-1]) > LONGEST_HOST_NAME:
            allowed = f"letters, digits and . _ - between them, at most {LONGEST_HOST_NAME} characters"
            problems.append(
                Problem(
                    where, f'"{names[-1]}" cannot be the name of a host', allowed, "rename it; its address goes into `address`"
                )
            )
        elif isinstance(values, Mapping) or values is None:
            entries.append(Listed(names, values or {}, partial(_below, place, key)))
        else:
            fix = (
                f"write {{address: {values}}}"
                if isinstance(values, str) and not address_problem(values)
                else "write {} when it has no values"
            )
            problems.append(Problem(where, f"found {shown(values, key)}", "a mapping with the values of the host", fix))
    return entries


def _below(place: Place, key: str, location: tuple[str | int, ...]) -> str:
    return place((key, *location))


@lru_cache(maxsize=1)
def _schema() -> dict[str, Any]:
    return HostEntry.model_json_schema()
