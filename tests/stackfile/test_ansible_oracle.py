"""Ansible inventories against ansible-core itself, and their arguments of ssh against OpenSSH."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_fleet.stackfile.config import StackConfig
from tests.stackfile import ansible_oracle
from tests.stackfile.stacks import HOST_KEY, REMOVED, stack

INVENTORIES = {
    "types and quotes": {
        "hosts": """\
# a comment
[gpu]
a ansible_host=10.0.0.1 ansible_port=2222 ansible_user="my-user" # another
b ansible_host='10.0.0.2' ansible_port='22'
c ansible_host=10.0.0.3 ansible_user=ops#1
d:2222 ansible_host=10.0.0.4
e ansible_user=a\\-b
f	ansible_host=10.0.0.6

[gpu:vars]
ansible_user="quoted"
ansible_host=x.example.com
"""
    },
    "ranges and children": {
        "hosts": """\
first
[a:children]
b
c # a comment
[b]
b[1:3]
b[01:03].x
b[a:c]
b-[0:10:5]-[1:2]
[c]
www[1:2]:2200 ansible_user=x
[all:vars]
ansible_user=all
[b:vars]
ansible_user=bb
[a:vars]
ansible_user=aa
[empty]
"""
    },
    "IPv6": {
        "hosts": """\
[gpu]
gpu-01 ansible_host=2001:db8:1::11
2001:db8:1:0:0:0:0:13
2001:db8:1::14
[2001:db8:1::15]:2222
[gpu:vars]
ansible_user=ubuntu
"""
    },
    "priorities": {
        "hosts.yml": """\
all:
  children:
    x: {vars: {ansible_user: x, ansible_group_priority: 10}, hosts: {h: , k: {ansible_user: own}}}
    y: {vars: {ansible_user: y}, hosts: {h: }}
    z: {vars: {ansible_user: z}, children: {x: }}
ungrouped: {hosts: {q: {ansible_user: q}}}
"""
    },
    "files of variables": {
        "hosts": "[gpu]\nn1\nn2\n[gpu:children]\nsub\n[sub]\nn3\n[sub:vars]\nansible_user=ini\n",
        "group_vars/all/a.yml": "ansible_user: all",
        "group_vars/all/b": "ansible_port: 1",
        "group_vars/gpu/vars.yml": "ansible_user: directory",
        "group_vars/gpu/nested/x.yml": "ansible_port: 5",
        "group_vars/gpu.yml": "ansible_port: 6",
        "group_vars/sub.yaml": "ansible_user: sub",
        "host_vars/n1": "ansible_port: 9",
        "host_vars/n1.yml": "ansible_user: n1",
        "host_vars/n2.json": '{"ansible_user": "n2"}',
        "host_vars/n3.bak": "ansible_user: backup",
    },
    "arguments of ssh": {
        "hosts": """\
[all:vars]
ansible_user=ubuntu
[gpu]
none
args ansible_ssh_args="-o ControlMaster=auto -o ProxyJump=ops@bastion:2022"
common ansible_ssh_common_args='-o "ProxyJump ops@bastion"'
extra ansible_ssh_common_args="-o StrictHostKeyChecking=no" ansible_ssh_extra_args="-Jops@bastion"
both ansible_ssh_args="-o ProxyJump=first" ansible_ssh_common_args="-o ProxyJump=second" ansible_ssh_extra_args="-C"
without ansible_ssh_args="-o ProxyJump=none" ansible_ssh_common_args="-o ProxyJump=second"
old ansible_host=10.0.0.1 ansible_ssh_host=10.0.0.2 ansible_port=1 ansible_ssh_port=2 ansible_user=a ansible_ssh_user=b
"""
    },
}


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
