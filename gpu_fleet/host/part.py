"""What one exporter or agent places on a host, as plain data.

A `Part` declares everything that the converge program needs to apply one concern (node_exporter, Alloy, ...) and to remove it.
Parts contain no shell beyond paths of scripts in `rootfs/` and no values that differ between hosts: those are given at apply
time as settings (one environment file) and secrets (files of mode 0640), so one bundle serves every host of a stack.
Not done here: rendering (bundle.py) and applying (converge/).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ROOTFS = Path(__file__).parent / "rootfs"
ON_HOST = Path(__file__).parents[1] / "on_host"
PYTHON = "/opt/gpu-fleet/lib/python"  # the path of on_host/ on a host
FIND_PYTHON = "/opt/gpu-fleet/libexec/find-python"  # used by the converge program, too


@dataclass(frozen=True, kw_only=True)
class File:
    """One file on the host. `path` is absolute (the converge program prepends its prefix)."""

    path: str
    content: bytes
    mode: int = 0o644
    owner: str = "root"
    group: str = "root"

    @classmethod
    def from_rootfs(cls, path: str) -> File:
        """The file kept at the same path under `rootfs/`; executable there means 0755 here."""
        source = ROOTFS / path.lstrip("/")
        return cls(path=path, content=source.read_bytes(), mode=0o755 if source.stat().st_mode & 0o100 else 0o644)

    @classmethod
    def python(cls, module: str) -> File:
        """A module of on_host/, `on_host/tools` for example, or `__main__`, which starts them."""
        source = ON_HOST.parent / module if module != "__main__" else ON_HOST / module
        return cls(path=f"{PYTHON}/{module}.py", content=source.with_suffix(".py").read_bytes())


@dataclass(frozen=True, kw_only=True)
class Directory:
    """One directory. `contents`: who owns the entries, which determines drift and removal:

    - "shared": other software may put things there; it is removed with the part if we created it and it is empty.
    - "placed": only what the bundle places may be there; anything else is drift and is saved elsewhere. What existed before us is
      restored on removal.
    - "runtime": our programs write there (WAL, textfiles, logs); if we created it, it is removed with everything in it.
    """

    path: str
    mode: int = 0o755
    owner: str = "root"
    group: str = "root"
    contents: Literal["shared", "placed", "runtime"] = "shared"


@dataclass(frozen=True, kw_only=True)
class User:
    """A system user without a login shell; `groups` are joined only where they exist on the host."""

    name: str
    home: str = "/nonexistent"
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a download comes from on one architecture.

    `sha256` is that of the file at `url` as downloaded (archive or bare binary), 64 hex digits. `member` is the path inside a
    .tar.gz or .zip archive; empty: the download is the file itself. An empty `url` means that the controller sends the file
    (`artifacts: controller`): `sha256` is then that of the file itself.
    """

    sha256: str
    url: str = ""
    member: str = ""


@dataclass(frozen=True, kw_only=True)
class Download:
    """A verified file, usually a program: placed only after its source's sha256 matched. `sources`: amd64 or arm64 -> source."""

    path: str
    sources: Mapping[str, Source]
    mode: int = 0o755


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A service. `name` without a suffix, e.g. `gpu-fleet-node-exporter`.

    Under systemd it is rootfs/etc/systemd/system/<name>.service (and <name>.timer when `timer`), under supervisor
    rootfs/etc/gpu-fleet/supervisor.d/<name>.conf, a [program:<name>]; the bundle contains both without listing them among the
    part's files, and the host's service manager uses its own. A change of that file always restarts the unit.
    `restart_on`: what restarts it when it changes: paths of files or downloads of this part or an earlier one, or the names
    "identity" (the host's name, datacenter and cluster), "settings" (all other settings), "setting/<NAME>" (one of them, for a
    service whose restart is noticed) and "secrets/<name>". `reload_on`: the same, for a reload instead.
    `systemd_only`: its part is wanted only on hosts with systemd, so it has no file for supervisor.
    """

    name: str
    timer: bool = False
    systemd_only: bool = False
    restart_on: tuple[str, ...] = ()
    reload_on: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HttpCheck:
    """The part works when `url` answers 200 and its body contains `contains`, within `within_s` seconds of a restart.

    `url` may contain ${NAME} of the environment file (ports are settings)."""

    url: str
    contains: str = ""
    within_s: int = 60  # a GPU without persistence mode takes seconds to wake up, and a busy host longer; most start in one


@dataclass(frozen=True, kw_only=True)
class FileCheck:
    """The part works when, within `within_s` seconds, the file is younger than `fresh_s` seconds and contains `contains`."""

    path: str
    contains: str = ""
    fresh_s: int = 60
    within_s: int = 90  # the collectors may take 25 s, and a timer starts them


@dataclass(frozen=True, kw_only=True)
class PortCheck:
    """The part works when a process listens on the port of `address`, within `within_s` seconds of a restart: for a server that
    answers only who has its login.

    `address`: HOST:PORT, which may contain ${NAME} of the environment file."""

    address: str
    within_s: int = 60


Check = HttpCheck | FileCheck | PortCheck


def secret_group(secret: str) -> str:
    """The group that owns a secret's file on a host. Only the users of the programs that read the secret are members."""
    return f"gpu-fleet-{secret}"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One concern on a host, applied in the order of the bundle.

    `when`: facts or settings that must have one of these values, otherwise the part is not wanted on that host (and is removed
    if it was installed). `probe`: a module of on_host/probe/, which is run before anything is placed, with the settings and the
    facts so far. It gives facts, which are available to `when` of this part and of later ones and in the environment file. It is
    not run when an already known name of `when` has another value. A probe that refuses fails its part, and stops the whole apply
    when `fatal` (see converge/README.md). `packages`: distribution packages by family (`debian`, `rhel`), installed with their
    dependencies when absent; those that we installed are removed with the host, unless other packages need them by then. `keep`:
    a module of on_host/probe/ that is called with the part's name, and says what else uses the packages and the files of this
    part, which then stay. `settings`: NAME=value defaults of the environment file, overridden per host.
    """

    name: str
    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    probe: str = ""
    fatal: bool = False
    users: tuple[User, ...] = ()
    directories: tuple[Directory, ...] = ()
    files: tuple[File, ...] = ()
    downloads: tuple[Download, ...] = ()
    packages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    keep: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    units: tuple[Unit, ...] = ()
    checks: tuple[Check, ...] = ()
