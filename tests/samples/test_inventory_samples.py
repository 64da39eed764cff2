"""Ansible inventories that other projects publish, read as they are."""

from __future__ import annotations

from pathlib import Path

import asyncssh
import pytest

from gpu_fleet.stackfile.config import ConfigErrors, StackConfig
from tests.samples.conftest import SAMPLES
from tests.stackfile import ansible_oracle
from tests.stackfile.stacks import HOST_KEY, write_private

INVENTORIES = SAMPLES / "ansible"
OF_SITES = SAMPLES.parent / "field/deploy/inventories"


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Reads one of the inventories for the stack us-west/training, with every host key known and a key at ~/.ssh/id_rsa."""
    (tmp_path / "known_hosts").write_text(f"@cert-authority * {HOST_KEY}\n")
    (tmp_path / ".ssh").mkdir()
    key = asyncssh.generate_private_key("ssh-ed25519").export_private_key("pkcs8-pem").decode()
    write_private(tmp_path / ".ssh" / "id_rsa", key)
    monkeypatch.setenv("HOME", str(tmp_path))

    def load_it(file: str, *limit: str) -> StackConfig:
        raw = {
            "datacenter": "us-west",
            "cluster": "training",
            "ssh": {"user": "ops", "knownHostsFile": "known_hosts"},
            "inventory": {"path": str(INVENTORIES / file), "limit": list(limit)},
            "metrics": {"url": "https://mimir.example.com/api/v1/push"},
        }
        return StackConfig.load(raw, tmp_path)

    return load_it


def test_a_virtual_cluster_of_deepops(load) -> None:
    config = load("deepops-virtual-inventory-full.ini", "slurm-node")
    assert {name: (host.address, host.user) for name, host in config.hosts.items()} == {
        "virtual-gpu01": ("10.0.0.6", "vagrant"),
        "virtual-gpu02": ("10.0.0.7", "vagrant"),
    }
    assert len(load("deepops-virtual-inventory-full.ini").hosts) == 6
    assert "vagrant" not in " ".join(config.warnings).replace("virtual", ""), "the password is not shown"


@pytest.mark.parametrize("file", ["deepops-inventory.ini", "stackhpc-caas-groups.ini"])
def test_an_inventory_whose_hosts_are_elsewhere_is_refused(load, file: str) -> None:
    with pytest.raises(ConfigErrors, match="lists no host") as error:
        load(file)
    assert len(error.value.problems) == 1


def test_ranges_that_overlap_between_groups_are_one_host_each(load) -> None:
    config = load("dgx-ranges.ini", "gpu_nodes")
    assert len(config.hosts) == 64
    assert {host.user for host in config.hosts.values()} == {"admin"}, "the variables of gpu_nodes reach hosts of every group"
    assert next(iter(load("dgx-ranges.ini", "dgx_h100").hosts)) == "gpu-node-33.cluster.local"


def test_connection_variables_and_a_sudo_password(load) -> None:
    config = load("gpu-nodes-connection-vars.yml")
    first, second = config.hosts["gpu-node-1"], config.hosts["gpu-node-2"]
    assert (first.address, first.user) == ("192.168.1.100", "ubuntu")
    assert first.private_key_file.endswith("/.ssh/id_rsa") and second.private_key_file is None
    assert "gpu-fleet:sudoPassword" in " ".join(config.warnings)
    assert "your_sudo_password" not in " ".join(config.warnings)


def test_groups_nested_three_deep(load) -> None:
    assert len(load("hpc-nested-ranges.yml").hosts) == 2 + 2 + 100 + 20 + 10 + 2 + 10
    assert list(load("hpc-nested-ranges.yml", "compute_gpu").hosts)[-1] == "gpu020"


def test_a_template_is_named_unless_the_limit_leaves_it_out(load) -> None:
    with pytest.raises(ConfigErrors, match=r"k8s-gpu-workers-flow-ranges\.yml:12: .*ansible_host is a template"):
        load("k8s-gpu-workers-flow-ranges.yml")
    gpus = load("k8s-gpu-workers-flow-ranges.yml", "gpu_workers").hosts
    assert {name: (host.user, host.sudo) for name, host in gpus.items()} == {f"gpu0{n}": ("ansible", True) for n in range(1, 5)}


def test_a_training_platform_with_passwords_and_unchecked_host_keys(load) -> None:
    config = load("pai-example.yml")
    assert list(config.hosts) == ["host1", "host2", "host3"], "localhost is where Ansible runs"
    warnings = " ".join(config.warnings)
    assert "StrictHostKeyChecking=no" in warnings and "ansible_ssh_pass is not read" in warnings
    assert "example1234" not in warnings


def test_a_validation_cluster_of_amd(load) -> None:
    config = load("rocm-gpu-operator-inventory.yml", "cluster_nodes", "server-node")  # it works on itself, and so must be named
    assert {name: (host.connection, host.user) for name, host in config.hosts.items()} == {
        "server-node": ("local", ""),
        "agent-node-1": ("ssh", "vm"),
    }


def test_every_sample_is_read_by_a_test_here() -> None:
    text = Path(__file__).read_text()
    assert [file.name for file in INVENTORIES.iterdir() if file.name not in text] == []


@pytest.mark.parametrize("file", sorted(OF_SITES.glob("*")), ids=lambda file: file.name)
def test_the_hosts_of_a_site_go_where_ansible_goes_or_are_refused(load, tmp_path, file: Path) -> None:
    """What routes a connection is never left out: an inventory that is read is read whole."""
    try:
        ours = load(str(file)).hosts
    except ConfigErrors as refused:
        assert file.name in REFUSED and REFUSED[file.name] in str(refused)
        return
    assert file.name not in REFUSED
    assert set(ours) == set(ansible_oracle.hosts(file)) - {"localhost"}
    (tmp_path / "ssh").mkdir()
    routes = ansible_oracle.routes(file, tmp_path / "ssh")
    for host in ours.values():
        assert host.user == "ops" or routes[host.address].leads_to(host), f"{host}: {routes[host.address]}"


REFUSED = {
    "aws_ssm.yml": "goes through",
    "chain.yml": "one jump host, as USER@HOST:PORT",
    "mixed.yml": "leave others out with gpu-fleet:inventory.limit",
    "names.yml": "the same name to DNS and OpenSSH",
    "ssh-config-file.yml": '"-F ssh.conf", which decides where the connection goes',
}
