"""A bare host gets Docker and NVIDIA's Container Toolkit by real apt, from a signed repository in which the toolkit is the lab's
stand-in and Docker is Debian's own, and dcgm-exporter on them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.dev import query
from lab.hosts import Host, Site
from lab.hosts.image import package_files
from lab.hosts.packages import Repository, build_stand_ins
from tests.hosts.served import serving
from tests.hosts.stack import Backend, Stack, config_of


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    repository = Repository(tmp_path_factory.mktemp("packages"))
    build_stand_ins(repository.packages)
    repository.publish()
    distribution = Repository(repository.directory / "debian", packages_below=".")
    distribution.directory.mkdir()
    for package in package_files():
        shutil.copy(package, distribution.packages)
    distribution.publish()
    return repository


@pytest.fixture(scope="module")
def served(site: Site, repository: Repository) -> Iterator[str]:
    """The repository's URL for the hosts."""
    with serving(site, repository.directory) as url:
        yield url


@pytest.fixture(scope="module")
def host(site: Site, served: str) -> Iterator[Host]:
    """Its distribution's mirror is the lab's."""
    host = site.hosts["metal-b"]
    before = host.ssh("cat /etc/apt/sources.list").stdout
    host.ssh(f"echo 'deb [trusted=yes] {served}/debian /' >/etc/apt/sources.list")
    yield host
    host.ssh("cat >/etc/apt/sources.list", stdin=before)


@pytest.fixture(scope="module")
def fleet(
    site: Site,
    host: Host,
    served: str,
    repository: Repository,
    backend: Backend,
    dcgm_artifacts: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    """Up; at its end every package that was installed is gone. What apt keeps for itself stays: lists and logs."""
    config = config_of(site, {host.name: site.stack_hosts()[host.name]}, dcgm_artifacts, backend)
    config["dcgm"] = {"install": True, "toolkitRepository": {"url": served, "keySha256": repository.key_sha256}}
    stack = Stack(tmp_path_factory.mktemp("install"), "install", config).create()
    before = _installed(host)
    try:
        stack.up()
        yield stack
    finally:
        stack.clear()
    assert _installed(host) == before


def _installed(host: Host) -> str:
    """Packages with their state, and files of ours and of the toolkit."""
    return host.ssh(
        "dpkg-query --show --showformat '${Package} ${Status}\\n'; find /opt /etc /usr /var/lib -name '*gpu-fleet*'"
    ).stdout


def test_what_is_missing_is_installed_and_the_gpus_reach_mimir(
    fleet: Stack, host: Host, backend: Backend, eventually: Callable
) -> None:
    facts = dict(line.split("=", 1) for line in host.ssh("cat /var/lib/gpu-fleet/facts").stdout.splitlines())
    assert facts["GPU_FLEET_EXPORTER_REASON"] == "bare metal with Docker, installed by gpu-fleet"
    series = f'DCGM_FI_DEV_GPU_UTIL{{instance="{host.name}",exporter_mode="dcgm-exporter"}}'
    eventually("8 GPUs in Mimir", lambda: len(query.metrics(backend.mimir, series)) == 8)


def test_a_second_run_installs_nothing_and_sees_no_drift(fleet: Stack, host: Host) -> None:
    fleet.pulumi("refresh", "--yes", "--skip-preview", "--expect-no-changes")
    before = host.ssh("dpkg-query --show").stdout
    fleet.config["logs"]["docker"] = True  # so that the host is applied again
    fleet.write()
    fleet.up()
    assert host.ssh("dpkg-query --show").stdout == before


def test_a_repository_signed_by_another_key_is_not_trusted(fleet: Stack, host: Host) -> None:
    source = host.ssh("cat /etc/apt/sources.list.d/gpu-fleet-nvidia.list").stdout
    assert "[signed-by=/etc/apt/keyrings/gpu-fleet-nvidia.asc]" in source and "trusted" not in source


def test_docker_stays_on_a_removed_host_while_others_keep_containers_in_it_and_goes_without_them(
    fleet: Stack, host: Host
) -> None:
    """Removed three times, from a copy of what was placed: with a container, while nobody can be asked, and without."""
    host.ssh("tar --create --directory /usr/bin true | docker import - theirs && docker create --name theirs theirs /true")
    host.ssh("cp --archive /var/lib/gpu-fleet /root/placed")
    remove = "cp --archive /root/placed /var/lib/gpu-fleet && sh /var/lib/gpu-fleet/current/converge remove --prefix ''"

    fleet.destroy()
    assert host.ssh("docker container ls --all --format '{{.Names}}'").stdout == "theirs\n"
    packages = host.ssh("dpkg-query --show --showformat '${Package}\\n'").stdout.splitlines()
    assert "docker.io" in packages and "nvidia-container-toolkit" not in packages, "it has no GPUs"

    host.ssh("systemctl stop docker.socket docker")
    assert "package docker.io: kept, because it is unknown what else uses it" in host.ssh(remove).stdout
    host.ssh("systemctl start docker && docker rm theirs && docker image rm theirs")
    assert "package docker.io: removed" in host.ssh(f"{remove}; rm -r /root/placed").stdout
