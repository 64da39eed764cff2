"""No container loses its GPUs because of us: what makes systemd read its unit files again takes the devices from containers that
have them from NVIDIA's hook. On a real Docker with the cgroups of version 2, on a systemd of 2020 with those of version 1, and on
the newest."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpu_fleet.host.bundle import ROOTFS, Bundle
from gpu_fleet.host.part import File, Part, Unit
from lab.hosts import VARIANTS, Host, Site
from tests.hosts.gpus_of_containers import KEPT, LOST, Container, DockerContainer, reloads, searches
from tests.hosts.placed import PlacedHost

JOB = "/opt/gpu-fleet/libexec/job"
KINDS = ("docker", "ubuntu-20.04", "ubuntu-26.04")


class Node(PlacedHost):
    """Two services and a timer. `rest_s`: what a change of a unit file changes."""

    rootfs: Path
    rest_s = 1
    job = b"#!/bin/sh\nexec sleep infinity\n"

    def parts(self) -> list[Part]:
        units = self.rootfs / "etc/systemd/system"
        units.mkdir(parents=True, exist_ok=True)
        for name in ("job", "other"):
            rest_s = self.rest_s if name == "job" else 1
            text = f"[Service]\nExecStart={JOB}\nRestartSec={rest_s}\n[Install]\nWantedBy=multi-user.target\n"
            (units / f"gpu-fleet-{name}.service").write_text(text)
        supervised = self.rootfs / "etc/gpu-fleet/supervisor.d"
        supervised.mkdir(parents=True, exist_ok=True)
        for name in ("job", "other", "poll"):  # for hosts without systemd, which these are not
            (supervised / f"gpu-fleet-{name}.conf").write_text(f"[program:gpu-fleet-{name}]\n")
        (units / "gpu-fleet-poll.service").write_text("[Service]\nType=oneshot\nExecStart=/bin/true\n")
        (units / "gpu-fleet-poll.timer").write_text("[Timer]\nOnCalendar=hourly\n[Install]\nWantedBy=timers.target\n")
        return [
            Part(name="other", units=(Unit(name="gpu-fleet-other"),), files=(File(path=f"{JOB}.txt", content=self.job[2:]),)),
            Part(
                name="job",
                files=(File(path=JOB, content=self.job, mode=0o755),),
                units=(Unit(name="gpu-fleet-job", restart_on=(JOB,)), Unit(name="gpu-fleet-poll", timer=True)),
            ),
        ][::-1]

    def bundle(self, parts: Sequence[Part]) -> Bundle:
        return Bundle.of(parts, rootfs=self.rootfs)

    def bring_artifacts(self) -> None:
        pass

    def process(self, unit: str) -> str:
        return self.host.ssh(f"systemctl show --value -p MainPID {unit}").stdout.strip()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site.up({kind: VARIANTS[kind] for kind in KINDS}) as site:
        yield site


@pytest.fixture(params=KINDS)
def host(site: Site, request: pytest.FixtureRequest) -> Host:
    return site.hosts[request.param]


@pytest.fixture
def node(host: Host, tmp_path: Path) -> Iterator[Node]:
    node = Node(host, Path("/nonexistent"), secrets={})
    node.rootfs = tmp_path / "rootfs"
    shutil.copytree(ROOTFS, node.rootfs, ignore=lambda _, names: [name for name in names if name.startswith("gpu-fleet-")])
    yield node
    node.leave()
    host.ssh("systemctl daemon-reload")


@pytest.fixture
def container(host: Host) -> Iterator[Container]:
    """With GPUs from the hook."""
    container = DockerContainer.run(host, "training-7") if host.name == "docker" else Container(host)
    if host.name != "docker":
        container.start()
    assert container.gpus() == LOST
    container.open_gpus()
    assert container.gpus() == KEPT
    yield container
    container.end()


def test_a_container_keeps_its_gpus_through_all_that_we_do(node: Node, container: Container) -> None:
    name = f"{container.called} (training-7)" if isinstance(container, DockerContainer) else container.called
    before = reloads(node.host)
    assert node.apply().errors == {}
    assert (node.check().drift, node.apply().changes) == ([], {})
    running = node.process("gpu-fleet-job")
    assert (
        running != "0"
        and node.host.ssh("systemctl is-enabled gpu-fleet-job gpu-fleet-poll.timer").stdout.split() == ["enabled"] * 2
    )

    node.host.ssh("systemctl daemon-reload")  # of somebody else: from here on systemd knows our units as those of a boot
    container.open_gpus()
    before += 1
    node.rest_s, node.job = 5, node.job + b"# newer\n"
    assert f"would take the GPUs from {name}" in node.plan().changes["job"][-1]
    apply = node.apply()
    assert apply.errors.keys() == {"job"} and f"would take the GPUs from {name}: " in apply.errors["job"]
    assert "other" in apply.changes, "everything else of the host goes on"
    assert node.process("gpu-fleet-job") == running and "newer" not in node.host.ssh(f"cat {JOB}").stdout
    assert node.check().drift[-1] == "service gpu-fleet-job: has a unit file that systemd has not read"
    assert node.apply().errors == apply.errors
    assert (container.gpus(), reloads(node.host)) == (KEPT, before)

    newer, (node.rest_s, node.job) = (node.rest_s, node.job), (1, Node.job)
    assert node.apply().errors == {}, "a change that is taken back needs nothing to be read"
    assert node.check().drift == []
    node.rest_s, node.job = newer
    assert node.apply().errors == apply.errors
    assert (container.gpus(), reloads(node.host)) == (KEPT, before)
    running = node.process("gpu-fleet-job")

    node.host.ssh("systemctl daemon-reload")  # as the error says; what we kept from happening
    assert container.gpus() == LOST
    assert node.apply().errors == {}
    assert node.process("gpu-fleet-job") != running and "newer" in node.host.ssh(f"cat {JOB}").stdout
    assert node.host.ssh("systemctl show -p RestartUSec --value gpu-fleet-job").stdout.strip() == "5s"
    assert node.check().drift == []

    container.open_gpus()
    assert node.remove().errors == {}
    assert (container.gpus(), reloads(node.host)) == (KEPT, before + 1)
    assert node.host.ssh("ls /etc/systemd/system /etc/systemd/system/*.wants | grep gpu-fleet", check=False).stdout == ""


def test_packages_of_ours_wait_for_the_containers(node: Node, container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [Part(name=name, packages={"debian": (package,)}) for name, package in (("tools", "sl"), ("more", "cowsay"))]
    monkeypatch.setattr(Node, "parts", lambda self: parts)
    before, looked = reloads(node.host), searches(node.host)
    plan = node.plan().changes
    assert all(f"that would take the GPUs from {container.called}" in plan[name][-1] for name in ("tools", "more"))
    assert searches(node.host) == looked + 1, "one for all parts: it starts a unit and reads every process"
    refused = node.apply()
    assert "package sl is missing, and its installation makes systemd read its unit files again" in refused.errors["tools"]
    assert (container.gpus(), reloads(node.host)) == (KEPT, before)


def test_devices_that_systemd_knows_of_delay_nothing(site: Site, node: Node) -> None:
    if node.host.name == "docker":
        # runc before 1.2 names to systemd only devices that /dev/char has, as NVIDIA says.
        node.host.ssh("mknod /dev/nvidia0 c 195 0; ln -s ../nvidia0 /dev/char/195:0")
        container: Container = DockerContainer.run(node.host, "by-device", "--device /dev/nvidia0")
        assert container.gpus() == KEPT
    assert node.apply().errors == {}
    node.host.ssh("systemctl daemon-reload")
    before = reloads(node.host)
    node.rest_s = 5
    assert node.apply().errors == {}
    assert reloads(node.host) == before + 1, "one for the part whose unit file changed"
    assert node.host.ssh("systemctl show -p RestartUSec --value gpu-fleet-job").stdout.strip() == "5s"
    if node.host.name == "docker":
        assert container.gpus() == KEPT
        container.end()
        node.host.ssh("rm /dev/nvidia0 /dev/char/195:0")
