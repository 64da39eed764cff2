"""A bare host of the RHEL family: Podman of its distribution and NVIDIA's Container Toolkit by real dnf, dcgm-exporter on them,
and all of it away again. The toolkit is the lab's stand-in, in a repository signed as NVIDIA's is; there is no SELinux."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_fleet.host.artifacts import image_archives, image_reference
from gpu_fleet.host.part import ROOTFS, Part
from gpu_fleet.host.parts.container_runtime import ContainerRuntime
from gpu_fleet.host.parts.dcgm_exporter import DcgmExporter
from gpu_fleet.toolchain.versions import Repository
from lab.hosts import VARIANTS, Host, Site
from lab.hosts.packages import Repository as LabRepository
from lab.hosts.packages.rpms import DISTRIBUTION, DISTRIBUTION_KEY, NVIDIA, publish_rpms
from tests.hosts.placed import ARTIFACTS, CONVERGE, PlacedHost, Run
from tests.hosts.served import serving
from tests.hosts.stack import left_as_found

PULL_SERVICE = "etc/systemd/system/gpu-fleet-pull.service"
_DISTRIBUTION = """\
[appstream]
name=Rocky Linux 9 - AppStream
baseurl={url}
gpgcheck=1
gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-lab
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the repositories."""
    return publish_rpms(tmp_path_factory.mktemp("rpms") / "served").directory


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site.up({"rhel": VARIANTS["rhel"]}) as site:
        yield site


@pytest.fixture(scope="module")
def url(site: Site, served: Path) -> Iterator[str]:
    with serving(site, served) as url:
        yield url


@pytest.fixture(scope="module")
def host(site: Site, served: Path, url: str) -> Host:
    """As its distribution's image leaves it: dnf knows the mirror and where the key is, and nothing was ever installed."""
    host = site.hosts["rhel"]
    host.copy(served / DISTRIBUTION_KEY, "/etc/pki/rpm-gpg/RPM-GPG-KEY-lab")
    host.ssh("cat >/etc/yum.repos.d/rocky.repo", stdin=_DISTRIBUTION.format(url=f"{url}/{DISTRIBUTION}"))
    return host


@pytest.fixture(scope="module")
def toolkit(served: Path, url: str) -> Repository:
    return Repository(url=url, key_sha256=LabRepository(served).key_sha256)


class _Exporter(PlacedHost):
    """Of the parts only the probes and those named here, which are other ones than elsewhere; of the artifacts the image."""

    named = (
        "launch",
        "nvidia-repository-rhel",
        "container-toolkit",
        "container-runtime-podman",
        "container-gpus",
        "dcgm-counters",
        "dcgm-container",
        "dcgm-exporter-podman",
    )

    def parts(self) -> list[Part]:
        return [part for part in super().parts() if part.probe or part.name in self.named]

    def bring_artifacts(self) -> None:
        artifacts = self.host.inside / ARTIFACTS.lstrip("/")
        artifacts.mkdir(exist_ok=True)
        for source in image_archives("controller", directory=self.artifacts).values():
            shutil.copy(self.artifacts / source.sha256, artifacts)


class _UpToTheToolkit(_Exporter):
    named = ("launch", "nvidia-repository-rhel", "container-toolkit")


@pytest.fixture(scope="module")
def placed(host: Host, toolkit: Repository, dcgm_artifacts: Path) -> PlacedHost:
    archives = image_archives("controller", directory=dcgm_artifacts)
    return _Exporter(
        host,
        dcgm_artifacts,
        settings={"GPU_FLEET_EXPORTER": "auto", "GPU_FLEET_GPUS": "8"},
        options={
            "dcgm": DcgmExporter(image=image_reference(None, archives), archives=archives),
            "containers": ContainerRuntime(toolkit=toolkit, may_install=True),
        },
    )


@pytest.fixture
def asking(placed: PlacedHost) -> Iterator[Callable[..., Run]]:
    """An apply up to the toolkit, from a repository and with settings of its own; the host is left bare."""

    def apply(toolkit: Repository, **settings: str) -> Run:
        options = {**placed.options, "containers": ContainerRuntime(toolkit=toolkit, may_install=True)}
        return _UpToTheToolkit(placed.host, placed.artifacts, {**placed.settings, **settings}, options).apply()

    yield apply
    placed.leave()
    _forget_dnf(placed.host)


def _forget_dnf(host: Host) -> None:
    """What dnf keeps for itself; the agent that checked signatures for it ends with its directory."""
    host.ssh("rm -rf /var/cache/dnf/* /var/log/dnf* /var/log/hawkey*; while pgrep gpg-agent >/dev/null; do sleep 0.1; done")


def test_a_mirror_that_does_not_answer_is_named(asking: Callable[..., Run], site: Site) -> None:
    nobody = Repository(url=f"http://{site.network.gateway}:9", key_sha256="0" * 64)
    refused = asking(nobody, GPU_FLEET_EXPORTER="dcgm-exporter")
    [error] = [event["error"] for event in refused.events if "error" in event]
    assert (refused.code, error["code"]) == (5, "download")
    assert f"Curl error (7): Couldn't connect to server for {nobody.url}/stable/rpm/x86_64/repodata/" in error["message"]


def test_a_key_that_is_not_the_pinned_one_is_not_trusted(asking: Callable[..., Run], host: Host, url: str) -> None:
    errors = asking(Repository(url=url, key_sha256="0" * 64)).errors
    assert "gpgkey has sha256" in errors["nvidia-repository-rhel"]
    assert "gpu-fleet-nvidia" not in host.ssh("ls /etc/pki/rpm-gpg /etc/yum.repos.d").stdout


def test_packages_listed_by_another_key_are_refused_and_the_host_s_own_dnf_works_on(
    asking: Callable[..., Run], host: Host, served: Path, toolkit: Repository
) -> None:
    signature, key = served / NVIDIA / "repodata/repomd.xml.asc", served / "gpgkey"
    good = {file: file.read_bytes() for file in (signature, key)}
    LabRepository(served).sign(signature.with_suffix(""), "--armor", "--detach-sign", to=signature.name)
    key.write_bytes(good[key])
    try:
        [(part, message)] = asking(toolkit).errors.items()
        assert part == "container-toolkit"
        assert message.startswith(
            "cannot install package nvidia-container-toolkit: Failed to download metadata for repo 'gpu-fleet-nvidia': "
            "repomd.xml GPG signature verification error: Bad GPG signature"
        )
        assert "podman" in host.ssh("dnf --assumeno install podman", check=False).stdout
    finally:
        signature.write_bytes(good[signature])


def test_podman_and_the_toolkit_come_by_dnf_and_all_goes_again(placed: PlacedHost, host: Host) -> None:
    with left_as_found(host):
        first = placed.apply()
        try:
            assert first.code == 0, first.events
            assert first.facts["GPU_FLEET_EXPORTER_REASON"] == "bare metal with Podman, installed by gpu-fleet"
            metrics = host.ssh("curl --silent http://127.0.0.1:9835/metrics").stdout
            assert metrics.count("\nDCGM_FI_DEV_GPU_UTIL{") == 8
            _is_confined(host)
            repository = host.ssh("cat /etc/yum.repos.d/gpu-fleet-nvidia.repo").stdout
            assert "repo_gpgcheck=1\n" in repository and "skip_if_unavailable=1\n" in repository

            installed = host.ssh("rpm -qa | sort").stdout
            again = placed.apply()
            assert (again.code, again.changes) == (0, {})
            assert host.ssh("rpm -qa | sort").stdout == installed
            assert placed.check().drift == []
            _repaired_by_the_confined_service_of_pull(host)
            assert placed.check().drift == []
        finally:
            removed = placed.remove()
            placed.leave()
        assert removed.code == 0, removed.events
        gone = removed.changes["container-runtime-podman"]
        assert "package podman: removed" in gone and "package conmon: removed" in gone, "with what it brought along"
        assert host.ssh("rpm -qa --qf '%{NAME}\n' | sort").stdout.split() == ["gpg-pubkey", "rocky-release"], (
            "the distribution's key, which dnf imported, is no package of ours"
        )
        host.ssh("rm -r /etc/cni")  # Podman's own
        _forget_dnf(host)


def _repaired_by_the_confined_service_of_pull(host: Host) -> None:
    """What the timer of a host that provisions itself would do, with all the limits of its service."""
    host.ssh("systemctl stop gpu-fleet-dcgm-exporter-podman")
    # Podman's own rpm stops its services before it goes.
    host.ssh("systemctl stop podman.socket podman && rpm --erase podman nvidia-container-toolkit")
    unit = re.sub(
        "^ExecStart=.*", f"ExecStart=/bin/{CONVERGE} apply --prefix ''", (ROOTFS / PULL_SERVICE).read_text(), flags=re.MULTILINE
    )
    host.ssh("cat >/run/systemd/system/repair.service && systemctl daemon-reload", stdin=unit)
    repaired = host.ssh("systemctl start repair", check=False, timeout_s=300)
    assert repaired.returncode == 0, host.ssh("journalctl --unit repair --output cat").stdout
    host.ssh("rpm --query podman nvidia-container-toolkit; rm /run/systemd/system/repair.service; systemctl daemon-reload")


def _is_confined(host: Host) -> None:
    [config] = [each["HostConfig"] for each in json.loads(host.ssh("podman inspect gpu-fleet-dcgm-exporter").stdout)]
    assert config["Privileged"] is False and config["CapAdd"] == []
