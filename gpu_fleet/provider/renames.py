"""Hosts that have another name in the stack file than before. The engine creates one host and deletes the other, and both are the
same machine; known here, so that the deletion removes nothing.

Who a machine is, its own record says (converge's `--instance`). Not asked here: a machine whose address this run's program gives
another name is that one, and its old name may leave the stack once the new one is in place.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from gpu_fleet.provider.host import HostError


class Renames:
    """What one run knows of its hosts."""

    def __init__(self) -> None:
        self._names: dict[Hashable, str] = {}  # machine to its name in this run's program
        self._unsettled: set[str] = set()  # hosts of the program that are not known to be in place yet
        self._staying: set[str] = set()
        self._taken: dict[str, str] = {}  # what a machine's own record called it, to the name that this run came to give it

    def expect(self, host: str, connection: Mapping[str, Any]) -> None:
        """The program names a machine. A host stays unsettled when it fails, or when `--target` leaves it out."""
        self._names[_machine(connection)] = host
        self._unsettled.add(host)

    def stay(self, hosts: Iterable[str]) -> None:
        """The program has these hosts where they were."""
        self._staying.update(hosts)

    def stays(self, host: str) -> bool:
        """Whether a machine with this name is another host of the program, so that it gets no second name."""
        return host in self._staying

    def settle(self, host: str) -> None:
        self._unsettled.discard(host)

    def take(self, old: str, new: str) -> None:
        """The machine's own record had the old name when this run reached it."""
        self._taken[old] = new

    def new_name(self, host: str, connection: Mapping[str, Any]) -> str | None:
        """What the machine of a host that is being deleted is called now; None when it has no other name.

        Raises HostError where it is to get one and has not got it: with `--continue-on-error` the engine deletes all the same.
        """
        at_address = self._names.get(_machine(connection), host)
        name = at_address if at_address != host else self._taken.get(host, host)
        if name == host:
            return None
        if name in self._unsettled:
            raise HostError(
                "held-back",
                f"the stack file calls this machine {name} now, and {name} was not brought up in this run; nothing was removed. "
                f"Once `up` has brought up {name}, {host} leaves the stack by itself",
            )
        return name if at_address == name else None


def _machine(connection: Mapping[str, Any]) -> Hashable:
    """Where the machine is. The same private address behind two bastions is two machines."""
    bastion = connection.get("bastion") or {}
    return (*(connection.get(key) for key in ("kind", "prefix", "address", "port")), bastion.get("host"))
