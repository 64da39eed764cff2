"""The values of one host's entry against each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpu_fleet.stackfile.hosts import PATHS, HostEntry, Ports
from gpu_fleet.stackfile.monitoring import has_gpus, is_server
from gpu_fleet.stackfile.patterns import Listed
from gpu_fleet.stackfile.problems import Problem

_ONLY_SSH = {"address", "port", "user", "private_key_file", "bastion", "sudo", "host_key"}
_OF_GPU_HOSTS = {"gpus", "exporter", "vendor", "adopt", "tool_path"}
# What is expected of it; all else is given to its installer, on the host.
_OF_PULLED = {"connection", "gpus", "lost", "maintenance"}


def check_entry(entry: HostEntry, listed: Listed) -> Iterator[Problem]:
    if entry.connection == "pull":
        yield from _without_meaning(entry, listed, entry.model_fields_set - _OF_PULLED)
        return
    yield from _local(entry, listed) if entry.connection == "local" else _reached_by_ssh(entry, listed)
    place = listed.place
    if is_server(entry):
        yield from _monitoring_server(entry, listed)
    if entry.vendor == "amd" and entry.exporter in ("dcgm-exporter", "nvidia_gpu_exporter"):
        what = f"{entry.exporter} reads NVIDIA GPUs, and the vendor is amd"
        yield Problem(place(("exporter",)), what, "auto or textfile", "write `exporter: textfile`")
    if entry.supervisord and entry.service_manager == "systemd":
        yield Problem(place(("supervisord",)), "has no effect with `serviceManager: systemd`", fix="remove one of the two")
    names_of: dict[int, str] = {}
    for name, field in Ports.model_fields.items():
        port, key = getattr(entry.ports, name), field.alias or name
        if port in names_of:
            what = f"{port} is the port of {names_of[port]} too"
            yield Problem(place(("ports", key)), what, "a port of its own for each", "change one of them")
        names_of.setdefault(port, key)


def _monitoring_server(entry: HostEntry, listed: Listed) -> Iterator[Problem]:
    for name in sorted(entry.model_fields_set & _OF_GPU_HOSTS) if not has_gpus(entry) else ():
        key = HostEntry.model_fields[name].alias or name
        fix = f"remove {key}, or write `role: both` for a server that is a GPU host too"
        yield Problem(listed.place((key,)), f"has no effect with `role: {entry.role}`", fix=fix)
    if entry.service_manager == "supervisor":
        what = f"`role: {entry.role}` needs systemd"
        yield Problem(listed.place(("serviceManager",)), what, "systemd or auto", "remove serviceManager")


def _local(entry: HostEntry, listed: Listed) -> Iterator[Problem]:
    yield from _without_meaning(entry, listed, entry.model_fields_set & _ONLY_SSH)
    if len(listed.names) > 1:
        what = f"expands to {len(listed.names)} hosts, and all of them are this machine"
        yield Problem(listed.place(()), what, "one name", "write one name, or remove `connection: local`")


def _without_meaning(entry: HostEntry, listed: Listed, names: Iterable[str]) -> Iterator[Problem]:
    connection = f"`connection: {entry.connection}`"
    for name in sorted(names):
        key = HostEntry.model_fields[name].alias or name
        yield Problem(listed.place((key,)), f"has no effect with {connection}", fix=f"remove {key}, or remove {connection}")


def _reached_by_ssh(entry: HostEntry, listed: Listed) -> Iterator[Problem]:
    if entry.prefix is not None:
        fix = "remove prefix, or add `connection: local`"
        yield Problem(listed.place(("prefix",)), "has no effect without `connection: local`", fix=fix)
    for name, words in PATHS.items():
        value = getattr(entry, name)
        for path in value if isinstance(value, tuple) else (value,):
            if path is not None and path not in words and not path.startswith("/"):
                expected = ", ".join((*words, f"{'or ' if words else ''}an absolute path on the host"))
                place = listed.place((HostEntry.model_fields[name].alias or name,))
                yield Problem(place, f'"{path}" is not an absolute path', expected, "start it with /")
