"""The container runtime for dcgm-exporter: who else uses what was installed is checked before it is removed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from host.part import ROOTFS
from host.parts.container_runtime import IN_USE, ContainerRuntime
from tests.host.parts.textfiles import tool

CONTAINER, IMAGE, VOLUME = "container ls --all --quiet", "image ls --quiet", "volume ls --quiet"
WITH_GPUS = '[{"HostConfig": {"DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]}]}}]\n'
WITHOUT = '[{"HostConfig": {"DeviceRequests": null}}]\n'


def asked(part: str, tools: Path, home: str = "/nonexistent") -> subprocess.CompletedProcess[str]:
    tool(tools, "getent", {"passwd": f"root:x:0:0::/root-of-nobody:/bin/sh\nada:x:1000:1000::{home}:/bin/sh\n"})
    for name in ("cut", "sort", "grep", "cat"):
        if not (tools / name).exists():
            (tools / name).symlink_to(f"/usr/bin/{name}")
    script = ROOTFS / IN_USE.lstrip("/")
    return subprocess.run(["/bin/sh", script, part], env={**os.environ, "PATH": str(tools)}, capture_output=True, text=True)


def test_every_part_that_installs_packages_checks_who_else_uses_them() -> None:
    installing = [part for part in ContainerRuntime().parts() if part.packages]
    assert {part.name for part in installing} == {"container-toolkit", "container-runtime-docker", "container-runtime-podman"}
    assert {part.keep_packages for part in installing} == {IN_USE}


@pytest.mark.parametrize(
    ("part", "engine", "answers", "said"),
    [
        ("container-runtime-docker", "docker", {}, ""),
        ("container-runtime-docker", "docker", {CONTAINER: "4f2\n"}, "it still holds containers"),
        ("container-runtime-docker", "docker", {IMAGE: "9ab\n"}, "it still holds images"),
        ("container-runtime-docker", "docker", {VOLUME: "data\n"}, "it still holds volumes"),
        ("container-runtime-docker", "podman", {CONTAINER: "4f2\n"}, ""),
        ("container-runtime-podman", "podman", {CONTAINER: "4f2\n"}, "it still holds containers"),
        ("container-toolkit", "docker", {}, ""),
        ("container-toolkit", "docker", {CONTAINER: "4f2\n", "container inspect 4f2": WITHOUT}, ""),
        (
            "container-toolkit",
            "docker",
            {CONTAINER: "4f2\n", "container inspect 4f2": WITH_GPUS},
            "existing containers use it for GPU access",
        ),
        (
            "container-toolkit",
            "podman",
            {CONTAINER: "4f2\n", "container inspect 4f2": '[{"CreateCommand": ["--device", "nvidia.com/gpu=all"]}]\n'},
            "existing containers use it for GPU access",
        ),
    ],
)
def test_what_others_use_stays(tmp_path: Path, part: str, engine: str, answers: dict[str, str], said: str) -> None:
    tool(tmp_path, engine, answers)
    done = asked(part, tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr


def test_users_without_root_keep_podman(tmp_path: Path) -> None:
    home = tmp_path / "home of ada"
    (home / ".local/share/containers/storage").mkdir(parents=True)
    tool(tmp_path / "bin", "podman", {})
    done = asked("container-runtime-podman", tmp_path / "bin", str(home))
    assert done.stdout == f"it still holds containers, below {home}\n"


@pytest.mark.parametrize("part", ["container-runtime-docker", "container-toolkit"])
def test_an_engine_that_does_not_answer_is_not_removed(tmp_path: Path, part: str) -> None:
    tool(tmp_path, "docker", {}, code=1)
    done = asked(part, tmp_path)
    assert done.returncode != 0 and done.stdout == ""


def test_an_engine_that_was_already_removed_is_not_in_use(tmp_path: Path) -> None:
    assert asked("container-runtime-docker", tmp_path).returncode == 0
