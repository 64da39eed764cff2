"""The probes that look at a host before anything is placed: is the driver there, which exporter, where are kernel messages."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpu_fleet.host.part import ROOTFS
from gpu_fleet.on_host.probe import Outcome, outcome, runtimes
from gpu_fleet.on_host.probe.host import Host
from gpu_fleet.on_host.tools import CollectError, Tools
from tests.host.parts.textfiles import bound_to_guests, tool

LIBEXEC = ROOTFS / "opt/gpu-fleet/libexec"
NO_DRIVER, WRONG_COUNT, UNSUPPORTED, OLD_DRIVER = 10, 11, 12, 14  # gpu_fleet/host/converge/README.md

EIGHT = "".join(f"GPU {index}: NVIDIA H100 80GB HBM3 (UUID: GPU-{index})\n" for index in range(8))
MIG = "GPU 0: NVIDIA A100 (UUID: GPU-0)\n  MIG 3g.40gb     Device  0: (UUID: MIG-0)\n  MIG 1g.10gb     Device  1: (UUID: MIG-1)\n"
LOST = "Unable to determine the device handle for GPU0000:CB:00.0: Unknown Error\n"


def probe(module: str, facts: Mapping[str, str], *arguments: str, path: Path | None = None) -> Outcome:
    search = f"{path}:/usr/bin:/bin" if path else os.environ["PATH"]
    return outcome(module, arguments, {"PATH": search, **facts})


def facts_of(done: Outcome) -> dict[str, str]:
    assert done.code == 0, done.reason
    return dict(done.facts)


def nvidia_smi(directory: Path, listing: str, *, code: int = 0) -> dict[str, str]:
    version = "DRIVER version      : 590.48.01\nCUDA Version        : 13.1\n"
    tool(directory, "nvidia-smi", {"-L": listing, "--version": version}, code=code)
    return {"GPU_FLEET_TOOL_PATH": str(directory)}


# --- driver -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("oldest", ["", "590", "590.48", "590.48.01", "590.48.1", "95"])
def test_a_driver_of_the_wanted_version_or_newer_passes(tmp_path: Path, oldest: str) -> None:
    assert probe("driver", {**nvidia_smi(tmp_path, EIGHT), "GPU_FLEET_MIN_DRIVER": oldest}).code == 0


@pytest.mark.parametrize("oldest", ["591", "590.100", "590.48.02", "1000"])
def test_an_older_driver_stops_with_both_versions(tmp_path: Path, oldest: str) -> None:
    done = probe("driver", {**nvidia_smi(tmp_path, EIGHT), "GPU_FLEET_MIN_DRIVER": oldest})
    assert (done.code, done.facts) == (OLD_DRIVER, {})
    assert f"the stack file says minDriver: {oldest}, and this host has driver 590.48.01" in done.reason
    assert "upgrade the driver and reboot" in done.reason


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n",
        "Warning: persistence mode is disabled on device 00000000:3B:00.0. See the Known Issues section of the man page\n",
        "GPU 00000000:3B:00.0: a message about a GPU\n",
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_warning_is_no_gpu_and_no_failure(tmp_path: Path, line: str, is_first: bool) -> None:
    listing = line + EIGHT if is_first else EIGHT + line
    assert facts_of(probe("driver", {**nvidia_smi(tmp_path, listing), "GPU_FLEET_GPUS": "8"}))["GPU_COUNT"] == "8"


def test_different_models_are_counted_apart(tmp_path: Path) -> None:
    listing = EIGHT + "GPU 8: NVIDIA A100-SXM4-80GB (UUID: GPU-8)\n"
    found = facts_of(probe("driver", nvidia_smi(tmp_path, listing)))
    assert found["GPU_MODELS"] == "1 x NVIDIA A100-SXM4-80GB, 8 x NVIDIA H100 80GB HBM3"


def test_a_missing_gpu_stops_with_both_numbers_and_what_the_tool_said(tmp_path: Path) -> None:
    listing = EIGHT.replace("GPU 3: NVIDIA H100 80GB HBM3 (UUID: GPU-3)\n", LOST)
    done = probe("driver", {**nvidia_smi(tmp_path, listing, code=15), "GPU_FLEET_GPUS": "8"})
    assert (done.code, done.facts) == (WRONG_COUNT, {})
    assert "gpus: 8" in done.reason and "lists 7" in done.reason and LOST.strip() in done.reason


def test_a_gpu_that_a_guest_has_is_not_missing(tmp_path: Path) -> None:
    bound_to_guests(tmp_path, "0000:5d:00.0")
    listing = EIGHT.replace("GPU 3: NVIDIA H100 80GB HBM3 (UUID: GPU-3)\n", "")
    settings = {**nvidia_smi(tmp_path / "bin", listing), "GPU_FLEET_ROOT": str(tmp_path)}
    facts = facts_of(probe("driver", {**settings, "GPU_FLEET_GPUS": "8"}))
    assert facts["GPU_COUNT"] == "7" and facts["GPU_GUESTS"] == "1"
    assert probe("driver", {**settings, "GPU_FLEET_GPUS": "9"}).code == WRONG_COUNT


def test_one_gpu_too_many_is_an_error_in_the_stack_file(tmp_path: Path) -> None:
    done = probe("driver", {**nvidia_smi(tmp_path, EIGHT), "GPU_FLEET_GPUS": "4"})
    assert done.code == WRONG_COUNT and "correct `gpus` in the stack file" in done.reason
    assert "printed" not in done.reason, "a tool that printed only its list is not quoted"


@pytest.mark.parametrize(
    ("answer", "next_step"),
    [
        ("Mismatch in versions between nvidia-smi and NVML.\n", "of different drivers"),
        ("Failed to initialize NVML: Unknown Error\n", "in a container"),
        ("No devices were found\n", "lspci"),
        (LOST, "journalctl"),
    ],
)
def test_a_driver_that_does_not_work_says_what_to_do_next(tmp_path: Path, answer: str, next_step: str) -> None:
    done = probe("driver", nvidia_smi(tmp_path, answer, code=9))
    assert done.code == NO_DRIVER and next_step in done.reason and answer.strip() in done.reason


@pytest.mark.parametrize(("vendor", "sought"), [("auto", "nvidia-smi, rocm-smi or amd-smi"), ("amd", "rocm-smi or amd-smi")])
def test_a_host_without_any_driver_says_what_was_looked_for(tmp_path: Path, vendor: str, sought: str) -> None:
    done = probe("driver", {"GPU_FLEET_VENDOR": vendor}, path=tmp_path)
    assert done.code == NO_DRIVER and f"no GPU driver: {sought}" in done.reason


def test_old_drivers_are_asked_for_their_version_and_show_that_of_cuda_in_the_table_only(tmp_path: Path) -> None:
    answers = {"-L": EIGHT, "--query-gpu=driver_version": "418.67\n", "--version": "ERROR: Option --version is not recognized.\n"}
    tool(tmp_path, "nvidia-smi", answers, default="| NVIDIA-SMI 418.67  Driver Version: 418.67  CUDA Version: 10.1 |")
    found = facts_of(probe("driver", {"GPU_FLEET_TOOL_PATH": str(tmp_path)}))
    assert (found["GPU_DRIVER_VERSION"], found["CUDA_VERSION"]) == ("418.67", "10.1")


def test_the_named_directory_is_searched_before_the_path(tmp_path: Path) -> None:
    nvidia_smi(tmp_path / "path", EIGHT)
    named = nvidia_smi(tmp_path / "named", MIG)
    assert facts_of(probe("driver", named, path=tmp_path / "path"))["GPU_COUNT"] == "1"


def test_amd_gpus_are_counted_by_rocm_smi(tmp_path: Path) -> None:
    listing = "device,Card Series,Card Model\n" + "".join(f"card{index},AMD Instinct MI300X,0x74a1\n" for index in range(4))
    tool(tmp_path / "bin", "rocm-smi", {"--showproductname --showbus --csv": listing})
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    (tmp_path / "sys/module/amdgpu/version").write_text("6.8.5\n")
    (tmp_path / "opt/rocm/.info").mkdir(parents=True)
    (tmp_path / "opt/rocm/.info/version").write_text("6.2.0-66\n")
    facts = {"GPU_FLEET_TOOL_PATH": str(tmp_path / "bin"), "GPU_FLEET_ROOT": str(tmp_path), "GPU_FLEET_GPUS": "4"}
    assert facts_of(probe("driver", facts, path=tmp_path / "none")) == {
        "GPU_VENDOR": "amd",
        "GPU_COUNT": "4",
        "GPU_MODELS": "4 x AMD Instinct MI300X",
        "GPU_DRIVER_VERSION": "6.8.5",
        "ROCM_VERSION": "6.2.0-66",
    }


def test_amd_gpus_are_counted_by_amd_smi_where_there_is_no_rocm_smi(tmp_path: Path) -> None:
    tool(tmp_path, "amd-smi", {"list --csv": "gpu,gpu_bdf,gpu_uuid\n0,0000:05:00.0,a\n1,0000:26:00.0,b\n"})
    assert facts_of(probe("driver", {"GPU_FLEET_VENDOR": "amd"}, path=tmp_path))["GPU_COUNT"] == "2"


@pytest.mark.parametrize(
    ("name", "command", "header", "row"),
    [
        ("amd-smi", "list --csv", "gpu,gpu_bdf,gpu_uuid,kfd_id,node_id,partition_id", "{index},{bdf},a,1,2,{part}"),
        ("rocm-smi", "--showproductname --showbus --csv", "device,PCI Bus,Card Series", "card{index},{bdf},AMD Instinct MI300X"),
    ],
)
def test_partitions_of_an_amd_gpu_are_not_counted_as_gpus(tmp_path: Path, name: str, command: str, header: str, row: str) -> None:
    """Two GPUs in CPX mode, and a warning of the tool before the list."""
    rows = [
        row.format(index=8 * gpu + part, bdf=f"0000:{bus}:00.{part}", part=part)
        for gpu, bus in enumerate(("07", "27"))
        for part in range(8)
    ]
    warning = "WARNING: User is missing the following required groups: render, video.\n\n"
    tool(tmp_path, name, {command: warning + "\n".join([header, *rows]) + "\n"})
    facts = {"GPU_FLEET_VENDOR": "amd", "GPU_FLEET_TOOL_PATH": str(tmp_path), "GPU_FLEET_GPUS": "2"}
    found = facts_of(probe("driver", facts, path=tmp_path))
    assert found["GPU_COUNT"] == "2" and found["GPU_MODELS"].startswith("2 x ")
    wrong = probe("driver", {**facts, "GPU_FLEET_GPUS": "16"}, path=tmp_path)
    assert wrong.code == WRONG_COUNT and "printed: WARNING: User is missing" in wrong.reason and "0000:07" not in wrong.reason


# --- exporter --------------------------------------------------------------------------------------------------


UNREACHABLE = 13
SETTINGS = {
    "GPU_FLEET_DCGM_IMAGE": "registry.example.com/dcgm-exporter@sha256:0123",
    "GPU_FLEET_DCGM_INSTALL": "yes",
    "GPU_FLEET_TOOLKIT_REPOSITORY": "https://packages.example.com/toolkit",
}
# What each tool says or does; a host has those that a test names.
TOOLS = {
    "docker": "exit 0",
    "docker, stopped": "exit 1",
    "docker, busy": 'case "$*" in *image*) exit 1 ;; *Running*) echo "3 false" ;; esac',
    "docker, of a snap": "case $* in *DockerRootDir*) echo '/var/snap/docker/common/var-lib-docker [name=apparmor]' ;; esac",
    "docker, rootless": "case $* in *DockerRootDir*) echo '/home/ops/.local/share/docker [name=seccomp name=rootless]' ;; esac",
    "docker, without the image": 'case "$*" in *image*) exit 1 ;; esac',
    "docker, which is Podman": 'case $1 in --version) echo "podman version 4.9.4" ;; esac',
    "podman": 'case $1 in --version) echo "podman version 4.1.1" ;; esac',
    "podman, old": 'case $1 in --version) echo "podman version 3.4.4" ;; esac',
    "nvidia-ctk": "exit 0",
    "curl": "exit 22",  # the registry answers, and wants a login
    "curl, nobody": "echo 'curl: (7) Failed to connect to registry.example.com port 443' >&2; exit 7",
    "apt-get": "exit 0",
    "apt-get, nobody": "case $* in *update) echo 'W: Failed to fetch http://mirror.example.com  Not resolved' ;; esac; exit 100",
    "dnf, without glibc": "echo 'Error: '; echo ' Problem: conflicting requests'"
    "; echo '  - nothing provides glibc needed by podman-5.4'; exit 1",
    "apt-get, upgrading": "case $* in *--simulate*) echo 'Inst libseccomp2 [2.5.3] (2.5.4)'; echo 'Inst runc (1.1)' ;; esac",
    "dnf, upgrading": "printf 'Installing:\\n podman x86_64 5\\nUpgrading:\\n container-selinux noarch 2\\n\\n'"
    "; echo 'Operation aborted.'; exit 1",
    "dnf": "echo 'Operation aborted.'; exit 1",
    "dnf, nobody": "echo '  - Curl error (6): Could not resolve host name for https://mirror.example.com/repomd.xml [DNS]'"
    "; echo 'Error: Failed to download metadata for repo baseos' >&2; exit 1",
}
DEBIAN = 'ID=debian\nVERSION_ID="12"\n'
ROCKY = 'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n'
DOCKER = ("docker", "nvidia-ctk", "curl")


def machine(
    root: Path,
    *tools: str,
    virt: str = "",
    vendor: str = "nvidia",
    system: str = DEBIAN,
    installed: tuple[str, ...] = (),
) -> dict[str, str]:
    """A host as this probe sees it. `virt`: "container=docker", "vm=kvm", nothing for bare metal, or "unknown" where
    systemd's tool is missing. `installed`: packages that gpu-fleet has installed there."""
    kind, _, name = virt.partition("=")
    directory = root / "bin"
    directory.mkdir(parents=True)
    scripts = {tool.partition(",")[0]: TOOLS[tool] for tool in tools}
    if virt != "unknown":
        scripts["systemd-detect-virt"] = f'if [ "$1" = "--{kind}" ]; then echo "{name}"; else echo none; exit 1; fi'
    for script, body in scripts.items():
        (directory / script).write_text(f"#!/bin/sh\n{body}\n")
        (directory / script).chmod(0o755)
    (root / "run/systemd/system").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "etc/os-release").write_text(system)
    (root / "var/lib/gpu-fleet").mkdir(parents=True)
    (root / "var/lib/gpu-fleet/placed").write_text("".join(f"package\t{name}\tpart\t-\t-\t-\n" for name in installed))
    return {"GPU_FLEET_ROOT": str(root), "GPU_VENDOR": vendor, **SETTINGS}


def choice(root: Path, host: dict[str, str]) -> Outcome:
    """With no program of this machine."""
    return probe("exporter", {"PATH": str(root / "bin"), **host})


@pytest.mark.parametrize(
    ("setting", "mode"), [("no-cgroups = true", "nvidia_gpu_exporter"), ("#no-cgroups = true", "dcgm-exporter")]
)
def test_docker_gives_no_gpus_away_where_the_toolkit_is_set_up_for_rootless_docker(
    tmp_path: Path, setting: str, mode: str
) -> None:
    host = machine(tmp_path, *DOCKER)
    (tmp_path / "etc/nvidia-container-runtime").mkdir()
    (tmp_path / "etc/nvidia-container-runtime/config.toml").write_text(f'[nvidia-container-cli]\n{setting}\nldconfig = "x"\n')
    found = facts_of(choice(tmp_path, host))
    assert found["GPU_FLEET_EXPORTER_MODE"] == mode
    assert ("has no-cgroups = true" in found["GPU_FLEET_EXPORTER_REASON"]) == (mode != "dcgm-exporter")


@pytest.mark.parametrize(
    ("tools", "host", "mode", "reason"),
    [
        (DOCKER, {}, "dcgm-exporter", "bare metal with Docker"),
        (DOCKER, {"virt": "vm=kvm"}, "dcgm-exporter", "a kvm VM with Docker"),
        (("podman", "nvidia-ctk", "curl"), {}, "dcgm-exporter", "bare metal with Podman"),
        (("docker, stopped", "podman", "nvidia-ctk", "curl"), {}, "dcgm-exporter", "bare metal with Podman"),
        (
            ("podman, old", "nvidia-ctk", "curl"),
            {},
            "nvidia_gpu_exporter",
            "without Podman 4.1 or newer, which supports GPUs (it has podman version 3.4.4)",
        ),
        (("docker", "podman, old", "nvidia-ctk", "curl"), {}, "dcgm-exporter", "bare metal with Docker"),
        (("docker, which is Podman", "podman", "nvidia-ctk", "curl"), {}, "dcgm-exporter", "bare metal with Podman"),
        (("docker, stopped", "nvidia-ctk"), {"virt": "vm=kvm"}, "nvidia_gpu_exporter", "a kvm VM without a running Docker"),
        (("docker, of a snap", "nvidia-ctk", "curl"), {}, "nvidia_gpu_exporter", "sees the host's files; this one is a snap"),
        (("docker, of a snap", "podman", "nvidia-ctk", "curl"), {}, "dcgm-exporter", "bare metal with Podman"),
        (("docker, rootless", "nvidia-ctk", "curl"), {}, "nvidia_gpu_exporter", "runs as root; this one is rootless"),
        (DOCKER, {"virt": "container=lxc"}, "nvidia_gpu_exporter", "inside a container (lxc)"),
        (DOCKER, {"vendor": "amd"}, "textfile", "AMD GPUs"),
        (
            ("docker, without the image", "nvidia-ctk", "curl, nobody"),
            {},
            "nvidia_gpu_exporter",
            "without the image: its registry registry.example.com does not answer (curl: (7) Failed to connect",
        ),
        (("docker", "nvidia-ctk", "curl, nobody"), {}, "dcgm-exporter", "bare metal with Docker"),  # the image is there
        (
            ("docker, busy", "curl", "apt-get"),
            {},
            "nvidia_gpu_exporter",
            "for which Docker would have to be restarted while 3 containers run in it",
        ),
        (("curl", "apt-get"), {}, "dcgm-exporter", "bare metal with Docker, installed by gpu-fleet"),
        (("curl", "dnf"), {"system": ROCKY}, "dcgm-exporter", "bare metal with Podman, installed by gpu-fleet"),
        (("docker", "curl", "apt-get"), {}, "dcgm-exporter", "Docker and the NVIDIA Container Toolkit, installed by gpu-fleet"),
        (
            ("curl", "apt-get, nobody"),
            {},
            "nvidia_gpu_exporter",
            "which cannot be installed here (http://mirror.example.com Not resolved)",
        ),
        (
            ("curl", "dnf, nobody"),
            {"system": ROCKY},
            "nvidia_gpu_exporter",
            "which cannot be installed here (Curl error (6): Could not resolve host name for https://mirror.example.com/",
        ),
        (
            ("curl", "dnf, without glibc"),
            {"system": ROCKY},
            "nvidia_gpu_exporter",
            "which cannot be installed here (nothing provides glibc needed by podman-5.4)",
        ),
        (
            ("curl", "apt-get, upgrading"),
            {},
            "nvidia_gpu_exporter",
            "which cannot be installed here (another version of libseccomp2 would have to be installed)",
        ),
        (
            ("curl", "dnf, upgrading"),
            {"system": ROCKY},
            "nvidia_gpu_exporter",
            "which cannot be installed here (another version of container-selinux would have to be installed)",
        ),
        (
            ("curl",),
            {"system": ROCKY},
            "nvidia_gpu_exporter",
            "which cannot be installed here (this host has neither dnf nor yum)",
        ),
        (("curl",), {"system": "ID=arch\n"}, "nvidia_gpu_exporter", "bare metal without Docker or Podman"),
        (
            DOCKER,
            {"installed": ("docker.io", "nvidia-container-toolkit")},
            "dcgm-exporter",
            "bare metal with Docker, installed by gpu-fleet",
        ),
    ],
)
def test_the_host_decides_and_says_why(tmp_path: Path, tools: tuple[str, ...], host: dict, mode: str, reason: str) -> None:
    found = facts_of(choice(tmp_path, machine(tmp_path, *tools, **host)))
    assert reason in found["GPU_FLEET_EXPORTER_REASON"]
    assert found["GPU_FLEET_EXPORTER_MODE"] == mode
    if mode != "dcgm-exporter":
        installed = {
            found[f"GPU_FLEET_{name}"] for name in ("DCGM_RUN", "INSTALL_RUNTIME", "INSTALL_TOOLKIT", "PREPARE_CONTAINERS")
        }
        assert installed == {"none", "no"}, "nothing is installed on a host that gets another exporter"


@pytest.mark.parametrize(
    ("tools", "system", "installed", "facts"),
    [
        (DOCKER, DEBIAN, (), ("docker", "none", "no", "no")),
        (("curl", "apt-get"), DEBIAN, (), ("docker", "docker", "yes", "yes")),
        (("curl", "dnf"), ROCKY, (), ("podman", "podman", "yes", "yes")),
        (("docker", "curl", "apt-get"), DEBIAN, (), ("docker", "none", "yes", "yes")),
        (("podman", "nvidia-ctk", "curl"), DEBIAN, (), ("podman", "none", "no", "yes")),
        (DOCKER, DEBIAN, ("docker.io", "nvidia-container-toolkit"), ("docker", "docker", "yes", "yes")),
    ],
)
def test_what_is_installed_is_the_same_before_and_after(
    tmp_path: Path, tools: tuple[str, ...], system: str, installed: tuple[str, ...], facts: tuple[str, ...]
) -> None:
    found = facts_of(choice(tmp_path, machine(tmp_path, *tools, system=system, installed=installed)))
    names = ("DCGM_RUN", "INSTALL_RUNTIME", "INSTALL_TOOLKIT", "PREPARE_CONTAINERS")
    assert tuple(found[f"GPU_FLEET_{name}"] for name in names) == facts
    expected = "none" if facts[2] == "no" else "rhel" if system == ROCKY else "debian"
    assert found["GPU_FLEET_INSTALL_REPOSITORY"] == expected


def test_only_a_docker_that_is_installed_with_settings_of_ours_has_them(tmp_path: Path) -> None:
    """One of an earlier release has none, and other containers may use its network by now."""
    new = machine(tmp_path / "new", "curl", "apt-get")
    assert facts_of(choice(tmp_path / "new", new))["GPU_FLEET_DOCKER_SETTINGS"] == "yes"
    earlier = machine(tmp_path / "earlier", *DOCKER, installed=("docker.io",))
    assert facts_of(choice(tmp_path / "earlier", earlier))["GPU_FLEET_DOCKER_SETTINGS"] == "no"
    with (tmp_path / "earlier/var/lib/gpu-fleet/placed").open("a") as placed:
        placed.write("file\t/etc/docker/daemon.json\tcontainer-runtime-settings\t0\t-\t-\n")
    for exporter in ("auto", "nvidia_gpu_exporter"):  # another choice changes no Docker that stays
        found = facts_of(choice(tmp_path / "earlier", {**earlier, "GPU_FLEET_EXPORTER": exporter}))
        assert found["GPU_FLEET_DOCKER_SETTINGS"] == "yes"
    theirs = machine(tmp_path / "theirs", *DOCKER)
    assert facts_of(choice(tmp_path / "theirs", theirs))["GPU_FLEET_DOCKER_SETTINGS"] == "no"


def test_a_repository_that_the_host_has_is_not_named_again(tmp_path: Path) -> None:
    host = machine(tmp_path, "docker", "curl", "apt-get")
    sources = tmp_path / "etc/apt/sources.list.d"
    sources.mkdir(parents=True)
    (sources / "gpu-fleet-nvidia.list").write_text(f"deb {SETTINGS['GPU_FLEET_TOOLKIT_REPOSITORY']}/stable/deb /\n")
    assert facts_of(choice(tmp_path, host))["GPU_FLEET_INSTALL_REPOSITORY"] == "debian", "ours is ours"
    (sources / "nvidia.list").write_text(f"deb [signed-by=/x] {SETTINGS['GPU_FLEET_TOOLKIT_REPOSITORY']}/stable/deb /\n")
    assert facts_of(choice(tmp_path, host))["GPU_FLEET_INSTALL_REPOSITORY"] == "none", "two keys would stop apt"


def test_nothing_is_installed_on_a_machine_of_which_we_have_a_directory(tmp_path: Path) -> None:
    host = {**machine(tmp_path, "curl", "apt-get"), "GPU_FLEET_PREFIX": "/home/dev/.dev/host"}
    assert "without an installation on the whole host" in facts_of(choice(tmp_path, host))["GPU_FLEET_EXPORTER_REASON"]


def test_nothing_is_installed_where_the_stack_says_so(tmp_path: Path) -> None:
    host = {**machine(tmp_path, "curl", "apt-get"), "GPU_FLEET_DCGM_INSTALL": "no"}
    found = facts_of(choice(tmp_path, host))
    assert found["GPU_FLEET_EXPORTER_MODE"] == "nvidia_gpu_exporter" and found["GPU_FLEET_INSTALL_RUNTIME"] == "none"
    assert found["GPU_FLEET_EXPORTER_REASON"].endswith("which gpu-fleet installs only with dcgm: {install: true}")


def test_nothing_is_installed_where_usr_is_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bootc and ostree systems have dnf or apt, which would fail at the first file."""
    host = machine(tmp_path, "curl", "apt-get")
    (tmp_path / "usr").mkdir(exist_ok=True)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path / "usr" and access(path, mode))
    found = facts_of(choice(tmp_path, host))
    assert found["GPU_FLEET_EXPORTER_MODE"] == "nvidia_gpu_exporter"
    assert "/usr is read-only: packages come with the image here" in found["GPU_FLEET_EXPORTER_REASON"]


# Where each keeps its programs, units and data, according to its own documentation.
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("etc/containerd/config.toml", "containerd"),  # kubespray, kubeadm
        ("usr/local/bin/containerd", "containerd"),  # the release's archive
        ("usr/local/bin/nerdctl", "containerd"),
        ("etc/cni/net.d/10-flannel.conflist", "CNI"),
        ("proc/71/comm:containerd", "containerd"),
        ("proc/71/comm:containerd-shim", ""),  # a container's own process of a runtime that is found otherwise
        ("etc/systemd/system/kubelet.service", "Kubernetes"),
        ("proc/71/comm:k3s-agent", "Kubernetes"),
        ("etc/systemd/system/rke2-agent.service", "Kubernetes"),
        ("etc/systemd/system/k0sworker.service", "Kubernetes"),
        ("var/lib/rancher/rke2/agent/kubelet.kubeconfig", "Kubernetes"),
        ("var/snap/microk8s/current/args/kubelet", "Kubernetes"),
        ("etc/cni/net.d/87-podman-bridge.conflist", ""),  # Podman makes it, and leaves it
        ("etc/crio/crio.conf.d/10-crio.conf", "CRI-O"),
        ("var/snap/docker/current/config/daemon.json", "Docker"),
        ("usr/bin/dockerd", "Docker"),  # the static binaries
        ("opt/docker/dockerd", "Docker"),  # their archive, unpacked there
        ("lib/systemd/system/docker.service", "Docker"),
        ("etc/docker/daemon.json", "Docker"),
        ("home/ada/bin/dockerd", "Docker"),  # rootless
        ("run/user/1000/docker.sock", "Docker"),
        ("proc/71/comm:rootlesskit", "Docker"),
        ("home/ada/.local/share/containers/storage/storage.lock", "Podman"),
        ("srv/people/eve/.config/containers/systemd/web.container", "Podman"),
        ("usr/bin/buildah", "Podman"),
        ("proc/71/comm:conmon", "Podman"),
        ("proc/71/comm:balena-engine-d", "Docker"),  # -daemon: balena-engine issue 177
        ("usr/local/bin/balena-engine", "Docker"),
        ("etc/systemd/system/balena.service", "Docker"),  # as its installer lays it: balena-engine issue 136
        ("proc/71/comm:incusd", "LXD"),
        ("opt/incus/bin/incusd", "LXD"),
        ("var/snap/lxd/common/lxd/database/local.db", "LXD"),
        ("snap/bin/lxc", ""),  # on each Ubuntu Server
        ("proc/71/comm:qemu-system-x86", "virtual machines"),
        ("proc/71/comm:qemu-kvm", "virtual machines"),
        ("proc/71/comm:qemu-ga", ""),  # in a guest, such as most rented machines
        ("proc/71/comm:kvm", "virtual machines"),  # Proxmox
        ("proc/71/comm:kvm-irqfd-clean", ""),  # a kernel's thread
        ("etc/libvirt/qemu/gpu-vm.xml", "virtual machines"),
        ("proc/71/comm:systemd-nspawn", "systemd-nspawn"),
        ("var/lib/machines/build/etc/os-release", "systemd-nspawn"),
        ("usr/lib/x86_64-linux-gnu/slurm-wlm/spank_pyxis.so", "HPC containers"),
        ("usr/bin/enroot", "HPC containers"),
        ("usr/bin/apptainer", "HPC containers"),
        ("sys/class/net/br0/bridge/bridge_id", "a network bridge (br0)"),
        ("sys/class/net/br0/brif/tap0/state sys/class/net/br0/bridge/bridge_id", "a network bridge (br0 with tap0)"),
        ("sys/class/net/docker0/bridge/bridge_id", ""),  # what is left of a Docker that went
        ("home/ada/.bashrc", ""),
    ],
)
def test_no_runtime_is_installed_beside_what_others_run(tmp_path: Path, path: str, name: str) -> None:
    host = machine(tmp_path, "curl", "apt-get")
    (tmp_path / "etc/passwd").write_text("eve:x:1001:1001::/srv/people/eve:/bin/bash\n")
    for each in path.split():
        file, _, text = each.partition(":")
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(f"{text}\n")
    found = facts_of(choice(tmp_path, host))
    installed = (found["GPU_FLEET_INSTALL_RUNTIME"], found["GPU_FLEET_INSTALL_TOOLKIT"], found["GPU_FLEET_EXPORTER_MODE"])
    if not name:
        assert installed == ("docker", "yes", "dcgm-exporter"), found
        return
    assert installed == ("none", "no", "nvidia_gpu_exporter")
    assert f"gpu-fleet installs none beside what is here: {name}" in found["GPU_FLEET_EXPORTER_REASON"]
    refused = choice(tmp_path, {**host, "GPU_FLEET_EXPORTER": "dcgm-exporter"})
    assert refused.code == UNSUPPORTED and name in refused.reason


@pytest.mark.parametrize(
    ("users", "program", "counts"),
    [
        ("0 0 0 0", "/opt/docker-27/dockerd", True),
        ("4711 4711 4711 4711", "/home/eve/dockerd", False),
        ("4711 4711 4711 4711", "", False),
        ("4711 0 0 0", "/usr/bin/sudo", False),  # under a link of the user's named dockerd
        ("0 0 0 0", "/usr/bin/sudo", False),  # the same, at its question for a password
        ("4711 4711 4711 4711", "/opt/docker-27/dockerd", True),  # rootless, as root has installed it
        ("4711 4711 4711 4711", "/opt/open/dockerd", False),  # in a directory that everybody may write
        ("100000 100000 100000 100000", "/opt/docker-27/sleep", False),  # root in a container of the user's
    ],
)
def test_a_process_counts_by_who_runs_what_and_not_by_its_name(tmp_path: Path, users: str, program: str, counts: bool) -> None:
    """Any user could block a first installation with a process of this name."""
    root = Path(tempfile.mkdtemp(dir="/var/lib"))  # above it nothing that others may write
    try:
        (root / "proc/71").mkdir(parents=True)
        (root / "proc/71/comm").write_text("dockerd\n")
        (root / "proc/71/status").write_text("Name:\tdockerd\nUid:\t" + users.replace(" ", "\t") + "\n")
        if program:
            file = root / program[1:]
            file.parent.mkdir(parents=True)
            file.touch()
            file.chmod(0o4755 if file.name == "sudo" else 0o755)
            file.parent.chmod(0o777 if "open" in program else 0o755)
            (root / "proc/71/exe").symlink_to(file)
        root.chmod(0o755)
        if program.startswith("/home"):
            os.chown(root / program[1:], 4711, -1)
        host = Host({"GPU_FLEET_ROOT": str(root)})
        assert list(runtimes._processes(host, runtimes.RUNTIMES, runtimes.Ours(host))) == (
            ["Docker (process dockerd)"] if counts else []
        )
    finally:
        shutil.rmtree(root)


def test_a_home_with_many_files_is_not_listed(tmp_path: Path) -> None:
    images = tmp_path / "home/eve/.local/share/docker"
    images.mkdir(parents=True)
    for number in range(20_000):
        (images / f"{number:0100}").touch()
    tracemalloc.start()
    found = runtimes.first_sign(Host({"GPU_FLEET_ROOT": str(tmp_path)}), "Docker")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == "Docker (/home/eve/.local/share/docker)" and most < 2_000_000, f"{most} bytes"


def test_what_a_runtime_of_ours_has_stored_is_no_sign_of_another_one(tmp_path: Path) -> None:
    """Somebody removed its package, and the next run installs it again."""
    host = machine(tmp_path, "curl", "dnf", system=ROCKY, installed=("podman",))
    (tmp_path / "var/lib/containers/storage/overlay-images/0123").mkdir(parents=True)
    assert facts_of(choice(tmp_path, host))["GPU_FLEET_INSTALL_RUNTIME"] == "podman"
    (tmp_path / "var/lib/gpu-fleet/placed").unlink()
    assert "beside what is here: Podman (/var/lib" in facts_of(choice(tmp_path, host))["GPU_FLEET_EXPORTER_REASON"]


@pytest.mark.parametrize(
    ("status", "beside"),
    [
        ("installed docker-ce-cli", "Docker (package docker-ce-cli)"),
        ("half-configured containerd.io", "containerd (package containerd.io)"),
        ("unpacked kubelet", "Kubernetes (package kubelet)"),
        ("config-files podman", ""),
        ("installed libnvidia-container1", ""),
    ],
)
def test_a_package_of_a_runtime_in_any_state_counts(tmp_path: Path, status: str, beside: str) -> None:
    host = machine(tmp_path, "curl", "apt-get")
    (tmp_path / "bin/dpkg-query").write_text(f"#!/bin/sh\necho '{status}'\n")
    (tmp_path / "bin/dpkg-query").chmod(0o755)
    reason = facts_of(choice(tmp_path, host))["GPU_FLEET_EXPORTER_REASON"]
    assert beside in reason if beside else "installed by gpu-fleet" in reason


def test_the_toolkit_is_not_added_to_a_docker_that_kubernetes_uses(tmp_path: Path) -> None:
    host = machine(tmp_path, "docker", "curl", "apt-get")
    (tmp_path / "proc/71").mkdir(parents=True)
    (tmp_path / "proc/71/comm").write_text("kubelet\n")
    found = facts_of(choice(tmp_path, host))
    assert (found["GPU_FLEET_EXPORTER_MODE"], found["GPU_FLEET_INSTALL_TOOLKIT"]) == ("nvidia_gpu_exporter", "no")
    assert "Kubernetes (process kubelet)" in found["GPU_FLEET_EXPORTER_REASON"]


def test_docker_is_not_restarted_for_the_toolkit_where_services_of_others_require_it(tmp_path: Path) -> None:
    host = machine(tmp_path, "docker", "curl", "apt-get")
    (tmp_path / "bin/systemctl").write_text("#!/bin/sh\necho 'registry.service'; echo; echo docker.socket\n")
    (tmp_path / "bin/systemctl").chmod(0o755)
    reason = facts_of(choice(tmp_path, host))["GPU_FLEET_EXPORTER_REASON"]
    assert reason.endswith("for which Docker would have to be restarted, and with it registry.service")


def test_a_docker_of_ours_that_was_never_configured_is_not_finished_beside_kubernetes(tmp_path: Path) -> None:
    """As an earlier release left it where dpkg asked about the site's configuration of containerd."""
    host = machine(tmp_path, "docker, stopped", "curl", "apt-get", installed=("docker.io", "containerd"))
    (tmp_path / "var/lib/gpu-fleet/facts").write_text("GPU_FLEET_DCGM_RUN=docker\n")
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/system/kubelet.service").write_text("[Service]\n")
    found = facts_of(choice(tmp_path, host))
    assert (found["GPU_FLEET_EXPORTER_MODE"], found["GPU_FLEET_INSTALL_RUNTIME"]) == ("nvidia_gpu_exporter", "none")


def test_dcgm_s_packages_need_no_container_runtime(tmp_path: Path) -> None:
    host = {**machine(tmp_path, "apt-get"), "GPU_FLEET_DCGM_SOURCE": "packages"}
    found = facts_of(choice(tmp_path, host))
    assert (found["GPU_FLEET_EXPORTER_REASON"], found["GPU_FLEET_DCGM_RUN"]) == ("bare metal with DCGM's packages", "packages")


def test_a_docker_that_is_stopped_for_a_moment_changes_no_choice(tmp_path: Path) -> None:
    host = machine(tmp_path, "docker, stopped", "nvidia-ctk", "curl")
    (tmp_path / "var/lib/gpu-fleet/facts").write_text("GPU_FLEET_DCGM_RUN=docker\n")
    assert facts_of(choice(tmp_path, host))["GPU_FLEET_DCGM_RUN"] == "docker", "the part reports that it does not run"


def test_with_an_image_archive_no_registry_is_contacted(tmp_path: Path) -> None:
    host = machine(tmp_path, "docker, without the image", "nvidia-ctk", "curl, nobody")
    host["GPU_FLEET_DCGM_ARCHIVE"] = "/opt/gpu-fleet/share/dcgm-exporter.tar"
    assert facts_of(choice(tmp_path, host))["GPU_FLEET_EXPORTER_MODE"] == "dcgm-exporter"


@pytest.mark.parametrize(
    ("file", "text", "kind"),
    [
        (".dockerenv", "", "docker"),
        ("run/.containerenv", "", "podman"),
        ("run/host/container-manager", "systemd-nspawn\n", "systemd-nspawn"),
        ("run/systemd/container", "lxc\n", "lxc"),
        ("proc/1/environ", "PATH=/bin\0container=oci\0", "oci"),
        ("proc/1/cgroup", "12:cpuset:/kubepods/besteffort/pod1\n", "kubepods"),
        ("var/run/secrets/kubernetes.io/token", "", "kubernetes"),
    ],
)
def test_a_container_without_systemd_is_known_by_its_marks(tmp_path: Path, file: str, text: str, kind: str) -> None:
    host = machine(tmp_path, *DOCKER, virt="unknown")
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    found = facts_of(choice(tmp_path, host))
    assert found["GPU_FLEET_EXPORTER_REASON"].startswith(f"inside a container ({kind})")


def test_a_pod_is_known_even_where_systemd_s_tool_sees_no_container(tmp_path: Path) -> None:
    host = {**machine(tmp_path, *DOCKER), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert facts_of(choice(tmp_path, host))["GPU_FLEET_EXPORTER_REASON"].startswith("inside a container (kubernetes)")


def test_a_root_on_an_engine_s_overlay_is_a_container_but_not_a_machine_that_booted_from_one(tmp_path: Path) -> None:
    host = machine(tmp_path, *DOCKER)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/mounts").write_text("overlay / overlay rw 0 0\n")
    assert facts_of(choice(tmp_path, host))["GPU_FLEET_EXPORTER_MODE"] == "dcgm-exporter"
    (tmp_path / "run/systemd/system").rmdir()
    assert facts_of(choice(tmp_path, host))["GPU_FLEET_EXPORTER_REASON"].startswith(
        "inside a container (its root file system is an overlay)"
    )


def test_the_board_says_that_a_machine_is_virtual_where_systemd_does_not(tmp_path: Path) -> None:
    host = machine(tmp_path, *DOCKER)
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    (tmp_path / "sys/class/dmi/id/sys_vendor").write_text("QEMU\n")
    assert facts_of(choice(tmp_path, host))["GPU_FLEET_EXPORTER_REASON"] == "a VM (DMI: QEMU) with Docker"


@pytest.mark.parametrize("exporter", ["dcgm-exporter", "nvidia_gpu_exporter", "textfile"])
def test_the_exporter_in_the_stack_file_takes_precedence(tmp_path: Path, exporter: str) -> None:
    host = {**machine(tmp_path, *DOCKER, virt="container=docker"), "GPU_FLEET_EXPORTER": exporter}
    found = facts_of(choice(tmp_path, host))
    assert found["GPU_FLEET_EXPORTER_MODE"] == exporter
    assert found["GPU_FLEET_EXPORTER_REASON"].startswith("set in the stack file")


@pytest.mark.parametrize(
    ("tools", "vendor", "exporter", "code", "why"),
    [
        ((), "amd", "nvidia_gpu_exporter", UNSUPPORTED, "this host has AMD GPUs"),
        (("docker, stopped",), "nvidia", "dcgm-exporter", UNSUPPORTED, "this host lacks a running Docker"),
        (("docker, busy", "apt-get"), "nvidia", "dcgm-exporter", UNSUPPORTED, "while 3 containers run in it"),
        (
            ("docker, without the image", "nvidia-ctk", "curl, nobody"),
            "nvidia",
            "dcgm-exporter",
            UNREACHABLE,
            "lacks the image: its registry",
        ),
        (("apt-get, nobody",), "nvidia", "dcgm-exporter", UNREACHABLE, "a container runtime and the NVIDIA Container Toolkit"),
        ((), "nvidia", "node_exporter", UNSUPPORTED, "not one of auto, dcgm-exporter, nvidia_gpu_exporter, textfile"),
    ],
)
def test_an_exporter_that_cannot_run_here_is_refused_before_anything_is_placed(
    tmp_path: Path, tools: tuple[str, ...], vendor: str, exporter: str, code: int, why: str
) -> None:
    done = choice(tmp_path, {**machine(tmp_path, *tools, vendor=vendor), "GPU_FLEET_EXPORTER": exporter})
    assert (done.code, done.facts) == (code, {})
    assert why in done.reason


def test_dcgm_exporter_is_not_started_without_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = machine(tmp_path, *DOCKER)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "bare metal without root" in facts_of(choice(tmp_path, host))["GPU_FLEET_EXPORTER_REASON"]


@pytest.mark.parametrize("was_replaced", [False, True])
def test_an_adopted_node_exporter_keeps_the_old_collector_whose_metrics_it_serves(tmp_path: Path, was_replaced: bool) -> None:
    entry = tmp_path / "etc/cron.d/prometheus_gpu_metrics"
    entry.parent.mkdir(parents=True)
    entry.write_text("" if was_replaced else "* * * * * root /usr/local/bin/get_gpu_metrics.sh\n")
    placed = tmp_path / "var/lib/gpu-fleet/placed"
    placed.parent.mkdir(parents=True)
    record = ("file", "/etc/cron.d/prometheus_gpu_metrics", "old-collector-replaced")
    placed.write_text("\t".join(record) + "\n" if was_replaced else "")
    facts = {
        "GPU_FLEET_PREFIX": str(tmp_path),
        "GPU_FLEET_REPLACE_OLD_COLLECTOR": "yes",
        "GPU_FLEET_NODE_EXPORTER_ADOPTED": "yes",
    }
    found = facts_of(probe("old_collector", facts))
    assert found["GPU_FLEET_OLD_COLLECTOR"] == "found", "one that was replaced comes back"
    assert "get_gpu_metrics.sh stays" in found["GPU_FLEET_OLD_COLLECTOR_NOTICE"]


# --- find-python ------------------------------------------------------------------------------------------------------


def python(directory: Path, name: str, *, is_new: bool) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\nexit {0 if is_new else 1}\n")
    (directory / name).chmod(0o755)
    return directory / name


@pytest.mark.parametrize(
    ("there", "found"),
    [
        (["usr/bin/python3", "home/me/bin/python3"], "usr/bin/python3"),
        (["usr/bin/python3.11", "home/me/bin/python3"], "usr/bin/python3.11"),
        (["usr/bin/python3, old", "usr/bin/python3.9"], "usr/bin/python3.9"),  # RHEL 8 with its python39
        (["usr/libexec/platform-python"], "usr/libexec/platform-python"),
        (["usr/bin/python3, old", "home/me/bin/python3"], "home/me/bin/python3"),
        (["usr/bin/python3, old"], ""),
        ([], ""),
    ],
)
def test_the_distributions_python_is_taken_if_it_is_new_enough(tmp_path: Path, there: list[str], found: str) -> None:
    for path in there:
        name, _, old = path.partition(", ")
        python((tmp_path / name).parent, Path(name).name, is_new=not old)
    bin = tmp_path / "home/me/bin"
    bin.mkdir(parents=True, exist_ok=True)
    (bin / "timeout").symlink_to(str(shutil.which("timeout")))
    command = [str(shutil.which("sh")), LIBEXEC / "find-python"]
    done = subprocess.run(command, env={"PATH": str(bin), "GPU_FLEET_ROOT": str(tmp_path)}, capture_output=True, text=True)
    if found:
        assert (done.returncode, done.stdout) == (0, f"{tmp_path}/{found}\n")
    else:
        assert (done.returncode, done.stdout) == (UNSUPPORTED, "")
        assert "no Python 3.8 or newer" in done.stderr


def test_the_python_of_the_stack_file_is_taken_or_none(tmp_path: Path) -> None:
    command = [str(shutil.which("sh")), LIBEXEC / "find-python"]
    for name, is_new in (("new", True), ("old", False)):
        given = python(tmp_path, name, is_new=is_new)
        environment = {"PATH": os.environ["PATH"], "GPU_FLEET_PYTHON": str(given)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == ((0, f"{given}\n") if is_new else (UNSUPPORTED, ""))
    assert f"{given}, which was given" in done.stderr


# --- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("harm", "found"),
    [("", True), ("chown 1000 home/kubernetes", False), ("chmod 0775 home/kubernetes/bin", False), ("chmod 0757 .", True)],
)
def test_gkes_tool_below_home_is_run_only_where_root_alone_can_have_put_it(tmp_path: Path, harm: str, found: bool) -> None:
    place = tmp_path / "home/kubernetes/bin/nvidia/bin"
    place.mkdir(parents=True)
    (place / "only-on-gke").write_text("#!/bin/sh\n")
    (place / "only-on-gke").chmod(0o755)
    subprocess.run(["sh", "-c", harm], cwd=tmp_path, check=True)
    tools = Tools(None, {"PATH": os.environ["PATH"], "GPU_FLEET_ROOT": str(tmp_path)})
    if found:
        assert tools.find("only-on-gke") == str(place / "only-on-gke")
    else:
        with pytest.raises(CollectError, match="this host has no only-on-gke"):
            tools.find("only-on-gke")


# --- kernel_log ------------------------------------------------------------------------------------------------

MACHINE = "6c5b7a7d8f1e4a0f9d5e1c2b3a495867"


@pytest.mark.parametrize(
    ("directories", "files", "source", "file"),
    [
        (["run/systemd/journal", f"run/log/journal/{MACHINE}"], ["var/log/kern.log"], "journal", ""),
        ([f"var/log/journal/{MACHINE}"], ["var/log/kern.log"], "file", "var/log/kern.log"),
        # Of a machine whose ID was changed since journald started, as for clones: what reads the journal looks for this one's.
        (["run/systemd/journal", "var/log/journal/0123"], ["var/log/kern.log"], "file", "var/log/kern.log"),
        (["run/systemd/journal", "var/log/journal"], ["var/log/messages"], "file", "var/log/messages"),  # Storage=none
        ([], ["var/log/messages"], "file", "var/log/messages"),
        ([], [], "none", ""),
    ],
)
def test_kernel_messages_are_read_where_they_are(
    tmp_path: Path, directories: list[str], files: list[str], source: str, file: str
) -> None:
    for directory in [*directories, "var/log", "etc"]:
        (tmp_path / directory).mkdir(parents=True, exist_ok=True)
    for name in files:
        (tmp_path / name).touch()
    (tmp_path / "etc/machine-id").write_text(f"{MACHINE}\n")
    found = facts_of(probe("kernel_log", {"GPU_FLEET_ROOT": str(tmp_path)}))
    assert found["GPU_FLEET_KERNEL_LOG_SOURCE"] == source
    assert found["GPU_FLEET_KERNEL_LOG_FILE"] == (str(tmp_path / file) if file else "")


@pytest.mark.parametrize(("configured", "source"), [("journal", "journal"), ("/somewhere/kernel.log", "file")])
def test_the_stack_file_can_name_the_source(configured: str, source: str) -> None:
    assert facts_of(probe("kernel_log", {"GPU_FLEET_KERNEL_LOG": configured}))["GPU_FLEET_KERNEL_LOG_SOURCE"] == source


def test_a_source_that_is_neither_is_refused() -> None:
    done = probe("kernel_log", {"GPU_FLEET_KERNEL_LOG": "syslog"})
    assert done.code == UNSUPPORTED and "neither auto nor journal nor an absolute path" in done.reason


# --- old_collector ---------------------------------------------------------------------------------------------------

CRON = "* * * * * root /usr/local/bin/get_gpu_metrics.sh\n"


def old_collector(prefix: Path, *, replace: str = "no") -> dict[str, str]:
    return facts_of(probe("old_collector", {"GPU_FLEET_PREFIX": str(prefix), "GPU_FLEET_REPLACE_OLD_COLLECTOR": replace}))


def written(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize("replace", ["no", "yes"])
def test_a_host_without_an_old_collector_has_nothing_to_report(tmp_path: Path, replace: str) -> None:
    written(tmp_path / "etc/cron.d/backup", "* * * * * root /usr/local/bin/backup\n")
    assert old_collector(tmp_path, replace=replace) == {"GPU_FLEET_OLD_COLLECTOR": "none"}


def test_an_old_collector_is_offered_to_be_replaced_and_stays_replaced(tmp_path: Path) -> None:
    entry = tmp_path / "etc/cron.d/prometheus_gpu_metrics"
    written(entry, CRON)
    found = old_collector(tmp_path)
    assert found["GPU_FLEET_OLD_COLLECTOR"] == "found"
    assert "(/etc/cron.d/prometheus_gpu_metrics)" in found["GPU_FLEET_OLD_COLLECTOR_NOTICE"]
    assert "replaceOldCollector: true" in found["GPU_FLEET_OLD_COLLECTOR_NOTICE"]
    assert old_collector(tmp_path, replace="yes") == {"GPU_FLEET_OLD_COLLECTOR": "replaced"}
    entry.write_text("# ours\n")
    written(tmp_path / "var/lib/gpu-fleet/placed", "file\t/etc/cron.d/prometheus_gpu_metrics\tsha256\n")
    assert old_collector(tmp_path, replace="yes") == {"GPU_FLEET_OLD_COLLECTOR": "replaced"}
    assert old_collector(tmp_path) == {"GPU_FLEET_OLD_COLLECTOR": "found"}, "without the word the original comes back"


def test_a_line_in_a_crontab_of_others_is_left_and_named(tmp_path: Path) -> None:
    written(tmp_path / "var/spool/cron/crontabs/root", CRON)
    found = old_collector(tmp_path, replace="yes")
    assert found["GPU_FLEET_OLD_COLLECTOR"] == "none"
    assert "from /var/spool/cron/crontabs/root: remove that line by hand" in found["GPU_FLEET_OLD_COLLECTOR_NOTICE"]


@pytest.mark.parametrize("replace", ["no", "yes"])
def test_a_service_that_runs_it_instead_of_cron_is_left_and_named(tmp_path: Path, replace: str) -> None:
    """The guide proposes a timer of systemd for more than one reading a minute."""
    written(tmp_path / "etc/systemd/system/gpu-metrics.service", "[Service]\nExecStart=/usr/local/bin/get_gpu_metrics.sh\n")
    written(tmp_path / "etc/systemd/system/gpu-metrics.timer", "[Timer]\nOnUnitActiveSec=15s\n")
    found = old_collector(tmp_path, replace=replace)
    assert found["GPU_FLEET_OLD_COLLECTOR"] == "none", "nothing that we replace"
    notice = found["GPU_FLEET_OLD_COLLECTOR_NOTICE"]
    assert "from /etc/systemd/system/gpu-metrics.service: disable that unit and its timer by hand" in notice
