"""dcgm-exporter from DCGM's host packages, by real apt from a signed repository that the host has already. They are the lab's
stand-ins, with the files, units and scripts of the real ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_fleet.host.parts.dcgm_exporter import DcgmExporter
from lab.hosts import Host, Site
from lab.hosts.packages import Repository, build_stand_ins
from tests.hosts.placed import PlacedHost
from tests.hosts.served import serving

PACKAGES = ("datacenter-gpu-manager-4-core", "datacenter-gpu-manager-4-proprietary", "datacenter-gpu-manager-exporter")
THEIRS = "/etc/apt/sources.list.d/nvidia.list"


@pytest.fixture
def placed(site: Site, artifacts: Path, tmp_path: Path) -> Iterator[PlacedHost]:
    """A host with the repository that its driver came from."""
    repository = Repository(tmp_path / "packages")
    build_stand_ins(repository.packages)
    repository.publish()
    placed = PlacedHost(
        site.hosts["metal-b"],
        artifacts,
        settings={"GPU_FLEET_EXPORTER": "auto", "GPU_FLEET_GPUS": "8"},
        options={"dcgm": DcgmExporter(image=""), "dcgm_source": "packages"},
    )
    host = placed.host
    with serving(site, repository.directory) as url:
        host.copy(repository.directory / "gpgkey", "/etc/apt/keyrings/nvidia.asc")
        host.ssh(f"echo 'deb [signed-by=/etc/apt/keyrings/nvidia.asc] {url}/stable/deb/amd64 /' >{THEIRS}")
        before = host.ssh("cat /etc/apt/sources.list && : >/etc/apt/sources.list").stdout  # the lab's hosts reach no mirror
        try:
            yield placed
        finally:
            placed.leave()
            host.ssh(f"cat >/etc/apt/sources.list && rm {THEIRS} /etc/apt/keyrings/nvidia.asc && apt-get update", stdin=before)
            host.ssh("userdel nvidia-dcgm; rm -r /var/log/nvidia-dcgm", check=False)  # their package leaves them


def test_the_packages_come_serve_the_gpus_and_go(placed: PlacedHost) -> None:
    host = placed.host
    before = _there(host)
    _dcgm_3_is_not_taken_away_for_them(placed)
    first = placed.apply()
    assert first.errors == {}
    assert first.facts["GPU_FLEET_EXPORTER_MODE"] == "dcgm-exporter"
    assert first.facts["GPU_FLEET_EXPORTER_REASON"] == "bare metal with DCGM's packages"
    assert host.ssh("curl --silent http://127.0.0.1:9835/metrics").stdout.count("\nDCGM_FI_DEV_GPU_UTIL{") == 8
    assert host.ssh("systemctl show --property=User gpu-fleet-dcgm-exporter-host").stdout == "User=gpu-fleet-dcgm-exporter-host\n"
    assert placed.apply().changes == {} and placed.check().drift == []
    _maintenance_frees_the_gpus(placed)

    removed = placed.remove()
    assert removed.code == 0, removed.events
    assert {f"package {name}: removed" for name in PACKAGES} <= set(removed.changes["dcgm-exporter-host"])
    assert _there(host) == before
    assert host.ssh("pgrep --full nv-hostengine", check=False).stdout == "", "it does not run on without its files"


def _maintenance_frees_the_gpus(placed: PlacedHost) -> None:
    """It is the host engine that has them open. What the site has made depend on that comes back with it."""
    host, maintenance = placed.host, "/opt/gpu-fleet/bin/gpu-fleet-maintenance"
    theirs = "[Unit]\nRequires=nvidia-dcgm.service\n[Service]\nExecStart=/bin/sleep infinity\n"
    host.ssh("cat >/run/systemd/system/site-health.service; systemctl start site-health", stdin=theirs)
    host.ssh(f"{maintenance} start --free-gpus reset")
    assert host.ssh("pgrep --full nv-hostengine", check=False).stdout == ""
    host.ssh(f"{maintenance} stop")
    units = "gpu-fleet-dcgm-exporter-host nvidia-dcgm site-health"
    assert host.ssh(f"systemctl is-active {units}", check=False).stdout.split() == ["active"] * 3
    host.ssh("systemctl stop site-health; rm /run/systemd/system/site-health.service")
    assert placed.check().drift == []


def _dcgm_3_is_not_taken_away_for_them(placed: PlacedHost) -> None:
    """DCGM 4 conflicts with it, so that apt alone would remove it."""
    placed.host.ssh("apt-get update && apt-get install --yes datacenter-gpu-manager")
    chosen = placed.apply([part for part in placed.parts() if part.probe or part.name == "launch"])
    assert chosen.facts["GPU_FLEET_EXPORTER_MODE"] == "nvidia_gpu_exporter"
    assert "Packages need to be removed but remove is disabled" in chosen.facts["GPU_FLEET_EXPORTER_REASON"]
    placed.host.ssh("dpkg --purge datacenter-gpu-manager")


def _there(host: Host) -> str:
    """Packages with their state, and files of ours and of DCGM."""
    packages = "dpkg-query --show --showformat '${Package} ${Status}\\n'"
    files = "find /etc /opt /run /usr/bin /usr/lib /var/lib/gpu-fleet -name '*gpu-fleet*' -o -name '*dcgm*'"
    return host.ssh(f"{packages}; {files} 2>/dev/null | sort").stdout
