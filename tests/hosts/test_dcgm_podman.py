"""dcgm-exporter under Debian's Podman, which the host has with NVIDIA's toolkit: another exporter in its place, and
everything away again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from host.artifacts import image_archives, image_reference
from host.parts.dcgm_exporter import DcgmExporter
from lab.hosts import VARIANTS, Host, Site
from lab.hosts.packages import build_stand_ins
from tests.hosts.placed import PlacedHost
from tests.hosts.stack import left_as_found

PARTS = ("launch", "dcgm-", "container-", "nvidia-gpu-exporter")
LEFT = "podman ps --all --quiet; podman image ls --all --quiet; ls /etc/cdi"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Site.up({"podman": VARIANTS["podman"]}) as site:
        host = site.hosts["podman"]
        [toolkit, *_] = build_stand_ins(tmp_path)
        host.copy(toolkit, "/tmp/toolkit.deb")
        host.ssh("dpkg --install /tmp/toolkit.deb && rm /tmp/toolkit.deb")
        yield host


def test_podman_runs_it_by_cdi_and_keeps_nothing_of_it(host: Host, dcgm_artifacts: Path, eventually: Callable[..., None]) -> None:
    archives = image_archives("controller", directory=dcgm_artifacts)
    dcgm = DcgmExporter(image=image_reference(None, archives), archives=archives)
    placed = PlacedHost(host, dcgm_artifacts, settings={"GPU_FLEET_EXPORTER": "auto"}, options={"dcgm": dcgm})
    parts = [part for part in placed.parts() if part.probe or part.name.startswith(PARTS)]
    with left_as_found(host):
        try:
            first = placed.apply(parts)
            assert first.errors == {}
            assert first.facts["GPU_FLEET_EXPORTER_REASON"] == "bare metal with Podman"
            assert _gpus(host) == 8
            _is_confined(host)
            again = placed.apply(parts)
            assert (again.errors, again.changes) == ({}, {})
            assert placed.check().drift == []

            host.ssh("podman kill gpu-fleet-dcgm-exporter")
            eventually("another container", lambda: _gpus(host) == 8)

            placed.settings["GPU_FLEET_EXPORTER"] = "nvidia_gpu_exporter"
            assert placed.apply(parts).errors == {}
            assert host.ssh(LEFT, check=False).stdout == ""
            assert "nvidia_smi_" in host.ssh("curl --silent http://127.0.0.1:9835/metrics").stdout
        finally:
            placed.leave()


def _gpus(host: Host) -> int:
    return host.ssh("curl --silent http://127.0.0.1:9835/metrics", check=False).stdout.count("\nDCGM_FI_DEV_GPU_UTIL{")


def _is_confined(host: Host) -> None:
    container = json.loads(host.ssh("podman container inspect gpu-fleet-dcgm-exporter").stdout)[0]
    assert not container["EffectiveCaps"] and not container["HostConfig"]["Privileged"]
    assert "no-new-privileges" in container["HostConfig"]["SecurityOpt"]
