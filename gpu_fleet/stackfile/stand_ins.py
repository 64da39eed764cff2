"""Which stacks may use the lab's stand-ins: programs that replace what cannot be installed on a machine.

The lab names its own stack `dev` and those of the tests in an environment variable. STAND_INS=1 is for trying out.
The stand-ins themselves, and what else they refuse, are in lab/, which need not be on disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # a plugin of the lab imports this, and the engine waits for each plugin to start
    from gpu_fleet.stackfile.hostspec import HostSpec

LAB_STACKS: Final = "GPU_FLEET_STAND_INS_FOR"  # names of stacks, separated by commas
TRIAL: Final = "STAND_INS"


class StandInsRefused(Exception):
    """Something simulated was about to be used for a stack that may not; str() says what, why and how to go on."""


def is_of_lab(stack: str) -> bool:
    return stack in os.environ.get(LAB_STACKS, "").split(",")


def permit(stack: str, what: str, fix: str, hosts: Iterable[HostSpec]) -> str:
    """Empty for a stack of the lab, else the warning of a trial. `what`: the stand-ins, `fix`: how to get the real programs.

    Raises StandInsRefused.
    """
    if is_of_lab(stack):
        return ""
    if os.environ.get(TRIAL) != "1":
        raise StandInsRefused(
            f"The stack {stack} cannot use {what}: stand-ins are for the stack `dev` and for tests.\n{fix}\n"
            f"To try it out with stand-ins, without any host over SSH or real cluster: set {TRIAL}=1."
        )
    if remote := [host.name for host in hosts if host.connection != "local"]:
        names = ", ".join(remote[:3]) + (f" and {len(remote) - 3} more" if len(remote) > 3 else "")
        raise StandInsRefused(
            f"The stack {stack} cannot use {what}, not even with {TRIAL}=1: it has hosts that are not simulated ({names}).\n{fix}"
        )
    return f"{TRIAL}=1: the stack {stack} uses {what}. For trying out alone."
