"""Which host a run works on, with what, and as whom."""

from __future__ import annotations

import os
from typing import NamedTuple

PROGRAM = "lib/converge.pyz"  # this one, in a bundle
GROUP = "gpu-fleet"
ENV_FILE = "/etc/gpu-fleet/gpu-fleet.env"
SECRETS_DIRECTORY = "/etc/gpu-fleet/secrets"


class Host(NamedTuple):
    """`bundle`: the directory of the bundle that this program comes from. `scratch`: for temporary files. `owners`: owners and
    users are managed only on a whole host: below a prefix, or without root, everything belongs to the user who runs this."""

    verb: str
    bundle: str
    prefix: str = ""
    envelope: str = ""
    artifacts: str = ""
    stack: str = ""
    instance: str = ""
    metrics: str = ""
    scratch: str = ""
    owners: bool = False

    @property
    def state(self) -> str:
        return f"{self.prefix}/var/lib/gpu-fleet"

    def at(self, path: str) -> str:
        return self.prefix + path

    @property
    def arch(self) -> str:
        machine = os.uname().machine
        return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def secret_group(name: str) -> str:
    """The group that may read this secret. gpu_fleet/host/part.py has the same rule."""
    return f"{GROUP}-{name}"


def has_our_name(name: str) -> bool:
    """A path or an account. Accounts with such a name are nobody else's, files may be."""
    return "/gpu-fleet/" in f"/{name}/" or "/gpu-fleet-" in f"/{name}"
