"""Chooses this host's GPU exporter, with the reason, for the stack's outputs.

    set in the stack file -> that one       AMD -> textfile       container -> nvidia_gpu_exporter
    bare metal or VM -> dcgm-exporter where it can run (dcgm.py), and otherwise nvidia_gpu_exporter

Needs the facts of driver.py. GPU_FLEET_EXPORTER: auto, dcgm-exporter, nvidia_gpu_exporter or textfile.
"""

from __future__ import annotations

import re
from typing import Mapping

from .dcgm import UNSUPPORTED, Lack, Plan, installed_by_us, plan
from .host import Host, Refusal

DCGM, NVIDIA, TEXTFILE = "dcgm-exporter", "nvidia_gpu_exporter", "textfile"
_DOCKER_SETTINGS = "/etc/docker/daemon.json"
_HYPERVISORS = re.compile("QEMU|KVM|VMware|Xen|VirtualBox|Virtual Machine|Google Compute Engine|Amazon EC2")


def probe(host: Host) -> Mapping[str, str]:
    """GPU_FLEET_EXPORTER_MODE and _REASON, and what parts/exporter_choice.py lists. Raises Refusal: 12, the requested exporter
    cannot run on this host; 13, what it needs cannot be downloaded."""
    wanted = host.setting("EXPORTER", "auto")
    if wanted not in ("auto", DCGM, NVIDIA, TEXTFILE):
        raise Refusal(UNSUPPORTED, f"exporter: {wanted} is not one of auto, {DCGM}, {NVIDIA}, {TEXTFILE}.")
    if wanted == TEXTFILE:
        return _facts(host, TEXTFILE, "set in the stack file")
    if host.environment.get("GPU_VENDOR") == "amd":
        if wanted == "auto":
            return _facts(host, TEXTFILE, "AMD GPUs, which are read through ROCm's tools")
        what = f"exporter: {wanted} reads only NVIDIA GPUs, and this host has AMD GPUs. Set exporter: textfile, or omit it."
        raise Refusal(UNSUPPORTED, what)
    if wanted == NVIDIA:
        return _facts(host, NVIDIA, "set in the stack file")
    inside = container(host) if wanted == "auto" else ""
    if inside:
        return _facts(host, NVIDIA, f"inside a container ({inside}), where dcgm-exporter's own container cannot run")
    try:
        found = plan(host)
    except Lack as lack:
        if wanted == "auto":
            return _facts(host, NVIDIA, f"{machine(host)} without {lack}")
        what = f"exporter: dcgm-exporter cannot run here: this host lacks {lack}."
        raise Refusal(lack.code, what, "Next: fix that, or set exporter: nvidia_gpu_exporter.") from None
    if wanted == DCGM:
        return _facts(host, DCGM, f"set in the stack file; run by {_means(found)}", found)
    return _facts(host, DCGM, f"{machine(host)} with {_means(found)}", found)


def _facts(host: Host, mode: str, reason: str, found: Plan | None = None) -> Mapping[str, str]:
    """Without a plan nothing is installed."""
    found = found or Plan()
    return {
        "GPU_FLEET_EXPORTER_MODE": mode,
        "GPU_FLEET_EXPORTER_REASON": reason,
        "GPU_FLEET_DCGM_RUN": found.run,
        "GPU_FLEET_INSTALL_RUNTIME": found.runtime,
        "GPU_FLEET_INSTALL_TOOLKIT": _word(found.installs_toolkit),
        "GPU_FLEET_PREPARE_CONTAINERS": _word(found.has_to_prepare),
        "GPU_FLEET_INSTALL_REPOSITORY": found.repository,
        "GPU_FLEET_DOCKER_SETTINGS": _word(_has_docker_settings(host, found)),
    }


def _has_docker_settings(host: Host, found: Plan) -> bool:
    """Docker gets settings of ours if we install it, for as long as it is there. Not one that an earlier release installed
    without them: other containers may use its network."""
    if installed_by_us(host, "docker.io"):
        return host.has_placed("file", _DOCKER_SETTINGS)
    return found.runtime == "docker"


def _means(found: Plan) -> str:
    """ "Docker", "Podman, installed by gpu-fleet" or "DCGM's packages"."""
    if found.run == "packages":
        return "DCGM's packages"
    by = ", installed by gpu-fleet" if found.runtime != "none" else ""
    if not by and found.installs_toolkit:
        by = " and the NVIDIA Container Toolkit, installed by gpu-fleet"
    return f"{found.run.capitalize()}{by}"


def container(host: Host) -> str:
    """The kind of container this is, or nothing. systemd-detect-virt knows the markers that engines leave on purpose; without it
    they are checked here. Pods have none of them, so the other signs of a pod are always checked."""
    if host.has("systemd-detect-virt"):
        found = host.ask("systemd-detect-virt", "--container")
        kind = found.text.strip() if found.status == 0 else ""
    else:
        kind = _marker(host)
    return kind or _pod(host)


def _marker(host: Host) -> str:
    if host.path("/.dockerenv").exists():
        return "docker"
    if host.path("/run/.containerenv").exists():
        return "podman"
    named = host.text("/run/host/container-manager") or host.text("/run/systemd/container")
    of_init = re.search(r"(?:^|\0)container=([^\0]+)", host.text("/proc/1/environ"))
    return named.strip() or (of_init[1] if of_init else "")


def _pod(host: Host) -> str:
    if host.environment.get("KUBERNETES_SERVICE_HOST") or host.path("/var/run/secrets/kubernetes.io").is_dir():
        return "kubernetes"
    group = re.search(r".*(docker|kubepods|libpod|lxc|containerd)[/.:-]", host.text("/proc/1/cgroup"))
    if group:
        return group[1]
    roots = [line.split()[2] for line in host.text("/proc/mounts").splitlines() if line.split()[1:2] == ["/"]]
    # A container engine's overlay. A machine that boots from an overlay (live or diskless) runs systemd or another init system.
    if roots[-1:] == ["overlay"] and not host.path("/run/systemd/system").is_dir():
        return "its root file system is an overlay"
    return ""


def machine(host: Host) -> str:
    """ "a kvm VM (DMI: QEMU ...)" or "bare metal (DMI: ...)"."""
    names = (host.text(f"/sys/class/dmi/id/{name}").strip() for name in ("sys_vendor", "product_name"))
    board = " ".join(name for name in names if name)
    detected = host.ask("systemd-detect-virt", "--vm")
    kind = "a VM" if _HYPERVISORS.search(board) else "bare metal"
    if detected.status == 0:
        kind = f"a {detected.text.strip()} VM"
    return f"{kind} (DMI: {board})" if board else kind


def _word(is_so: bool) -> str:
    return "yes" if is_so else "no"
