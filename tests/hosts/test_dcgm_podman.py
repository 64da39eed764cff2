"""dcgm-exporter under Debian's Podman, which the host has with NVIDIA's toolkit: another exporter in its place, and
everything away again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_fleet.host.artifacts import image_archives, image_reference
from gpu_fleet.host.parts.dcgm_exporter import DcgmExporter
from lab.dev import query
from lab.hosts import VARIANTS, Host, Site
from lab.hosts.packages import build_stand_ins
from lab.showcase.servers import Servers
from tests.hosts.placed import PlacedHost
from tests.hosts.stack import left_as_found

LEFT = "podman ps --all --quiet; podman image ls --all --quiet; ls /etc/cdi"


@pytest.fixture
def site() -> Iterator[Site]:
    with Site.up({"podman": VARIANTS["podman"]}) as site:
        yield site


@pytest.fixture
def loki(tmp_path: Path) -> Iterator[str]:
    servers = Servers(tmp_path, ("loki",))
    try:
        servers.wait()
        yield servers.loki
    finally:
        servers.stop()


@pytest.fixture
def host(site: Site, tmp_path: Path) -> Host:
    host = site.hosts["podman"]
    [toolkit, *_] = build_stand_ins(tmp_path)
    host.copy(toolkit, "/tmp/toolkit.deb")
    host.ssh("dpkg --install /tmp/toolkit.deb && rm /tmp/toolkit.deb")
    return host


def test_podman_runs_it_by_cdi_its_containers_logs_reach_loki_and_nothing_of_it_is_kept(
    site: Site, host: Host, loki: str, dcgm_artifacts: Path, eventually: Callable[..., None]
) -> None:
    archives = image_archives("controller", directory=dcgm_artifacts)
    dcgm = DcgmExporter(image=image_reference(None, archives), archives=archives)
    settings = {"GPU_FLEET_EXPORTER": "auto", "GPU_FLEET_LOGS_URL": f"http://{site.relay(port_of(loki))}/loki/api/v1/push"}
    placed = PlacedHost(host, dcgm_artifacts, settings=settings, options={"dcgm": dcgm, "docker_logs": True})
    with left_as_found(host):
        try:
            first = placed.apply()
            assert first.errors == {}
            assert first.facts["GPU_FLEET_EXPORTER_REASON"] == "bare metal with Podman"
            assert _gpus(host) == 8
            _is_confined(host)
            again = placed.apply()
            assert (again.errors, again.changes) == ({}, {})
            assert placed.check().drift == []

            image = host.ssh("podman container inspect --format '{{.ImageName}}' gpu-fleet-dcgm-exporter").stdout.strip()
            job = "podman run --detach --interactive --network none --name job --entrypoint sh"  # the image has no sleep
            host.ssh(f"{job} {image} -c 'echo step 1 loss 0.25; echo a warning >&2; read end'")
            labels = 'job="podman", datacenter="lab-west", cluster="training", instance="podman"'
            line = f'{{{labels}, exporter_mode="dcgm-exporter"}} | container="job" | uid="0"'
            found = lambda: sorted(query.log_lines(loki, line))  # noqa: E731
            eventually("both lines in Loki", lambda: found() == ["a warning", "step 1 loss 0.25"], shown=found)
            host.ssh("podman rm --force --time 0 job")

            host.ssh("podman kill gpu-fleet-dcgm-exporter")
            eventually("another container", lambda: _gpus(host) == 8)

            maintenance = "/opt/gpu-fleet/bin/gpu-fleet-maintenance"
            host.ssh(f"{maintenance} start --free-gpus reset")
            assert host.ssh("podman ps --quiet").stdout == "", "the driver refuses a reset while DCGM has the GPUs open"
            host.ssh(f"{maintenance} stop")
            eventually("the exporter is back", lambda: _gpus(host) == 8)

            placed.settings["GPU_FLEET_EXPORTER"] = "nvidia_gpu_exporter"
            assert placed.apply().errors == {}
            assert host.ssh(LEFT, check=False).stdout == ""
            assert "nvidia_smi_" in host.ssh("curl --silent http://127.0.0.1:9835/metrics").stdout
        finally:
            placed.leave()


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def _gpus(host: Host) -> int:
    return host.ssh("curl --silent http://127.0.0.1:9835/metrics", check=False).stdout.count("\nDCGM_FI_DEV_GPU_UTIL{")


def _is_confined(host: Host) -> None:
    container = json.loads(host.ssh("podman container inspect gpu-fleet-dcgm-exporter").stdout)[0]
    assert not container["EffectiveCaps"] and not container["HostConfig"]["Privileged"]
    assert "no-new-privileges" in container["HostConfig"]["SecurityOpt"]
