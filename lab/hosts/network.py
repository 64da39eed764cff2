"""The network of one site: a bridge that only this machine and the site's hosts are on, with nothing routed further.

10.213.N.1            this machine, as the hosts see it
10.213.N.10 and up    the hosts
10.213.N.250          an address that swallows every packet: frames to it go to a station that does not exist
10.213.N.251          an address of this machine for servers that misbehave
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Container
from dataclasses import dataclass

from lab.hosts.errors import HostsError

_NOBODY = "02:00:00:00:00:fa"  # locally administered, given to no interface
_FIRST_HOST = 10


@dataclass(frozen=True)
class Network:
    """`number`: the N above, 0 to 255."""

    number: int

    @property
    def bridge(self) -> str:
        return f"gpu-lab-{self.number}"

    @property
    def gateway(self) -> str:
        return self._address(1)

    @property
    def black_hole(self) -> str:
        return self._address(250)

    @property
    def misbehaving(self) -> str:
        return self._address(251)

    def host(self, index: int) -> str:
        return self._address(_FIRST_HOST + index)

    def create(self) -> None:
        # An address of its own: one taken from its ports changes with them, and every change forgets the neighbour below.
        _ip("link", "add", self.bridge, "address", f"02:00:0a:d5:{self.number:02x}:01", "type", "bridge")
        # IPv6 would add addresses of its own, and seconds until they are usable.
        _ip("link", "set", self.bridge, "addrgenmode", "none")
        _ip("address", "add", f"{self.gateway}/24", "dev", self.bridge)
        _ip("address", "add", f"{self.misbehaving}/32", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        _ip("neighbour", "replace", self.black_hole, "lladdr", _NOBODY, "dev", self.bridge, "nud", "permanent")

    def remove(self) -> None:
        if self.bridge in _interfaces():
            _ip("link", "delete", self.bridge)

    def _address(self, last: int) -> str:
        return f"10.213.{self.number}.{last}"


def free(taken: Container[int]) -> Network:
    """A network whose addresses are used by no interface and no route of this machine. `taken`: numbers of other sites."""
    used = _ip("address") + _ip("route")
    for number in range(256):
        network = Network(number)
        if number not in taken and f"10.213.{number}." not in used and network.bridge not in _interfaces():
            return network
    raise HostsError("All of 10.213.0.0/16 is in use on this machine; the hosts of the lab need a part of it.")


def _interfaces() -> set[str]:
    return {link["ifname"] for link in json.loads(_ip("-json", "link"))}


def _ip(*arguments: str) -> str:
    return run("ip", *arguments)


def run(*command: str) -> str:
    """What it printed. Raises HostsError with its error when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HostsError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout
