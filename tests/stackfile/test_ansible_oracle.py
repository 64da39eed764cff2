"""Ansible inventories against ansible-core itself, and their arguments of ssh against OpenSSH."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpu_fleet.stackfile.config import StackConfig
from tests.stackfile import ansible_oracle
from tests.stackfile.stacks import HOST_KEY, REMOVED, stack

INVENTORIES: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("inventories.yaml").read_text())


@pytest.mark.parametrize("files", INVENTORIES.values(), ids=INVENTORIES)
def test_hosts_go_where_ansible_goes(files: dict[str, str], tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    inventory = tmp_path / next(iter(files))
    (tmp_path / "known_hosts").write_text(f"@cert-authority * {HOST_KEY}\n")
    login = {"user": "default", "knownHostsFile": "known_hosts"}
    ours = StackConfig.load(stack(hosts=REMOVED, inventory=inventory.name, ssh=login), tmp_path).hosts
    assert set(ours) == set(ansible_oracle.hosts(inventory))
    (tmp_path / "ssh").mkdir()
    routes = ansible_oracle.routes(inventory, tmp_path / "ssh")
    assert {host.address for host in ours.values()} == set(routes)
    for host in ours.values():
        assert routes[host.address].leads_to(host), f"{host}: {routes[host.address]}"
