"""A site of throw-away hosts with a real Mimir and a real Loki that the hosts can push to.

A file of tests has one; a kind of host is booted in it when a test first needs it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from components.backend.backend import BackendArgs, services
from gpu_fleet.host.artifacts import INDEX
from gpu_fleet.host.parts import PROGRAMS
from gpu_fleet.host.parts.monitoring import GRAFANA, SERVERS
from gpu_fleet.provider.envelope import compress
from gpu_fleet.toolchain.versions import image
from lab.gpu.dcgm.image import write_archive
from lab.hosts import VARIANTS, Host, Site
from lab.hosts.host import PRESENT
from lab.hosts.image import debian_root
from lab.hosts.packages import build_stand_ins
from lab.ports import free_ports
from lab.standins import programs
from lab.standins.programs import gather
from tests import waiting
from tests.checkout import REPO
from tests.hosts.stack import Backend


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Each test leaves its hosts as they were: bare."""
    hosts = {kind: kind for kind in ("metal", "docker", "container", "amd", "broken", "rhel")} | {"metal-b": "metal"}
    with Site.up({name: VARIANTS[kind] for name, kind in hosts.items()}, boots_on_use=True) as site:
        yield site


@pytest.fixture(scope="module")
def docker(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Docker and the toolkit, as somebody has set them up before us."""
    host = site.hosts["docker"]
    [toolkit, *_] = build_stand_ins(tmp_path_factory.mktemp("packages"))
    host.copy(toolkit, "/tmp/toolkit.deb")
    host.ssh("dpkg --install /tmp/toolkit.deb && rm /tmp/toolkit.deb && systemctl restart docker")
    yield host
    host.ssh("dpkg --purge nvidia-container-toolkit && systemctl restart docker")


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A directory that the first process of pytest-xdist makes and all others take. Nobody changes it."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    directory, made = shared / name, shared / f"{name}.made"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(directory, ignore_errors=True)  # of a process that failed half-way: its error is not that of all others
            make(directory)
            made.touch()
    return directory


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of a monitoring server too, with what is sent of each file compressed beside it. Alloy and the servers are
    scripts that start those that every host of the lab has."""

    def make(directory: Path) -> None:
        gather(directory, (*PROGRAMS, *SERVERS, GRAFANA), present=PRESENT)
        compress_each(directory)

    return made_once(tmp_path_factory, "artifacts", make)


@pytest.fixture(scope="session")
def whole_artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With Alloy itself: half a gigabyte, as it is sent to a real host."""

    def make(directory: Path) -> None:
        gather(directory)
        compress_each(directory)

    return made_once(tmp_path_factory, "whole-artifacts", make)


def compress_each(directory: Path) -> None:
    for file in [path for path in directory.iterdir() if path.name != INDEX]:
        compress(file, file.with_name(f"{file.name}.gz"))


@pytest.fixture(scope="session")
def dcgm_artifacts(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fleet's artifacts and the image beside them."""

    def make(directory: Path) -> None:
        shutil.copytree(artifacts, directory, copy_function=os.link)
        archive, dcgm = directory / "image.tar", image("dcgm-exporter")
        write_archive(archive, debian_root=debian_root(), reference=f"{dcgm.repository}:{dcgm.tag}")
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        archive.rename(directory / digest)
        lines = (directory / "SHA256SUMS").read_text()
        (directory / "SHA256SUMS").unlink()  # it is the other directory's too
        (directory / "SHA256SUMS").write_text(f"{lines}{digest}  dcgm-exporter-{dcgm.tag}.linux-amd64\n")

    return made_once(tmp_path_factory, "artifacts-with-image", make)


@pytest.fixture(scope="module")
def backend(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    mimir, mimir_grpc, loki, loki_grpc = free_ports(4)
    args = BackendArgs(
        directory=str(tmp_path_factory.mktemp("backend")),
        mimir_port=mimir,
        mimir_grpc_port=mimir_grpc,
        loki_port=loki,
        loki_grpc_port=loki_grpc,
        receiver_port=0,
        grafana_port=0,
    )
    wanted = [service for service in services(args) if service.name in ("mimir", "loki")]

    def run(verb: str) -> None:
        for service in wanted:
            environment = {**os.environ, **programs.environment(), **service.variables(args.directory)}
            command = ["sh", "components/backend/service.sh", verb, service.name]
            subprocess.run(command, cwd=REPO, env=environment, check=True, stdin=subprocess.DEVNULL)

    try:
        run("start")
        yield Backend(
            mimir=f"http://127.0.0.1:{mimir}",
            loki=f"http://127.0.0.1:{loki}",
            metrics=f"http://{site.relay(mimir)}/api/v1/push",
            logs=f"http://{site.relay(loki)}/loki/api/v1/push",
        )
    finally:
        run("stop")


@pytest.fixture
def eventually() -> Callable[..., Any]:
    return waiting.eventually
