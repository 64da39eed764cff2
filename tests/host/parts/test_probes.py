"""The probes that look at a host before anything is placed: is the driver there, which exporter, where are kernel messages."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from components.host.part import ROOTFS
from tests.host.parts.textfiles import tool

LIBEXEC = ROOTFS / "opt/gpu-fleet/libexec"
NO_DRIVER, WRONG_COUNT, UNSUPPORTED = 10, 11, 12  # components/host/converge/README.md

EIGHT = "".join(f"GPU {index}: NVIDIA H100 80GB HBM3 (UUID: GPU-{index})\n" for index in range(8))
MIG = "GPU 0: NVIDIA A100 (UUID: GPU-0)\n  MIG 3g.40gb     Device  0: (UUID: MIG-0)\n  MIG 1g.10gb     Device  1: (UUID: MIG-1)\n"
LOST = "Unable to determine the device handle for GPU0000:CB:00.0: Unknown Error\n"


def probe(name: str, facts: dict[str, str], *, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run as converge does: with `sh`, from a tree in which no file is executable yet."""
    search = f"{path}:/usr/bin:/bin" if path else os.environ["PATH"]
    return subprocess.run(["sh", LIBEXEC / name], env={"PATH": search, **facts}, capture_output=True, text=True, timeout=60)


def facts_of(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def nvidia_smi(directory: Path, listing: str, *, code: int = 0) -> dict[str, str]:
    version = "DRIVER version      : 590.48.01\nCUDA Version        : 13.1\n"
    tool(directory, "nvidia-smi", {"-L": listing, "--query-gpu=driver_version": "590.48.01\n", "--version": version}, code=code)
    return {"GPU_FLEET_TOOL_PATH": str(directory)}


# --- check-driver -----------------------------------------------------------------------------------------------------


def test_a_healthy_host_tells_its_gpus_and_versions(tmp_path: Path) -> None:
    found = facts_of(probe("check-driver", {**nvidia_smi(tmp_path / "a b", EIGHT), "GPU_FLEET_GPUS": "8"}))
    assert found == {
        "GPU_VENDOR": "nvidia",
        "GPU_COUNT": "8",
        "GPU_MODELS": "8 x NVIDIA H100 80GB HBM3",
        "GPU_DRIVER_VERSION": "590.48.01",
        "CUDA_VERSION": "13.1",
    }


def test_mig_instances_are_not_counted_as_gpus(tmp_path: Path) -> None:
    assert facts_of(probe("check-driver", {**nvidia_smi(tmp_path, MIG), "GPU_FLEET_GPUS": "1"}))["GPU_COUNT"] == "1"


def test_different_models_are_counted_apart(tmp_path: Path) -> None:
    listing = EIGHT + "GPU 8: NVIDIA A100-SXM4-80GB (UUID: GPU-8)\n"
    found = facts_of(probe("check-driver", nvidia_smi(tmp_path, listing)))
    assert found["GPU_MODELS"] == "1 x NVIDIA A100-SXM4-80GB, 8 x NVIDIA H100 80GB HBM3"


def test_a_missing_gpu_stops_with_both_numbers_and_what_the_tool_said(tmp_path: Path) -> None:
    listing = EIGHT.replace("GPU 3: NVIDIA H100 80GB HBM3 (UUID: GPU-3)\n", LOST)
    done = probe("check-driver", {**nvidia_smi(tmp_path, listing, code=15), "GPU_FLEET_GPUS": "8"})
    assert (done.returncode, done.stdout) == (WRONG_COUNT, "")
    assert "gpus: 8" in done.stderr and "lists 7" in done.stderr and LOST.strip() in done.stderr


def test_a_gpu_too_many_is_a_mistake_in_the_stack_file(tmp_path: Path) -> None:
    done = probe("check-driver", {**nvidia_smi(tmp_path, EIGHT), "GPU_FLEET_GPUS": "4"})
    assert done.returncode == WRONG_COUNT and "correct `gpus` in the stack file" in done.stderr
    assert "said" not in done.stderr, "a tool that said nothing beside its list is not quoted"


@pytest.mark.parametrize(
    ("answer", "next_step"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", "modprobe nvidia"),
        ("Failed to initialize NVML: Driver/library version mismatch\n", "reboot"),
        ("Failed to initialize NVML: Unknown Error\n", "in a container"),
        ("No devices were found\n", "lspci"),
        (LOST, "journalctl"),
    ],
)
def test_a_driver_that_does_not_work_says_what_to_do_next(tmp_path: Path, answer: str, next_step: str) -> None:
    done = probe("check-driver", nvidia_smi(tmp_path, answer, code=9))
    assert done.returncode == NO_DRIVER and next_step in done.stderr and answer.strip() in done.stderr


@pytest.mark.parametrize(("vendor", "sought"), [("auto", "nvidia-smi, rocm-smi or amd-smi"), ("amd", "rocm-smi or amd-smi")])
def test_a_host_without_any_driver_says_what_was_looked_for(tmp_path: Path, vendor: str, sought: str) -> None:
    done = probe("check-driver", {"GPU_FLEET_VENDOR": vendor}, path=tmp_path)
    assert done.returncode == NO_DRIVER and f"no GPU driver: {sought}" in done.stderr


def test_old_drivers_tell_their_cuda_version_in_the_table_only(tmp_path: Path) -> None:
    answers = {"-L": EIGHT, "--query-gpu=driver_version": "418.67\n", "--version": "ERROR: Option --version is not recognized.\n"}
    tool(tmp_path, "nvidia-smi", answers, default="| NVIDIA-SMI 418.67  Driver Version: 418.67  CUDA Version: 10.1 |")
    assert facts_of(probe("check-driver", {"GPU_FLEET_TOOL_PATH": str(tmp_path)}))["CUDA_VERSION"] == "10.1"


def test_the_named_directory_is_searched_before_the_path(tmp_path: Path) -> None:
    nvidia_smi(tmp_path / "path", EIGHT)
    named = nvidia_smi(tmp_path / "named", MIG)
    assert facts_of(probe("check-driver", named, path=tmp_path / "path"))["GPU_COUNT"] == "1"


def test_amd_gpus_are_counted_by_rocm_smi(tmp_path: Path) -> None:
    listing = "device,Card Series,Card Model\n" + "".join(f"card{index},AMD Instinct MI300X,0x74a1\n" for index in range(4))
    tool(tmp_path / "bin", "rocm-smi", {"--showproductname --csv": listing})
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    (tmp_path / "sys/module/amdgpu/version").write_text("6.8.5\n")
    (tmp_path / "opt/rocm/.info").mkdir(parents=True)
    (tmp_path / "opt/rocm/.info/version").write_text("6.2.0-66\n")
    facts = {"GPU_FLEET_TOOL_PATH": str(tmp_path / "bin"), "GPU_FLEET_ROOT": str(tmp_path), "GPU_FLEET_GPUS": "4"}
    assert facts_of(probe("check-driver", facts, path=tmp_path / "none")) == {
        "GPU_VENDOR": "amd",
        "GPU_COUNT": "4",
        "GPU_MODELS": "4 x AMD Instinct MI300X",
        "GPU_DRIVER_VERSION": "6.8.5",
        "ROCM_VERSION": "6.2.0-66",
    }


def test_the_driver_of_the_kernel_itself_is_told_by_rocm_smi(tmp_path: Path) -> None:
    answers = {
        "--showproductname --csv": "device,Card Series\ncard0,AMD Instinct MI300X\n",
        "--showdriverversion --csv": "device,Driver version\nsystem,6.8.5\n",
    }
    tool(tmp_path / "bin", "rocm-smi", answers)
    found = facts_of(probe("check-driver", {"GPU_FLEET_ROOT": str(tmp_path)}, path=tmp_path / "bin"))
    assert (found["GPU_DRIVER_VERSION"], found["ROCM_VERSION"]) == ("6.8.5", "unknown")


def test_amd_gpus_are_counted_by_amd_smi_where_there_is_no_rocm_smi(tmp_path: Path) -> None:
    tool(tmp_path, "amd-smi", {"list --csv": "gpu,gpu_bdf,gpu_uuid\n0,0000:05:00.0,a\n1,0000:26:00.0,b\n"})
    assert facts_of(probe("check-driver", {"GPU_FLEET_VENDOR": "amd"}, path=tmp_path))["GPU_COUNT"] == "2"


# --- choose-exporter --------------------------------------------------------------------------------------------------


def machine(
    root: Path, *, virt: str = "", docker: bool = False, toolkit: bool = True, uid: int = 0, vendor: str = "nvidia"
) -> dict[str, str]:
    """A host as choose-exporter sees it. `virt`: "container=docker", "vm=kvm" or nothing for bare metal."""
    kind, _, name = virt.partition("=")
    tools = root / "bin"
    tools.mkdir(parents=True)
    scripts = {
        "systemd-detect-virt": f'[ "$1" = "--{kind}" ] && echo "{name}"',
        "docker": "exit 0" if docker else "exit 1",
        "id": f"echo {uid}",
    }
    if toolkit:
        scripts["nvidia-ctk"] = "exit 0"
    for script, body in scripts.items():
        (tools / script).write_text(f"#!/bin/sh\n{body}\n")
        (tools / script).chmod(0o755)
    return {"GPU_FLEET_ROOT": str(root), "GPU_VENDOR": vendor}


@pytest.mark.parametrize(
    ("host", "mode", "reason"),
    [
        ({"docker": True}, "dcgm-exporter", "bare metal with Docker"),
        ({"virt": "vm=kvm", "docker": True}, "dcgm-exporter", "a kvm VM with Docker"),
        ({"virt": "vm=kvm"}, "nvidia_gpu_exporter", "a kvm VM without a running Docker, which dcgm-exporter needs"),
        ({"docker": True, "toolkit": False}, "nvidia_gpu_exporter", "bare metal without the NVIDIA container toolkit"),
        ({"virt": "container=lxc", "docker": True}, "nvidia_gpu_exporter", "inside a container (lxc)"),
        ({"docker": True, "uid": 1000}, "nvidia_gpu_exporter", "not root"),
        ({"vendor": "amd", "docker": True}, "textfile", "AMD GPUs"),
    ],
)
def test_the_host_decides_and_says_why(tmp_path: Path, host: dict, mode: str, reason: str) -> None:
    found = facts_of(probe("choose-exporter", machine(tmp_path, **host), path=tmp_path / "bin"))
    assert found["GPU_FLEET_EXPORTER_MODE"] == mode
    assert reason in found["GPU_FLEET_EXPORTER_REASON"]


@pytest.mark.parametrize(("file", "kind"), [(".dockerenv", "docker"), ("run/.containerenv", "podman")])
def test_a_container_without_systemd_is_known_by_its_files(tmp_path: Path, file: str, kind: str) -> None:
    host = machine(tmp_path, docker=True)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    found = facts_of(probe("choose-exporter", host, path=tmp_path / "bin"))
    assert found["GPU_FLEET_EXPORTER_REASON"].startswith(f"inside a container ({kind})")


def test_the_board_says_that_a_machine_is_virtual_where_systemd_does_not(tmp_path: Path) -> None:
    host = machine(tmp_path, docker=True)
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    (tmp_path / "sys/class/dmi/id/sys_vendor").write_text("QEMU\n")
    found = facts_of(probe("choose-exporter", host, path=tmp_path / "bin"))
    assert found["GPU_FLEET_EXPORTER_REASON"] == "a VM (DMI: QEMU) with Docker"


@pytest.mark.parametrize("wish", ["dcgm-exporter", "nvidia_gpu_exporter", "textfile"])
def test_a_wish_in_the_stack_file_wins(tmp_path: Path, wish: str) -> None:
    host = {**machine(tmp_path, docker=True), "GPU_FLEET_EXPORTER": wish}
    assert facts_of(probe("choose-exporter", host, path=tmp_path / "bin")) == {
        "GPU_FLEET_EXPORTER_MODE": wish,
        "GPU_FLEET_EXPORTER_REASON": "the stack file asks for it",
    }


@pytest.mark.parametrize(
    ("host", "wish", "why"),
    [
        ({"vendor": "amd"}, "nvidia_gpu_exporter", "this host has AMD ones"),
        ({}, "dcgm-exporter", "this host lacks a running Docker"),
        ({"docker": True, "toolkit": False}, "dcgm-exporter", "this host lacks the NVIDIA container toolkit"),
        ({}, "node_exporter", "none of auto, dcgm-exporter, nvidia_gpu_exporter, textfile"),
    ],
)
def test_a_wish_that_cannot_be_met_stops_before_anything_is_placed(tmp_path: Path, host: dict, wish: str, why: str) -> None:
    done = probe("choose-exporter", {**machine(tmp_path, **host), "GPU_FLEET_EXPORTER": wish}, path=tmp_path / "bin")
    assert (done.returncode, done.stdout) == (UNSUPPORTED, "")
    assert why in done.stderr


# --- choose-kernel-log ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("directories", "files", "source", "file"),
    [
        (["run/systemd/journal", "run/log/journal"], ["var/log/kern.log"], "journal", ""),
        (["var/log/journal"], ["var/log/kern.log"], "file", "var/log/kern.log"),
        ([], ["var/log/messages"], "file", "var/log/messages"),
        ([], [], "none", ""),
    ],
)
def test_kernel_messages_are_read_where_they_are(
    tmp_path: Path, directories: list[str], files: list[str], source: str, file: str
) -> None:
    for directory in [*directories, "var/log"]:
        (tmp_path / directory).mkdir(parents=True, exist_ok=True)
    for name in files:
        (tmp_path / name).touch()
    found = facts_of(probe("choose-kernel-log", {"GPU_FLEET_ROOT": str(tmp_path)}))
    assert found["GPU_FLEET_KERNEL_LOG_SOURCE"] == source
    assert found["GPU_FLEET_KERNEL_LOG_FILE"] == (str(tmp_path / file) if file else "")


@pytest.mark.parametrize(("wish", "source"), [("journal", "journal"), ("/somewhere/kernel.log", "file")])
def test_the_stack_file_can_name_the_source(wish: str, source: str) -> None:
    assert facts_of(probe("choose-kernel-log", {"GPU_FLEET_KERNEL_LOG": wish}))["GPU_FLEET_KERNEL_LOG_SOURCE"] == source


def test_a_source_that_is_neither_is_refused() -> None:
    done = probe("choose-kernel-log", {"GPU_FLEET_KERNEL_LOG": "syslog"})
    assert done.returncode == UNSUPPORTED and "neither auto nor journal nor an absolute path" in done.stderr
