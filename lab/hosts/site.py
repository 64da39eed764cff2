"""A site: some hosts on a network of their own, an ssh login for them, and what tests break.

Its directory is what finds it again: after a kill of its starter, from another terminal, or half-made. It is in memory.

    $XDG_CACHE_HOME/gpu-fleet/hosts/sites/N/
      site.json     what it is and whose
      key, key.pub  the login; known_hosts, ssh_config
      HOST/         upper (what the host changed), docker, gpus (simulated), console.log
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import asyncssh

from gpu_fleet.toolchain.progress import Progress
from lab.hosts import image, needs, network, servers
from lab.hosts.cgroup import Group
from lab.hosts.errors import HostsError
from lab.hosts.host import PORT, SERVERS, Host
from lab.hosts.network import Network
from lab.hosts.variants import VARIANTS, Variant

_LOCK = Path("/run/gpu-fleet-lab-sites.lock")


@dataclass(frozen=True)
class Site:
    """`boots_on_use`: a host is started when it is first taken out of `hosts`."""

    directory: Path
    boots_on_use: bool = False

    @classmethod
    def up(cls, hosts: Mapping[str, Variant], *, boots_on_use: bool = False, progress: Progress | None = None) -> Site:
        """Makes the hosts (name -> variant) and waits until each is there. Raises HostsError, leaving nothing.

        It belongs to this process: whoever makes a site later takes it down when this process is gone.
        """
        progress = progress or Progress()
        needs.require(progress)
        reap()
        layers = {variant.layer: image.ensure(variant.layer, progress) for variant in hosts.values()}
        site = cls._claim(hosts, boots_on_use=boots_on_use)
        try:
            site._make_login()
            for host in site.hosts.values():
                host.prepare(layers[host.variant.layer])
            site._write_ssh_files()
            site._serve("stall", site.network.misbehaving, str(PORT))
            booted = [] if boots_on_use else list(site.hosts.values())
            for host in booted:
                host.start()
            with ThreadPoolExecutor(len(booted) or 1) as pool:
                list(pool.map(Host.wait, booted))
        except BaseException:
            site.down()
            raise
        return site

    @classmethod
    def _claim(cls, hosts: Mapping[str, Variant], *, boots_on_use: bool) -> Site:
        with _lock():
            numbers = {int(each.directory.name) for each in all_sites()}
            number = network.free(numbers).number
            site = cls(_sites() / str(number), boots_on_use)
            Group(str(number)).end()  # of a site whose directory was deleted: its hosts would count as booted
            site.directory.mkdir(mode=0o700)
            try:
                # The hosts' root is an overlay, which cannot be laid over the overlay that a container's disk is.
                network.run("mount", "--types", "tmpfs", "--options", "mode=0700", "gpu-fleet-lab", str(site.directory))
                about = {
                    "hosts": {name: variant.name for name, variant in hosts.items()},
                    "owner": [os.getpid(), _started(os.getpid())],
                }
                (site.directory / "site.json").write_text(json.dumps(about))
                site.network.create()  # until then the number looks free to those with another cache
            except BaseException:
                site.down()
                raise
            return site

    @property
    def network(self) -> Network:
        return Network(int(self.directory.name))

    @cached_property
    def hosts(self) -> dict[str, Host]:
        key = (self.directory / "key.pub").read_text()
        hosts = {
            name: Host(
                name=name,
                variant=VARIANTS[variant],
                directory=self.directory / name,
                network=self.network,
                index=index,
                authorized_key=key,
            )
            for index, (name, variant) in enumerate(self._about()["hosts"].items())
        }
        return _BootedOnUse(hosts) if self.boots_on_use else hosts

    @property
    def key_file(self) -> Path:
        """The private key of every login on every host."""
        return self.directory / "key"

    @property
    def known_hosts_file(self) -> Path:
        return self.directory / "known_hosts"

    @property
    def black_hole(self) -> str:
        """An address that answers nothing at all."""
        return self.network.black_hole

    @property
    def stalling(self) -> str:
        """An address whose port 22 takes connections and never says a word."""
        return self.network.misbehaving

    def relay(self, port: int) -> str:
        """`address:port` at which the hosts reach what listens on this machine's 127.0.0.1:port."""
        self._serve("relay", self.network.gateway, str(port), "127.0.0.1", str(port))
        return f"{self.network.gateway}:{port}"

    def reimage(self, name: str) -> None:
        """Reinstalls the host under its old name and address: an empty disk, another host key."""
        host = self.hosts[name]
        layers = [Path(layer) for layer in (host.directory / "lower").read_text().split(":")]
        host.remove()
        host.prepare(layers)
        self._write_ssh_files()
        host.start()
        host.wait()

    def stack_hosts(self) -> dict[str, dict[str, object]]:
        """The `gpu-fleet:hosts` section of a stack file."""
        return {
            host.name: {"address": host.address, **({"gpus": host.gpu_count} if host.gpu_count else {})}
            for host in self.hosts.values()
        }

    def is_abandoned(self) -> bool:
        """Its owner is gone, or it was never completed enough to say whose it is."""
        try:
            owner = self._about()["owner"]
        except (OSError, ValueError):
            return True
        return _started(owner[0]) != owner[1]

    def down(self) -> None:
        """Ends its processes, then removes its network and its files; what is gone already is no error."""
        Group(self.directory.name).end()
        self.network.remove()
        shutil.rmtree(self.directory, ignore_errors=True)
        if self.directory.is_mount():
            network.run("umount", "--lazy", str(self.directory))
            self.directory.rmdir()
        if self.directory.exists():
            raise HostsError(f"{self.directory} could not be removed; see what is left there.")

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def _about(self) -> dict:
        return json.loads((self.directory / "site.json").read_text())

    def _make_login(self) -> None:
        key = asyncssh.generate_private_key("ssh-ed25519", comment="gpu-fleet lab")
        self.key_file.touch(mode=0o600)
        self.key_file.write_bytes(key.export_private_key())
        (self.directory / "key.pub").write_bytes(key.export_public_key())

    def _write_ssh_files(self) -> None:
        self.known_hosts_file.write_text("".join(f"{host.address} {host.host_key}\n" for host in self.hosts.values()))
        common = f"  IdentityFile {self.key_file}\n  IdentitiesOnly yes\n  UserKnownHostsFile {self.known_hosts_file}\n"
        common += "  StrictHostKeyChecking yes\n  BatchMode yes\n  LogLevel ERROR\n"
        common += "  ServerAliveInterval 10\n"  # else a command would wait for a host that is gone
        common += "  KexAlgorithms curve25519-sha256\n"  # OpenSSH 9's own choice takes 0.08 s of CPU time for a key
        names = "".join(f"Host {host.name}\n  HostName {host.address}\n" for host in self.hosts.values())
        (self.directory / "ssh_config").write_text(f"{names}Host *\n{common}")

    def _serve(self, *arguments: str) -> None:
        group = Group(f"{self.directory.name}/{SERVERS}")
        group.create()
        process = subprocess.Popen(
            [sys.executable, servers.__file__, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=(self.directory / "servers.log").open("a"),
            start_new_session=True,
            preexec_fn=group.entering(),
        )
        if not process.stdout.readline():
            raise HostsError(f"`{' '.join(arguments)}` did not start:\n{(self.directory / 'servers.log').read_text()}")


class _BootedOnUse(dict[str, Host]):
    def __getitem__(self, name: str) -> Host:
        host = super().__getitem__(name)
        if not host.group.is_alive():
            host.start()
            host.wait()
        return host


def all_sites() -> list[Site]:
    return [Site(directory) for directory in sorted(_sites().iterdir(), key=lambda path: path.name) if directory.is_dir()]


def reap() -> None:
    """Takes down the sites whose owner is gone."""
    with _lock():  # a site that is being claimed has no owner yet
        for site in all_sites():
            if site.is_abandoned():
                site.down()


def _sites() -> Path:
    directory = image.directory() / "sites"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    """Of the whole machine, as its networks and groups of processes are: CI has a cache of its own, and runs beside people."""
    with _LOCK.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _started(pid: int) -> str:
    """When the process began, in the kernel's ticks: to distinguish it from a later one with the same number. Empty: ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
