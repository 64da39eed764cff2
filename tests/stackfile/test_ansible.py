"""Ansible inventories, read as they are."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import asyncssh
import pytest
import yaml

from gpu_fleet.stackfile.config import StackConfig
from tests.stackfile.stacks import HOST_KEY, REMOVED, problems, stack, write_private

SEED = """\
training_cluster:
  vars:
    datacenter: us-west
    cluster_name: training
  hosts:
    gpu-node-001:
      ansible_host: 10.0.1.1
inference_cluster:
  vars:
    datacenter: us-east
    cluster_name: inference
  hosts:
    gpu-node-900:
      ansible_host: 10.0.9.1
container_hosts:
  hosts:
    nested-gpu-node:
      ansible_host: 192.168.1.10
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "known_hosts").write_text(f"@cert-authority * {HOST_KEY}\n")
    return tmp_path


def load(base: Path, text: str, file: str = "hosts.yml", **changes: object) -> StackConfig:
    (base / file).write_text(text)
    return StackConfig.load(stack(hosts=REMOVED, **{"inventory": file, **changes}), base)


def errors(base: Path, text: str, file: str = "hosts.yml", **changes: object) -> list[tuple[str, str]]:
    (base / file).write_text(text)
    errors = problems(stack(hosts=REMOVED, **{"inventory": file, **changes}), base)
    return [(problem.where, str(problem)) for problem in errors.problems] if errors else []


def test_one_inventory_serves_the_stacks_of_several_clusters(base: Path) -> None:
    training = load(base, SEED)
    inference = load(base, SEED, datacenter="us-east", cluster="inference")
    assert list(training.hosts) == ["gpu-node-001", "nested-gpu-node"], "a host that names no datacenter belongs to its reader"
    assert list(inference.hosts) == ["gpu-node-900", "nested-gpu-node"]


def test_an_inventory_of_other_clusters_is_an_error(base: Path) -> None:
    found = errors(base, SEED, inventory={"path": "hosts.yml", "limit": ["inference_cluster"]})
    assert [where for where, _ in found] == ["gpu-fleet:inventory.path"]
    assert "no host of hosts.yml belongs to us-west/training" in found[0][1]
    assert "us-east/inference (1)" in found[0][1]


def test_a_cluster_name_alone_says_nothing(base: Path) -> None:
    """Kubespray inventories carry cluster_name: cluster.local."""
    assert list(load(base, "all:\n  vars: {cluster_name: cluster.local}\n  hosts: {gpu1: }\n").hosts) == ["gpu1"]


def test_connection_variables_become_ours(base: Path) -> None:
    host = load(base, """\
all:
  hosts:
    gpu1:
      ansible_host: 10.0.1.1
      ansible_user: ubuntu
      ansible_port: 2222
      ansible_become: false
      ansible_ssh_common_args: -o ProxyJump=jump@bastion.example.com:2022
      rack: 12
""").hosts["gpu1"]  # fmt: skip
    assert (host.address, host.user, host.port, host.sudo) == ("10.0.1.1", "ubuntu", 2222, False)
    assert (host.bastion.host, host.bastion.user, host.bastion.port) == ("bastion.example.com", "jump", 2022)


@pytest.mark.parametrize(
    "arguments",
    [
        "-J jump@10.0.0.1",
        "-o ProxyJump=jump@10.0.0.1",
        "-oProxyJump=jump@10.0.0.1",
        '-o ProxyCommand="ssh -W %h:%p -q jump@10.0.0.1"',
        '-o ProxyCommand="ssh -p 22 -W %h:%p -q jump@10.0.0.1"',
        '-o ProxyCommand="ssh -W [%h]:%p -o StrictHostKeyChecking=no -i ~/.ssh/jump -l jump 10.0.0.1"',
        '-o ProxyCommand="/usr/bin/ssh -q jump@10.0.0.1 nc %h %p" -o ControlMaster=auto',
        "-J ssh://jump@10.0.0.1:22",
    ],
)
def test_every_way_to_write_a_jump_host_is_understood(base: Path, arguments: str) -> None:
    host = load(base, f"all: {{hosts: {{gpu1: {{ansible_ssh_common_args: '{arguments}'}}}}}}\n").hosts["gpu1"]
    assert (host.bastion.host, host.bastion.user, host.bastion.port) == ("10.0.0.1", "jump", 22)


@pytest.mark.parametrize(
    "arguments",
    [
        "-J jump",
        "-J ops@jump:2222",
        "-J 10.0.0.1:22",
        "-J ops@[2001:db8::1]:2222",
        "-J [2001:db8::1]",
        "-J ssh://ops@jump:2222",
        "-J JUMP.example.com",
        "-J none",
        "-J NONE",
        "-qJ jump",
        "-Jops@jump -A",
        "-o proxyjump=jump:22",
        "-o 'ProxyJump = ops@jump'",
        "-o ProxyJump=first -o ProxyJump=second",
        "-o ProxyJump=none -o ProxyJump=second",
        "-J first -o ProxyJump=second",
        "-J first -o ProxyCommand=none",
    ],
)
def test_a_connection_goes_through_the_jump_host_of_the_real_ssh(base: Path, arguments: str) -> None:
    """Beside what ssh itself makes of the same arguments; it connects to nothing."""
    command = ["ssh", "-G", "-F", "none", *shlex.split(arguments), "gpu1"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    jumps = re.findall(r"^proxyjump (?:(.+)@)?\[?(.+?)\]?(?::(\d+))?$", printed, re.MULTILINE)
    text = json.dumps({"all": {"hosts": {"gpu1": {"ansible_ssh_common_args": arguments}}}})
    bastion = load(base, text).hosts["gpu1"].bastion
    ours = [(bastion.user or "", bastion.host, str(bastion.port))] if bastion else []
    assert ours == [(user, host, port or "22") for user, host, port in jumps]


@pytest.mark.parametrize("before", ["-J a", "-J none", "-o ProxyJump=a", "-o ProxyJump=none", "-o ProxyCommand=none"])
def test_a_second_jump_host_that_ssh_refuses_is_refused(base: Path, before: str) -> None:
    """ssh would not connect at all; to leave `-J jump` out would connect past it."""
    arguments = f"{before} -J jump"
    done = subprocess.run(["ssh", "-G", "-F", "none", *shlex.split(arguments), "gpu1"], capture_output=True, check=False)
    assert done.returncode != 0
    found = errors(base, json.dumps({"all": {"hosts": {"gpu1": {"ansible_ssh_common_args": arguments}}}}))
    assert 'has "-J jump" after another jump host or ProxyCommand, which ssh refuses' in found[0][1]


@pytest.mark.parametrize("arguments", ["-J [2001:db8::1]:2022", '-o ProxyCommand="ssh -W %h:%p -p 2022 2001:db8::1"'])
def test_a_jump_host_may_have_an_ipv6_address_and_a_port(base: Path, arguments: str) -> None:
    host = load(base, f"all: {{hosts: {{gpu1: {{ansible_ssh_common_args: '{arguments}'}}}}}}\n").hosts["gpu1"]
    assert (host.bastion.host, host.bastion.port) == ("2001:db8::1", 2022)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("-J a.example.com,b.example.com", 'goes through "a.example.com,b.example.com"'),
        ("-J %r@jump", 'goes through "%r@jump"'),
        ("-o ProxyCommand='nc -x 127.0.0.1:1080 %h %p'", "expected: an ssh to one jump host"),
        ("-o ProxyCommand='ssh -J outer -W %h:%p inner'", "expected: an ssh to one jump host"),
        ("-o ProxyCommand='ssh -F jump.conf -W %h:%p inner'", "expected: an ssh to one jump host"),
        ("-F ssh.conf -o StrictHostKeyChecking=no", '"-F ssh.conf", which decides where the connection goes'),
        ("-qF ssh.conf", '"-F ssh.conf"'),
        ("-p 2222", "write ansible_port"),
        ("-o 'Port 2222'", "write ansible_port"),
        ("-l root", "write ansible_user"),
        ("-o Hostname=10.0.0.9", "write ansible_host"),
        ("-o BindAddress=10.0.0.9", '"BindAddress=10.0.0.9"'),
        ("jump.example.com", "which is no option"),
    ],
)
@pytest.mark.parametrize("variable", ["ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args"])
def test_what_routes_a_connection_otherwise_is_refused(base: Path, variable: str, arguments: str, says: str) -> None:
    found = errors(base, yaml.safe_dump({"all": {"hosts": {"gpu1": {variable: arguments}}}}))
    assert [place for place, _ in found] == [f"hosts.yml:4: gpu1.{variable}"], found
    assert says in found[0][1]


def test_a_jump_host_without_a_possible_port_is_refused_as_by_ssh(base: Path) -> None:
    found = errors(base, yaml.safe_dump({"all": {"hosts": {"gpu1": {"ansible_ssh_common_args": "-J jump:0"}}}}))
    assert "found 0" in found[0][1] and "a whole number from 1 to 65535" in found[0][1]


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"ansible_ssh_executable": "/opt/bin/gcloud-ssh"}, "ansible_ssh_executable"),
        ({"ansible_ssh_executable": "ssh"}, ""),
        (
            {"ansible_connection": "paramiko", "ansible_paramiko_proxy_command": "nc -x proxy %h %p"},
            "ansible_paramiko_proxy_command",
        ),
        ({"ansible_paramiko_proxy_command": "nc -x proxy %h %p"}, ""),  # Ansible does not read it
    ],
)
def test_a_program_that_reaches_hosts_in_place_of_ssh_is_refused(base: Path, variables: dict[str, str], place: str) -> None:
    """As for IAP of Google Cloud (ansible issues 66310 and 74052), and Teleport."""
    text = yaml.safe_dump({"all": {"hosts": {"gpu1": {"ansible_host": "10.0.1.1", **variables}}}}, sort_keys=False)
    if not place:
        load(base, text)
        return
    ((where, said),) = errors(base, text)
    assert where.endswith(f": gpu1.{place}") and "or in pull mode" in said


def test_arguments_of_all_three_variables_count_and_the_first_of_an_option_wins(base: Path) -> None:
    write_private(base / "id", asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode())
    config = load(base, """\
[all:vars]
ansible_ssh_args=-C -o ControlMaster=auto -o ControlPersist=60s -o "ProxyJump ops@first"
ansible_ssh_common_args=-i id -o ServerAliveInterval=10 -p 22
ansible_ssh_extra_args=-o ProxyCommand="ssh -W %h:%p second"
[gpus]
gpu1 ansible_port=22
gpu2 ansible_ssh_args="-o ProxyJump=none" ansible_port=22
""", file="hosts")  # fmt: skip
    first, second = config.hosts.values()
    assert (first.bastion.host, first.bastion.user, first.private_key_file) == ("first", "ops", "id")
    assert second.bastion is None
    assert config.warnings == (), "nothing was left out that a user would miss"


def test_plugins_may_have_their_full_names(base: Path) -> None:
    host = load(base, """\
all:
  vars: {ansible_connection: ansible.builtin.ssh, ansible_become: true, ansible_become_method: ansible.builtin.sudo}
  hosts: {gpu1: }
""").hosts["gpu1"]  # fmt: skip
    assert (host.connection, host.sudo) == ("ssh", True)


@pytest.mark.parametrize(
    "line", ["localhost ansible_connection=local", "localhost", "here ansible_connection=ansible.builtin.local"]
)
def test_the_machine_that_ansible_runs_on_is_no_host_unless_it_is_named(base: Path, line: str) -> None:
    text, name = f"{line}\n[gpus]\ngpu1\n", line.split()[0]
    config = load(base, text, file="hosts")
    assert list(config.hosts) == ["gpu1"]
    assert len(config.warnings) == 1 and f"{name} is the machine that Ansible runs on" in config.warnings[0]
    named = {"path": "hosts", "limit": [name, "gpus"]}
    assert list(load(base, text, file="hosts", inventory=named).hosts) == [name, "gpu1"]
    assert "lists no host but" in errors(base, f"{line}\n", file="hosts")[0][1]


def test_an_argument_that_switches_host_keys_off_has_no_effect_and_is_said(base: Path) -> None:
    config = load(base, "all: {hosts: {gpu1: {ansible_ssh_extra_args: '-o StrictHostKeyChecking=no'}}}\n")
    assert len(config.warnings) == 1
    assert "StrictHostKeyChecking=no" in config.warnings[0] and "always verified" in config.warnings[0]


def test_variables_of_ours_describe_the_gpus(base: Path) -> None:
    host = load(base, """\
gpus:
  vars: {gpu_fleet_gpus: 8, gpu_fleet_exporter: textfile}
  hosts:
    amd1: {gpu_fleet_vendor: amd, gpu_fleet_gpus: 4, gpu_fleet_kernel_log: /var/log/kern.log, gpu_fleet_ports: {alloy: 12399}}
""").hosts["amd1"]  # fmt: skip
    assert (host.gpus, host.exporter, host.vendor, host.kernel_log, host.ports.alloy) == (
        4,
        "textfile",
        "amd",
        "/var/log/kern.log",
        12399,
    )


def test_the_nearer_group_and_then_the_host_have_the_last_word(base: Path) -> None:
    config = load(base, """\
all:
  vars: {ansible_user: from_all, ansible_port: 1000}
  children:
    site:
      vars: {ansible_user: from_site, ansible_port: 1001}
      children:
        racks:
          vars: {ansible_user: from_racks}
          hosts:
            gpu1: {ansible_user: own}
            gpu2:
  hosts:
    gpu3:
""")  # fmt: skip
    assert {name: (host.user, host.port) for name, host in config.hosts.items()} == {
        "gpu1": ("own", 1001),
        "gpu2": ("from_racks", 1001),
        "gpu3": ("from_all", 1000),
    }


def test_group_vars_and_host_vars_beside_the_inventory_are_read(base: Path) -> None:
    (base / "group_vars" / "racks").mkdir(parents=True)
    (base / "host_vars").mkdir()
    (base / "group_vars" / "all.yml").write_text("ansible_user: from_all_file\nansible_port: 1000\n")
    (base / "group_vars" / "racks" / "main.yml").write_text("ansible_port: 1001\n")
    (base / "group_vars" / "racks" / "vault.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    (base / "host_vars" / "gpu2.example.com").write_text("ansible_port: 1002\n")
    (base / "group_vars" / "unrelated.yml").write_text("not read: [\n")
    config = load(base, "all: {vars: {ansible_user: inline}, children: {racks: {hosts: {gpu1: , gpu2.example.com: }}}}\n")
    ports = {name: (host.user, host.port) for name, host in config.hosts.items()}
    assert ports == {"gpu1": ("from_all_file", 1001), "gpu2.example.com": ("from_all_file", 1002)}
    assert config.warnings == ("group_vars/racks/vault.yml: is encrypted by ansible-vault and not read",)


def test_a_limit_takes_groups_with_their_children_and_hosts(base: Path) -> None:
    text = "all: {children: {gpus: {children: {a100: {hosts: {'a[1:2]': }}}}, login: {hosts: {login1: , login2: }}}}\n"
    config = load(base, text, inventory={"path": "hosts.yml", "limit": ["gpus", "login2"]})
    assert list(config.hosts) == ["a1", "a2", "login2"]


def test_what_a_limit_leaves_out_need_not_be_right(base: Path) -> None:
    text = "all: {children: {gpus: {hosts: {gpu1: }}, other: {hosts: {bad: {ansible_host: '{{ ip }}'}}}}}\n"
    assert list(load(base, text, inventory={"path": "hosts.yml", "limit": ["gpus"]}).hosts) == ["gpu1"]


def test_a_local_host_keeps_ansible_from_saying_how_to_log_in(base: Path) -> None:
    text = "all: {hosts: {here: {ansible_connection: local, ansible_host: 10.0.0.1, ansible_user: x}}}\n"
    host = load(base, text, inventory={"path": "hosts.yml", "limit": ["here"]}).hosts["here"]
    assert (host.connection, host.address, host.user) == ("local", "", "")


def test_a_port_may_stand_after_the_name(base: Path) -> None:
    host = load(base, "all: {hosts: {'gpu1.example.com:2222': }}\n").hosts["gpu1.example.com"]
    assert host.port == 2222


def test_passwords_in_an_inventory_are_not_read_and_that_is_said_once(base: Path) -> None:
    text = "all: {vars: {ansible_become_password: hunter2}, hosts: {gpu1: , gpu2: }}\n"
    config = load(base, text)
    assert len(config.warnings) == 1 and "gpu-fleet:sudoPassword" in config.warnings[0]
    assert "hunter2" not in config.warnings[0]


INI = """\
; the fleet
mgmt ansible_host=10.0.0.9

[gpus]
gpu-[01:02].example.com ansible_user=admin gpu_fleet_gpus=8   # two of them
named ansible_host=10.0.0.1 ansible_ssh_common_args='-o ProxyJump=10.0.0.2'

[gpus:vars]
ansible_port=2222
ansible_user = 'ubuntu'

[site:children]
gpus
nowhere
"""


def test_a_password_with_a_space_is_not_shown(base: Path) -> None:
    found = errors(base, "[gpus]\ngpu1 ansible_password=correct hunter2\n", file="hosts")
    assert [place for place, _ in found] == ["hosts:2: gpu1"]
    assert "hunter2" not in found[0][1]


def test_yaml_merges_are_no_double_keys(base: Path) -> None:
    text = "all: {hosts: {gpu1: &first {ansible_port: 1, ansible_user: a}, gpu2: {<<: *first, ansible_port: 2}}}\n"
    host = load(base, text).hosts["gpu2"]
    assert (host.port, host.user) == (2, "a")


def test_an_ini_inventory_says_the_same(base: Path) -> None:
    config = load(base, INI, file="hosts")
    assert {name: (host.address, host.user, host.port, host.gpus) for name, host in config.hosts.items()} == {
        "mgmt": ("10.0.0.9", "ops", 22, None),
        "gpu-01.example.com": ("gpu-01.example.com", "admin", 2222, 8),
        "gpu-02.example.com": ("gpu-02.example.com", "admin", 2222, 8),
        "named": ("10.0.0.1", "ubuntu", 2222, None),
    }
    assert config.hosts["named"].bastion.host == "10.0.0.2"
    assert list(load(base, INI, file="hosts", inventory={"path": "hosts", "limit": ["site"]}).hosts) == list(config.hosts)[1:]


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("all:\n  hosts:\n    gpu1:\n      ansible_host: '{{ ip }}'\n", "hosts.yml:4: gpu1.ansible_host", "is a template"),
        (
            "all:\n  hosts:\n    gpu1:\n      ansible_user: !vault |\n        $ANSIBLE_VAULT;1.1;AES256\n        61\n",
            "hosts.yml:4: gpu1.ansible_user",
            "encrypted by ansible-vault",
        ),
        ("all:\n  vars:\n    ansible_port: ssh\n  hosts: {gpu1: , gpu2: }\n", "hosts.yml:3: all.ansible_port", 'found "ssh"'),
        ("all:\n  hosts:\n    gpu1: {ansible_connection: winrm}\n", "hosts.yml:3: gpu1.ansible_connection", "ssh or local"),
        ("all:\n  hosts:\n    gpu1: {ansible_become_method: su}\n", "hosts.yml:3: gpu1.ansible_become_method", "sudo to root"),
        ("all:\n  hosts:\n    gpu1: {ansible_host: 10.0.1.999}\n", "hosts.yml:3: gpu1.ansible_host", "not an IPv4 address"),
        (
            "all:\n  hosts:\n    gpu1:\n      gpu_fleet_gpu: 8\n",
            "hosts.yml:4: gpu1.gpu_fleet_gpu",
            "did you mean 'gpu_fleet_gpus'",
        ),
        ("all:\n  hosts:\n    gpu1:\n      gpu_fleet_gpus: many\n", "hosts.yml:4: gpu1.gpu_fleet_gpus", "from 1 to 64"),
        ("all:\n  hosts:\n    gpu1:\n      gpu_fleet_ports: {alloy: 0}\n", "hosts.yml:4: gpu1.gpu_fleet_ports.alloy", "found 0"),
        ("all:\n  hosts:\n    gpu[1:b]:\n", "hosts.yml:3: gpu[1:b]", "mixes kinds of ends"),
        ("all:\n  hosts:\n    no: {ansible_host: 10.0.1.1}\n", "hosts.yml:2: False", "put it in quotes"),
        ("all:\n  hosts:\n    - gpu1\n", "hosts.yml:2: hosts", "a colon after each name"),
        ("all:\n  host:\n    gpu1:\n  hosts: {gpu2: }\n", "hosts.yml:2: host", "did you mean hosts"),
        (
            "all:\n  hosts: {gpu1: }\n  children: {a: {children: {b: }}, b: {children: {a: }}}\n",
            "hosts.yml",
            "its own descendant: a > b > a",
        ),
        ("all:\n  children: {empty: }\n", "gpu-fleet:inventory.path", "lists no host"),
        ("_meta: {hostvars: {}}\nall: {children: [a]}\n", "hosts.yml:1", "ansible-inventory --list --yaml"),
    ],
)
def test_an_error_names_file_line_and_variable(base: Path, text: str, where: str, says: str) -> None:
    found = errors(base, text)
    assert [place for place, _ in found] == [where], found
    assert says in found[0][1]


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("[gpus]\ngpu1 ansible_host\n", "hosts:2: gpu1", "a word that is not NAME=VALUE"),
        ("[gpus]\ngpu1 ansible_user='x\n", "hosts:2: gpu1", "no closing quotation"),
        ("[gpus]\ngpu1\n[gpus:var]\nansible_port=1\n", "hosts:3: [gpus:var]", "unknown kind of section 'var'"),
        ("[gpus]\ngpu1\n[gpus:vars]\nansible_port=ssh\n", "hosts:4: gpus.ansible_port", 'found "ssh"'),
    ],
)
def test_an_error_in_an_ini_inventory_names_its_line(base: Path, text: str, where: str, says: str) -> None:
    found = errors(base, text, file="hosts")
    assert [place for place, _ in found] == [where], found
    assert says in found[0][1]


def test_a_broken_variable_file_is_named(base: Path) -> None:
    (base / "group_vars").mkdir()
    (base / "group_vars" / "all.yml").write_text("ansible_user: ops\nansible_port: [\n")
    found = errors(base, "all: {hosts: {gpu1: }}\n")
    assert [place for place, _ in found] == ["group_vars/all.yml:3"]


def test_a_program_that_makes_an_inventory_is_not_run(base: Path) -> None:
    script = base / "hosts"
    script.write_text("#!/bin/sh\necho ran > ran\n")
    script.chmod(0o755)
    errors = problems(stack(hosts=REMOVED, inventory="hosts"), base)
    assert errors is not None and "is an Ansible inventory script" in str(errors)
    assert not (base / "ran").exists()
