"""The container runtime for dcgm-exporter: who else uses what was installed is checked before it is removed."""

from __future__ import annotations

import subprocess
import tracemalloc
from pathlib import Path

import pytest

from gpu_fleet.host.part import ROOTFS
from gpu_fleet.host.parts.container_runtime import IN_USE, START, ContainerRuntime
from gpu_fleet.on_host.probe import Outcome, outcome
from tests.host.parts.textfiles import tool

CONTAINER, IMAGE, VOLUME = "container ls --all --quiet", "image ls --quiet", "volume ls --quiet"
WITH_GPUS = '[{"HostConfig": {"DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]}]}}]\n'
BOUND = "--property=RequiredBy --property=WantedBy --property=BoundBy --value"
BOUND_TO_DOCKER = "gpu-fleet-dcgm-exporter.service registry.service\nmulti-user.target\n\n\ndocker.service multi-user.target\n"
WITHOUT = '[{"HostConfig": {"DeviceRequests": null}}]\n'


def asked(part: str, root: Path, passwd: str = "") -> Outcome:
    """On a host whose files are below `root`, and its commands in tools."""
    tools = root / "tools"
    if not (tools / "getent").exists():
        tool(tools, "getent", {"group docker": "docker:x:999:\n"})
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n" + passwd)
    if not (tools / "cat").exists():
        (tools / "cat").symlink_to("/usr/bin/cat")
    return outcome("in_use", [part], {"PATH": str(tools), "GPU_FLEET_ROOT": str(root)})


def place(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("bin/nvidia-container-runtime\n")


def test_every_part_that_installs_packages_checks_who_else_uses_them() -> None:
    installing = [part for part in ContainerRuntime().parts() if part.packages]
    assert {part.name for part in installing} == {"container-toolkit", "container-runtime-docker", "container-runtime-podman"}
    assert {part.keep for part in installing} == {IN_USE}


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
    tool(tmp_path / "tools", engine, answers)
    done = asked(part, tmp_path)
    assert (done.code, done.answer) == (0, said), done.reason


def _engine(root: Path, of_a_container: str, count: int) -> None:
    """A docker with so many containers, which prints that for each."""
    (root / "tools").mkdir()
    (root / "described").write_text(of_a_container)
    script = (
        f'#!/bin/sh\ncase "$*" in *" ls "*) i=0; while [ $i -lt {count} ]; do echo $i; i=$((i+1)); done;;\n'
        f"*inspect*) shift 2; for each; do /usr/bin/cat {root}/described; done;; esac\n"
    )
    (root / "tools/docker").write_text(script)
    (root / "tools/docker").chmod(0o755)


def test_of_many_containers_with_large_labels_not_all_is_read_at_once(tmp_path: Path) -> None:
    _engine(tmp_path, '{"Labels": {"a": "' + "x" * 100_000 + '"}}\n', 300)
    tracemalloc.start()
    done = asked("container-toolkit", tmp_path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (done.code, done.answer) == (0, ""), done.reason
    assert most < 60_000_000, f"{most} bytes"


def test_containers_that_are_too_large_to_read_are_not_taken_for_containers_without_gpus(tmp_path: Path) -> None:
    _engine(tmp_path, '{"Labels": {"a": "' + "x" * 1_000_000 + '"}}\n', 100)
    done = asked("container-toolkit", tmp_path)
    assert done.code == 1 and "unknown which of them use GPUs" in done.reason


@pytest.mark.parametrize(
    ("part", "path", "user"),
    [
        (
            "container-runtime-podman",
            "home/ada of x/.local/share/containers/storage/db.sql",
            "/home/ada of x/.local/share/containers",
        ),
        ("container-runtime-podman", "etc/containers/systemd/web.container", "/etc/containers/systemd"),
        ("container-runtime-docker", "usr/local/bin/nerdctl", "/usr/local/bin/nerdctl"),
        ("container-runtime-docker", "etc/systemd/system/kubelet.service", "kubelet.service"),
        ("container-toolkit", "etc/containerd/conf.d/99-nvidia.toml", "/etc/containerd/conf.d/99-nvidia.toml names it"),
        ("container-toolkit", "etc/cdi/nvidia.yaml", "/etc/cdi/nvidia.yaml names it"),
        ("container-toolkit", "usr/bin/enroot", "/usr/bin/enroot"),
    ],
)
def test_what_others_use_without_containers_of_the_engine_stays(tmp_path: Path, part: str, path: str, user: str) -> None:
    tool(tmp_path / "tools", "podman", {})
    tool(tmp_path / "tools", "docker", {})
    place(tmp_path, path)
    done = asked(part, tmp_path, "ada:x:1000:1000::/home/ada of x:/bin/sh\n")
    assert done.code == 0 and user in done.answer, done


@pytest.mark.parametrize(
    ("name", "answers", "user"),
    [
        ("ctr", {"namespaces list --quiet": "default\nmoby\nbuildkit\n"}, "the namespace of containerd buildkit"),
        ("getent", {"group docker": "docker:x:999:gpu-fleet-dcgm-exporter,ada\n"}, "ada in the group docker"),
        ("systemctl", {f"show {BOUND} docker.service containerd.service": BOUND_TO_DOCKER}, "registry.service"),
    ],
)
def test_docker_stays_for_those_who_are_set_up_to_use_it(tmp_path: Path, name: str, answers: dict[str, str], user: str) -> None:
    tool(tmp_path / "tools", "docker", {})
    asked("container-runtime-docker", tmp_path)
    tool(tmp_path / "tools", name, answers)
    done = asked("container-runtime-docker", tmp_path)
    assert (done.code, done.answer) == (0, f"it may be used by {user}")


@pytest.mark.parametrize("part", ["container-runtime-docker", "container-toolkit"])
def test_an_engine_that_does_not_answer_is_not_removed(tmp_path: Path, part: str) -> None:
    tool(tmp_path / "tools", "docker", {}, code=1)
    done = asked(part, tmp_path)
    assert done.code != 0 and done.answer == ""


def test_an_engine_that_was_already_removed_is_not_in_use(tmp_path: Path) -> None:
    assert asked("container-runtime-docker", tmp_path).code == 0


def test_what_came_with_our_docker_is_ours_when_another_package_of_ours_is_gone(tmp_path: Path) -> None:
    """The toolkit, for instance: dpkg-query lists the files of the others, and fails."""
    tool(tmp_path / "tools", "docker", {})
    tool(tmp_path / "tools", "dpkg-query", {"--listfiles": "/usr/bin/containerd\n"}, code=1)
    place(tmp_path, "usr/bin/containerd")
    (tmp_path / "var/lib/gpu-fleet").mkdir(parents=True)
    records = "package\tcontainerd\tpurge\npackage\tnvidia-container-toolkit\tpurge\n"
    (tmp_path / "var/lib/gpu-fleet/placed").write_text(records)
    done = asked("container-runtime-docker", tmp_path)
    assert (done.code, done.answer) == (0, ""), done.answer


@pytest.mark.parametrize(
    ("docker", "restarts"),
    [("0 false", True), ("3 true", True), ("3 false", False), ("", False)],
    ids=["no container", "they outlive a restart", "three would end", "no answer"],
)
def test_an_upgraded_toolkit_ends_no_container(tmp_path: Path, docker: str, restarts: bool) -> None:
    tools, asked_for = tmp_path / "tools", tmp_path / "asked"
    tools.mkdir()
    (tools / "nvidia-container-runtime-hook").write_text("#!/bin/sh\n")  # younger than Docker's process
    (tools / "docker").write_text(f"#!/bin/sh\necho '{docker}'\n")
    started = "Mon 2020-01-06 00:00:00 UTC"
    (tools / "systemctl").write_text(f'#!/bin/sh\ncase $1 in show) echo "{started}" ;; *) echo "$*" >>{asked_for} ;; esac\n')
    for program in tools.iterdir():
        program.chmod(0o755)
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "GPU_FLEET_PREFIX": "", "GPU_FLEET_DCGM_RUN": "docker"}
    done = subprocess.run(["sh", ROOTFS / START.lstrip("/")], env=environment, capture_output=True, text=True, check=True)
    assert (asked_for.read_text() if asked_for.exists() else "") == ("restart docker.service\n" if restarts else "")
    assert ("not restarted, because containers run in it" in done.stderr) == (not restarts)
