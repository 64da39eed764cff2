"""The file that gpu-fleet:inventory names: hosts in our form, or an Ansible inventory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpu_fleet.stackfile.ansible import AnsibleInventory, Membership, add_variable_files, read_ini, read_yaml, select
from gpu_fleet.stackfile.hostlist import HostList, entries_of
from gpu_fleet.stackfile.hosts import InventoryFile
from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.patterns import Listed
from gpu_fleet.stackfile.problems import Location, Problem, shown, unknown_key, why_unreadable
from gpu_fleet.stackfile.yaml_text import YamlError, YamlText

_WHERE = f"{PROJECT}:inventory"
_YAML_SUFFIXES = (".yml", ".yaml", ".json")  # those by which Ansible, too, distinguishes YAML from INI


def read_inventory(inventory: InventoryFile, stack: Membership, listing: HostList) -> list[Listed]:
    """The entries of the file that belong to this stack; errors go to the listing's problems.

    `stack`: datacenter and cluster of the stack, see `gpu_fleet.stackfile.ansible.select`.
    """
    path = listing.local_path(inventory.path)
    text = _text_of(inventory.path, path, listing.problems)
    if text is None:
        return []
    if path.suffix not in _YAML_SUFFIXES:
        return _ansible(read_ini(inventory.path, text, listing.problems, listing.warnings), inventory, stack, path)
    yaml_text = YamlText(inventory.path, text)
    try:
        content = yaml_text.load()
    except YamlError as error:
        listing.problems.append(Problem(f"{inventory.path}:{error.line}", str(error), "YAML", "correct the file"))
        return []
    if not isinstance(content, Mapping):
        fix = "begin with `hosts:` as in the stack file, or with `all:` as Ansible does"
        listing.problems.append(Problem(f"{inventory.path}:1", f"found {shown(content)}", "a mapping", fix))
        return []
    if "_meta" in content:
        what, fix = (
            "is the output of an Ansible inventory script",
            "`ansible-inventory --list --yaml --output FILE` writes a file",
        )
        listing.problems.append(Problem(f"{inventory.path}:1", what, "an inventory file", fix))
        return []
    if "hosts" in content:
        return _ours(content, yaml_text, inventory, listing.problems)
    return _ansible(read_yaml(yaml_text, content, listing.problems, listing.warnings), inventory, stack, path)


def _text_of(name: str, path: Path, problems: list[Problem]) -> str | None:
    listed = "`ansible-inventory --list --yaml --output FILE` writes its hosts into one file"
    try:
        text = path.read_text()
        if text.startswith("$ANSIBLE_VAULT"):
            what, fix = (
                "is encrypted by ansible-vault, which is not supported here",
                "keep the hosts in clear text, they are no secret",
            )
        elif text.startswith("#!") and os.access(path, os.X_OK):
            what, fix = "is an Ansible inventory script", listed
        else:
            return text
    except (OSError, UnicodeDecodeError) as error:
        what, fix = why_unreadable(error), listed if path.is_dir() else "correct the path, relative to Pulumi.yaml"
    problems.append(Problem(f"{_WHERE}.path", f"{name} {what}", "a YAML file of hosts, or an Ansible inventory file", fix))
    return None


def _ours(content: Mapping[str, object], text: YamlText, inventory: InventoryFile, problems: list[Problem]) -> list[Listed]:
    def place(location: Location) -> str:
        path = ("hosts", *location)
        return f"{text.name}:{text.line_of(path)}: {'.'.join(map(str, path))}"

    for key in content:
        if key != "hosts":
            problems.append(unknown_key(f"{text.name}:{text.line_of((key,))}: {key}", str(key), ["hosts"]))
    if inventory.limit:
        fix = "remove limit; Ansible inventories have groups"
        problems.append(Problem(f"{_WHERE}.limit", f"{text.name} has no groups", "", fix))
    hosts = content["hosts"]
    if not isinstance(hosts, Mapping) or not hosts:
        fix = "write one line per host: `gpu-node-001: {address: 10.0.1.1}`"
        problems.append(Problem(place(()), f"found {shown(hosts)}", "a mapping of hosts", fix))
        return []
    return entries_of(hosts, place, problems)


def _ansible(read: AnsibleInventory, inventory: InventoryFile, stack: Membership, path: Path) -> list[Listed]:
    add_variable_files(read, path.parent)
    return select(read, inventory.limit, stack, _WHERE)
