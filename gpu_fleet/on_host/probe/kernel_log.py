"""Where the kernel messages of this host can be read. GPU_FLEET_KERNEL_LOG: auto, journal, or the path of a file."""

from __future__ import annotations

from typing import Mapping

from .host import Host, Refusal

UNSUPPORTED = 12


def probe(host: Host) -> Mapping[str, str]:
    """GPU_FLEET_KERNEL_LOG_SOURCE: journal, file or none; and _FILE. None is no failure: most containers have no kernel log; it
    is read on the host outside."""
    configured = host.setting("KERNEL_LOG", "auto")
    if configured == "journal":
        return _found("journal")
    if configured.startswith("/"):
        return _found("file", configured)
    if configured != "auto":
        raise Refusal(UNSUPPORTED, f"kernel_log: {configured} is neither auto nor journal nor an absolute path.")
    # A journal directory without a running journald is a leftover of another system. Readers look for that of this machine's ID
    # alone: there is none where journald keeps nothing, or began before a clone got an ID of its own.
    machine = host.text("/etc/machine-id").strip() or "unknown"
    journals = any(host.path(f"{place}/log/journal/{machine}").is_dir() for place in ("/var", "/run"))
    if journals and host.path("/run/systemd/journal").is_dir():
        return _found("journal")
    files = (host.path(path) for path in ("/var/log/kern.log", "/var/log/messages"))
    return next((_found("file", str(file)) for file in files if file.is_file()), _found("none"))


def _found(source: str, file: str = "") -> Mapping[str, str]:
    return {"GPU_FLEET_KERNEL_LOG_SOURCE": source, "GPU_FLEET_KERNEL_LOG_FILE": file}
