"""dcgm-exporter's image from a registry: real Docker pulls it by its digest from the lab's stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_fleet.host.parts.dcgm_exporter import DcgmExporter
from lab.gpu.dcgm.image import write_archive
from lab.hosts import Host, Site
from lab.hosts.image import debian_root
from lab.hosts.registry import Registry
from tests.hosts.outside import make_certificate
from tests.hosts.placed import PlacedHost, Run
from tests.hosts.stack import left_as_found

PARTS = ("launch", "dcgm-counters", "dcgm-container", "dcgm-exporter")
ABSENT = f"sha256:{'0' * 64}"


@dataclass
class Pulling:
    """A host and the registry that its Docker trusts. `digest`: of the image there, `name`: as the host reaches it."""

    placed: PlacedHost
    registry: Registry
    name: str
    digest: str

    def apply(self, digest: str) -> Run:
        self.placed.options["dcgm"] = DcgmExporter(image=f"{self.name}@{digest}")
        return self.placed.apply([part for part in self.placed.parts() if part.probe or part.name in PARTS])


@pytest.fixture
def pulling(site: Site, docker: Host, artifacts: Path, tmp_path: Path) -> Iterator[Pulling]:
    registry = Registry("nvidia/k8s/dcgm-exporter")
    write_archive(tmp_path / "image.tar", debian_root=debian_root(), reference="made:here")
    digest = registry.add(tmp_path / "image.tar")
    key, certificate = make_certificate(site.network.gateway, tmp_path)
    placed = PlacedHost(docker, artifacts, settings={"GPU_FLEET_EXPORTER": "auto", "GPU_FLEET_GPUS": "8"})
    with left_as_found(docker), registry.serving(certificate=certificate, key=key) as port:
        where = site.relay(port)
        docker.ssh(f"mkdir --parents /etc/docker/certs.d/{where}")
        docker.copy(certificate, f"/etc/docker/certs.d/{where}/ca.crt")
        try:
            yield Pulling(placed, registry, f"{where}/{registry.name}", digest)
        finally:
            placed.leave()
            docker.ssh("rm -r /etc/docker/certs.d && rmdir --ignore-fail-on-non-empty /etc/docker")
    assert docker.ssh("docker image ls --all --quiet").stdout == ""


def test_an_image_is_pulled_by_its_digest_and_a_failed_pull_is_reported_in_the_engine_s_words(
    pulling: Pulling, docker: Host
) -> None:
    code, message = _why(pulling.apply(ABSENT))
    why = f"the image {pulling.name}@{ABSENT} is not available: Error response from daemon: manifest unknown"
    assert (code, message) == ("download", f"{why}; what was placed for it was removed")

    assert pulling.apply(pulling.digest).errors == {}
    images = docker.ssh("docker image ls --all --digests --format '{{.Repository}}:{{.Tag}} {{.Digest}}'").stdout
    assert images == f"gpu-fleet/dcgm-exporter:{pulling.digest.removeprefix('sha256:')[:12]} <none>\n", (
        "none under somebody else's name"
    )
    assert _gpus(docker) == 8
    assert pulling.apply(pulling.digest).changes == {}

    pulling.registry.content[ABSENT] = pulling.registry.content[pulling.digest]
    code, message = _why(pulling.apply(ABSENT))
    assert code == "download" and f"verification failed for digest {ABSENT}" in message
    assert message.endswith("; the previous version runs again") and _gpus(docker) == 8


def _why(run: Run) -> tuple[str, str]:
    [error] = [event["error"] for event in run.events if "error" in event]
    return error["code"], error["message"]


def _gpus(host: Host) -> int:
    return host.ssh("curl --silent --retry 20 --retry-delay 1 --retry-connrefused http://127.0.0.1:9835/metrics").stdout.count(
        "\nDCGM_FI_DEV_GPU_UTIL{"
    )
