"""The file that gpu-fleet:inventory names: hosts in our form, or an Ansible inventory."""

from __future__ import annotations

from pathlib import Path

from components.hosts import HostList, entries_of
from components.inventory import Listed
from components.naming import PROJECT
from components.problems import Problem
from components.stackfile.hosts import InventoryFile
from components.yaml_text import YamlError, YamlText

_WHERE = f"{PROJECT}:inventory.path"


def read_inventory(inventory: InventoryFile, datacenter: str | None, cluster: str | None, listing: HostList) -> list[Listed]:
    """The entries of the file that belong to this datacenter and cluster; mistakes go to the listing's problems."""
    path = Path(listing.local_path(inventory.path))
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError):
        listing.problems.append(Problem(_WHERE, f"{inventory.path} cannot be read", "a file", "correct the path"))
        return []
    yaml_text = YamlText(inventory.path, text)
    try:
        content = yaml_text.load()
    except YamlError as error:
        listing.problems.append(Problem(f"{inventory.path}:{error.line}", str(error), "YAML", "correct the file"))
        return []
    return entries_of(
        content["hosts"],
        lambda location: f"{inventory.path}:{yaml_text.line_of(('hosts', *location))}: {location}",
        listing.problems,
    )
