"""What others set up on a host is the same before an apply, after it and after the removal: a Kubernetes node with containerd as
kubespray lays it, Podman, and guests behind a bridge. With Debian's own packages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_fleet.host.part import Part
from gpu_fleet.host.parts import HostOptions, standard_parts
from gpu_fleet.host.parts.container_runtime import ContainerRuntime
from gpu_fleet.toolchain.versions import Repository as Upstream
from lab.hosts import VARIANTS, Host, Site
from lab.hosts.image import package_files
from lab.hosts.packages import Repository, build_stand_ins
from tests.hosts.placed import PlacedHost

ROOT = "/srv/packages"
# Up to the runtime; dcgm-exporter itself is not needed for what follows.
PARTS = (
    *("launch", "python", "driver-check", "exporter-choice", "container-toolkit"),
    *("container-runtime-settings", "container-runtime-docker", "container-runtime-podman"),
)
IPTABLES = "LD_LIBRARY_PATH=/opt/iptables/usr/lib/x86_64-linux-gnu /opt/iptables/usr/sbin/xtables-nft-multi iptables"
NETWORK = f"""
cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding
{IPTABLES} -S
ip -brief link | sed 's/@.*//; s/ .*//'
"""
# Units and their processes, packages, configuration, forwarding, firewall and interfaces. Without what is ours, and what Docker's
# package creates and leaves: its group and a key.
STATE = rf"""
systemctl list-units --all --plain --no-legend --type service,socket | awk '$2 == "loaded" {{ print $1, $3, $4 }}' |
  grep -vE 'gpu-fleet|user@|session|apt-|dpkg-|wait-online|docker|containerd'
systemctl list-unit-files --plain --no-legend | grep -vE 'gpu-fleet|user@|session'
for unit in containerd kubelet slurmd; do systemctl show --property=MainPID,ActiveState,UnitFileState,FragmentPath $unit; done
dpkg-query --show --showformat '${{Package}} ${{Version}} ${{Status}}\n'
find /etc -type f ! -path '*gpu-fleet*' | grep -vE '^/etc/(g?shadow|passwd|group|sub[ug]id)-?$|/ld.so.cache$|/docker/key.json$' |
  sort | xargs -d '\n' md5sum
{NETWORK}
"""


class Node(PlacedHost):
    """May install a runtime."""

    only: tuple[Part, ...] = ()

    def parts(self) -> list[Part]:
        if self.only:
            return list(self.only)
        programs: dict = {name: {} for name in ("node_exporter", "nvidia_gpu_exporter", "alloy")}
        toolkit = Upstream(url=f"file://{ROOT}", key_sha256="0" * 64)
        options = HostOptions(programs=programs, containers=ContainerRuntime(toolkit=toolkit, may_install=True))
        return [part for part in standard_parts(options) if part.name in PARTS]

    def bring_artifacts(self) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site.up({name: VARIANTS[kind] for name, kind in (("node", "metal"), ("bare", "metal"), ("podman", "podman"))}) as site:
        yield site


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    repository = Repository(tmp_path_factory.mktemp("packages"))
    build_stand_ins(repository.packages)
    for package in package_files():
        shutil.copy(package, repository.packages)
    repository.publish()
    return repository


def prepare(host: Host, repository: Repository) -> Node:
    """Its only package repository is a directory of its own."""
    directory = f"{ROOT}/{repository.packages_below}"
    host.ssh(f"mkdir -p {directory} /opt/iptables")
    for file in repository.packages.iterdir():
        host.copy(file, f"{directory}/{file.name}")
    host.ssh(
        f"echo 'deb [trusted=yes] file://{directory} /' >/etc/apt/sources.list; rm -f /etc/apt/sources.list.d/*; apt-get update"
    )
    host.ssh(f"for p in {directory}/iptables_*.deb {directory}/lib*.deb; do dpkg-deb --extract $p /opt/iptables; done")
    return Node(
        host, Path("/nonexistent"), settings={"GPU_FLEET_EXPORTER": "auto", "GPU_FLEET_DCGM_ARCHIVE": "/image.tar"}, secrets={}
    )


def kubespray(host: Host) -> None:
    """containerd from the release's archive with its unit and configuration, and a kubelet."""
    host.ssh(
        f"""
        set -e
        for name in containerd runc; do dpkg-deb --extract {ROOT}/stable/deb/amd64/${{name}}_*.deb /tmp/release; done
        install -m 755 /tmp/release/usr/bin/containerd* /tmp/release/usr/bin/ctr /usr/local/bin/
        install -m 755 /tmp/release/usr/sbin/runc /usr/local/bin/
        mkdir -p /etc/containerd /etc/kubernetes /var/lib/kubelet
        cat >/etc/containerd/config.toml <<'END'
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.example.com/pause:3.9"
[plugins."io.containerd.gc.v1.scheduler"]
  pause_threshold = 0.0
END
        cat >/etc/systemd/system/containerd.service <<'END'
[Unit]
Description=containerd container runtime
[Service]
ExecStart=/usr/local/bin/containerd
Type=notify
Delegate=yes
KillMode=process
Restart=always
[Install]
WantedBy=multi-user.target
END
        sed 's,ExecStart=.*,ExecStart=/bin/sleep infinity,; /^Type/d' /etc/systemd/system/containerd.service \\
          >/etc/systemd/system/kubelet.service
        systemctl daemon-reload
        systemctl enable --quiet kubelet containerd
        systemctl restart containerd kubelet
        """
    )


def state(host: Host) -> set[str]:
    return set(host.ssh(STATE).stdout.splitlines())


def test_a_clean_host_gets_docker_and_is_the_same_while_it_is_there_and_after_it_went(site: Site, repository: Repository) -> None:
    node = prepare(site.hosts["bare"], repository)
    before = state(node.host)
    first = node.apply()
    assert (first.errors, first.facts["GPU_FLEET_INSTALL_RUNTIME"]) == ({}, "docker")
    assert node.host.ssh("systemctl is-active docker").stdout == "active\n"
    during = node.host.ssh(NETWORK).stdout.splitlines()
    assert set(during) <= before, "forwarding, the firewall and the interfaces are as they were"
    again = node.apply()
    assert (again.errors, again.changes) == ({}, {})
    removed = node.remove()
    assert not [line for lines in removed.changes.values() for line in lines if " kept" in line]
    assert state(node.host) == before
    # And it can come again: what Docker leaves behind is no sign of somebody else.
    assert node.apply().facts["GPU_FLEET_INSTALL_RUNTIME"] == "docker"
    node.host.ssh("tar --create --directory /usr/bin true | docker import - theirs && docker create --name theirs theirs /true")
    kept = node.remove()
    assert "package docker.io: kept, because it still holds containers" in kept.changes["container-runtime-docker"]
    assert "file /etc/docker/daemon.json: kept, because Docker stays" in kept.changes["container-runtime-settings"]
    node.host.ssh("systemctl restart docker && docker container inspect theirs")
    assert set(node.host.ssh(NETWORK).stdout.splitlines()) <= before


def test_a_kubernetes_node_is_left_alone(site: Site, repository: Repository) -> None:
    node = prepare(site.hosts["node"], repository)
    kubespray(node.host)
    before = state(node.host)
    first = node.apply()
    assert (first.errors, first.facts["GPU_FLEET_EXPORTER_MODE"]) == ({}, "nvidia_gpu_exporter")
    assert (
        "gpu-fleet installs none beside what is here: containerd (process containerd)" in first.facts["GPU_FLEET_EXPORTER_REASON"]
    )
    assert state(node.host) == before
    assert node.remove().errors == {} and state(node.host) == before


@pytest.mark.parametrize("config", ["yes", "no"])
def test_a_package_that_would_touch_what_exists_is_refused_before_anything_is_unpacked(
    site: Site, repository: Repository, config: str
) -> None:
    """Whatever the choice of the exporter has missed."""
    node = prepare(site.hosts["node"], repository)
    kubespray(node.host)
    if config == "no":
        node.host.ssh("rm /etc/containerd/config.toml; systemctl restart containerd")
    node.only = (Part(name="tools", packages={"debian": ("docker.io",)}),)
    before = state(node.host)
    refused = node.apply()
    assert "package docker.io was not installed, and nothing was changed: " in refused.errors["tools"]
    assert "which exists on this host" in refused.errors["tools"]
    assert state(node.host) == before and node.host.ssh("dpkg --audit").stdout == ""
    node.host.ssh("apt-get install --yes tini && dpkg --purge tini")
    assert node.remove().errors == {} and state(node.host) == before


def test_what_somebody_set_up_over_packages_of_ours_stays_on_removal(site: Site, repository: Repository) -> None:
    node = prepare(site.hosts["node"], repository)
    node.host.ssh(
        "systemctl disable --now kubelet containerd; rm -rf /etc/containerd /var/lib/containerd; "
        "cd /usr/local/bin && rm containerd* ctr runc; "
        "cd /etc/systemd/system && rm containerd.service kubelet.service; systemctl daemon-reload"
    )
    node.only = (Part(name="tools", packages={"debian": ("docker.io",)}),)
    assert node.apply().errors == {}
    node.host.ssh("systemctl disable --now docker.socket docker")
    kubespray(node.host)
    before = state(node.host)
    removed = node.remove()
    assert [
        line
        for line in removed.changes["tools"]
        if "package docker.io: kept, because /etc/systemd/system/containerd.service" in line
    ]
    assert state(node.host) == before


def test_guests_behind_a_bridge_keep_their_network(site: Site, repository: Repository) -> None:
    node = prepare(site.hosts["bare"], repository)
    node.host.ssh("docker rm theirs; docker image rm theirs; dpkg --purge docker.io containerd; rm -rf /etc/docker", check=False)
    node.host.ssh("ip link add br0 type bridge && ip link add tap0 type veth peer name guest0 && ip link set tap0 master br0")
    before = state(node.host)
    reason = node.apply().facts["GPU_FLEET_EXPORTER_REASON"]
    assert reason.endswith("a network bridge (br0 with tap0)")
    assert state(node.host) == before
    node.remove()
    assert state(node.host) == before


def test_a_host_with_podman_gets_no_docker(site: Site, repository: Repository) -> None:
    node = prepare(site.hosts["podman"], repository)
    before = state(node.host)
    node.settings["GPU_FLEET_DCGM_RUNTIME"] = "docker"
    first = node.apply()
    assert (first.errors, first.facts["GPU_FLEET_INSTALL_RUNTIME"]) == ({}, "none")
    assert "Podman (" in first.facts["GPU_FLEET_EXPORTER_REASON"]
    assert state(node.host) == before
    node.remove()
    assert state(node.host) == before
