"""One host of a stack with every default filled in."""

from __future__ import annotations

from gpu_fleet.stackfile.hosts import HostEntry


class HostSpec(HostEntry):
    """The entry of one host, and what follows from it, from its name and from gpu-fleet:ssh. Paths of local hosts are absolute on
    this machine; `prefix` is empty for hosts reached by SSH, and `private_key_file` is as the stack file writes it."""

    name: str  # label `instance`, never the address
    address: str
    port: int
    user: str
    prefix: str
    sudo: bool
