"""What ansible-core reads in an inventory, and where OpenSSH would go with the arguments that Ansible gives it."""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_fleet.stackfile.hostspec import HostSpec

# In place of ssh: writes its arguments down, one file per call.
_SSH = """#!/bin/sh
file=$(mktemp "$ARGUMENTS/XXXXXX")
for argument; do printf '%s\\0' "$argument"; done >"$file"
"""


@dataclass(frozen=True)
class Route:
    """`jump`: USER@HOST:PORT as OpenSSH prints it, or a command."""

    address: str
    port: int
    user: str
    jump: str

    def leads_to(self, host: HostSpec) -> bool:
        """Whether it is the one that we take to that host. Where no user is named, each takes its own default."""
        bastion = host.bastion
        if "%h" in self.jump:
            is_same_jump = bastion is not None and f"@{bastion.host} " in self.jump.replace(
                f" {bastion.host} ", f" @{bastion.host} "
            )
        else:
            jump = f"{bastion.user}@{bastion.host}:{bastion.port}" if bastion and bastion.user else ""
            jump = jump or (f"{bastion.host}:{bastion.port}" if bastion else "")
            is_same_jump = self.jump.removesuffix(":22") == jump.removesuffix(":22")
        is_same_user = host.user in (self.user, "default")
        return is_same_jump and is_same_user and (_address(self.address), self.port) == (_address(host.address), host.port)


def _address(text: str) -> object:
    """IPv6 addresses are written in several ways."""
    try:
        return ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return text.lower()


def _ansible(program: str, *arguments: str, **environment: str) -> str:
    settings = {"ANSIBLE_CONFIG": "", "ANSIBLE_HOST_PATTERN_MISMATCH": "ignore", "ANSIBLE_LOCALHOST_WARNING": "False"}
    command = [sys.executable, str(Path(sys.executable).with_name(program)), *arguments]
    done = subprocess.run(command, env={**os.environ, **settings, **environment}, capture_output=True, text=True, check=False)
    return done.stdout


def hosts(inventory: Path) -> dict[str, dict[str, Any]]:
    """The variables of each host. Empty where Ansible refuses the inventory."""
    output = json.loads(_ansible("ansible-inventory", "-i", str(inventory), "--list") or "{}")
    variables = output.pop("_meta", {}).get("hostvars", {})
    return {host: variables.get(host, {}) for group in output.values() for host in group.get("hosts", [])}


def routes(inventory: Path, directory: Path) -> dict[str, Route]:
    """Where OpenSSH would go, by the last argument but one: the address of a host. `directory`: an empty one."""
    (directory / "arguments").mkdir()
    (directory / "ssh").write_text(_SSH)
    (directory / "ssh").chmod(0o755)
    where = {"ANSIBLE_SSH_EXECUTABLE": str(directory / "ssh"), "ARGUMENTS": str(directory / "arguments"), "HOME": str(directory)}
    _ansible("ansible", "all", "-i", str(inventory), "-m", "ansible.builtin.raw", "-a", "true", **where)
    found = {}
    for file in (directory / "arguments").iterdir():
        arguments = file.read_text().split("\0")[:-1]
        if len(arguments) < 3:  # whether ssh knows ControlPersist
            continue
        shown = subprocess.run(["ssh", "-F", "none", "-G", *arguments], capture_output=True, text=True, check=True).stdout
        words = dict(line.split(" ", 1) for line in shown.splitlines() if " " in line)
        jump = words.get("proxyjump") or words.get("proxycommand") or ""
        found[arguments[-2].strip("[]")] = Route(
            words["hostname"], int(words["port"]), words["user"], "" if jump == "none" else jump
        )
    return found
