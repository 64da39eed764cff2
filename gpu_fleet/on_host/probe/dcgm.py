"""Can dcgm-exporter run on this host, how, and what is installed for it?

In a container of Docker or Podman, or from DCGM's packages (GPU_FLEET_DCGM_SOURCE). Where the stack file has
`dcgm: {install: true}` (GPU_FLEET_DCGM_INSTALL), what that needs is installed, unless the host already runs containers or guests
by other means.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import NamedTuple

from ..distribution import family
from ..files import text_of
from . import runtimes
from .host import Host
from .install import obstacle

UNSUPPORTED, UNREACHABLE = 12, 13
REGISTRY_S = 10  # to connect; the whole choice must take well under a minute even where no server responds
OTHERS_S = 30  # to look for other runtimes: a home may be on a server that does not respond
TOOLKIT = "nvidia-container-toolkit"
_TOOLKIT_SETTINGS = "/etc/nvidia-container-runtime/config.toml"
PACKAGES = {"docker": "docker.io", "podman": "podman"}
# Codes of curl and wget for a server that nobody reaches. Any response counts, even a refusal: the pull shows if it suffices.
_UNREACHED = {"curl": (5, 6, 7, 28, None), "wget": (4, None)}


class Plan(NamedTuple):
    """`run`: docker, podman, packages or none. `runtime`: which of docker and podman we install, or none. `repository`: the
    family whose package manager gets NVIDIA's repository, or none. `has_to_prepare`: see start-container-toolkit."""

    run: str = "none"
    runtime: str = "none"
    installs_toolkit: bool = False
    repository: str = "none"
    has_to_prepare: bool = False


class Lack(Exception):
    """What this host lacks for dcgm-exporter, in words. `code`: of the refusal where the stack file asks for it."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(what)
        self.code = code


def plan(host: Host) -> Plan:
    """Raises Lack."""
    if host.prefix:
        raise Lack(UNSUPPORTED, "an installation on the whole host (this one is below a prefix)")
    if os.geteuid() != 0:
        raise Lack(UNSUPPORTED, "root privileges to start it")
    if not host.path("/run/systemd/system").is_dir():
        raise Lack(UNSUPPORTED, "systemd to run it")
    if host.setting("DCGM_SOURCE", "image") == "packages":
        # From the repository that the driver was installed from, or another one of the host.
        why = "" if host.has("dcgm-exporter") else obstacle(host, "", ["datacenter-gpu-manager-exporter"])
        if why:
            raise Lack(UNREACHABLE, f"DCGM's packages, which cannot be installed here ({why})")
        return Plan(run="packages")
    run, runtime = _runtime(host)
    installs_toolkit, repository = _toolkit(host, run, runtime)
    _expect_packages(host, runtime, installs_toolkit, repository)
    _expect_image(host, run)
    # Podman needs a CDI specification; Docker needs a restart to detect a toolkit that was installed after it.
    return Plan(run, runtime, installs_toolkit, repository, run != "docker" or installs_toolkit)


def installed_by_us(host: Host, package: str) -> bool:
    """According to converge's records, or to a transaction whose result this run has yet to record."""
    request = text_of(host.state / "packages/request").splitlines()
    return host.has_placed("package", package) or any(line.endswith(f" install {package}") for line in request)


def _runtime(host: Host) -> tuple[str, str]:
    """What runs it, and which runtime we install or have installed."""
    named = host.setting("DCGM_RUNTIME", "auto")
    installs, lacks = "none", ""
    for run in [named] if named in PACKAGES else PACKAGES:
        if installed_by_us(host, PACKAGES[run]):
            installs = run
        if not host.has(run):
            continue
        if run == "podman":
            version = host.ask("podman", "--version").text.strip()
            if is_old(version):
                raise Lack(UNSUPPORTED, f"Podman 4.1 or newer, which supports GPUs (it has {version})")
            return run, installs
        lacks = _lacks_of_docker(host)
        if not lacks:
            return run, installs
        # A stopped one is a fault, not a reason for another choice. It may also be only a client, or a package of ours that was
        # never configured.
        if f"GPU_FLEET_DCGM_RUN={run}" in text_of(host.state / "facts").splitlines():
            if installs != "none":
                _expect_to_stand_alone(host)
            return run, installs
    if lacks:
        raise Lack(UNSUPPORTED, lacks)
    _expect_to_stand_alone(host)
    run = _installable(host) if _may_install(host) else "none"
    if run == "none":
        raise Lack(UNSUPPORTED, f"Docker or Podman{_offer(host)}")
    return run, run


def _toolkit(host: Host, run: str, runtime: str) -> tuple[bool, str]:
    """Whether we install the toolkit or have installed it, and which family's packages of it need our repository file: apt
    refuses to read any source while two of them name one repository with different keys."""
    has_toolkit = any(map(host.has, ("nvidia-ctk", "nvidia-container-runtime-hook")))
    is_ours = installed_by_us(host, TOOLKIT)
    if has_toolkit and not is_ours:
        return False, "none"
    repository = "none" if _names_repository(host) else _family(host)
    if has_toolkit:
        return True, repository
    if not _may_install(host) or _family(host) == "unknown":
        raise Lack(UNSUPPORTED, f"the NVIDIA Container Toolkit{_offer(host)}")
    other = _others(host, "Kubernetes", "CRI-O")
    if other:
        raise Lack(UNSUPPORTED, f"the NVIDIA Container Toolkit; gpu-fleet installs nothing beside what is here: {other}")
    if run == "docker" and runtime == "none":
        _expect_a_restart(host)
    return True, repository


def _expect_a_restart(host: Host) -> None:
    """Docker detects the toolkit when it starts, and a restart would stop existing containers, and services that require it."""
    lacks = "the NVIDIA Container Toolkit, for which Docker would have to be restarted"
    running = host.ask("docker", "info", "--format", "{{.ContainersRunning}} {{.LiveRestoreEnabled}}").text.strip()
    if running and not running.startswith("0 ") and not running.endswith(" true"):
        raise Lack(UNSUPPORTED, f"{lacks} while {running.rpartition(' ')[0]} containers run in it")
    properties = ("--property=RequiredBy", "--property=BoundBy", "--property=ConsistsOf", "--value")
    bound = host.ask("systemctl", "show", *properties, "docker.service").text.split()
    bound = [name for name in bound if name != "docker.socket" and not name.startswith("gpu-fleet-")]
    if bound:
        raise Lack(UNSUPPORTED, f"{lacks}, and with it {' '.join(bound[:3])}")


def _expect_packages(host: Host, runtime: str, installs_toolkit: bool, repository: str) -> None:
    """Raises Lack where something that is missing cannot be installed."""
    missing = [PACKAGES[runtime]] if runtime != "none" and not host.has(runtime) else []
    lacks = "a container runtime" if missing else ""
    if installs_toolkit and not any(map(host.has, ("nvidia-ctk", "nvidia-container-runtime-hook"))):
        missing.append(TOOLKIT)
        lacks = f"{lacks}{' and ' if lacks else ''}the NVIDIA Container Toolkit"
    if not missing:
        return
    url = f"{host.setting('TOOLKIT_REPOSITORY')}/stable"
    # The architecture as apt and dnf write it in a repository's URL.
    urls = {"none": "", "debian": f"{url}/deb/$(ARCH)"}
    why = obstacle(host, urls.get(repository, f"{url}/rpm/{os.uname().machine}"), missing)
    if why:
        raise Lack(UNREACHABLE, f"{lacks}, which cannot be installed here ({why})")


def _expect_image(host: Host, run: str) -> None:
    """Is the image present, is it in the bundle's artifacts, or does its registry respond? Raises Lack."""
    image = host.setting("DCGM_IMAGE")
    if host.setting("DCGM_ARCHIVE") or host.ask(run, "image", "inspect", image).status == 0:
        return
    registry = image.partition("/")[0]
    # Docker has proxy settings of its own.
    proxy = "" if run == "podman" else host.ask("docker", "info", "--format", "{{.HTTPSProxy}}").text.strip()
    url = f"https://{registry}/v2/"
    if host.has("curl"):
        limits = ("--connect-timeout", str(REGISTRY_S), "--max-time", "20", *(("--proxy", proxy) if proxy else ()))
        client = ("curl", "-sS", "-o", "/dev/null", *limits, url)
    else:
        settings = ("-e", f"https_proxy={proxy}") if proxy else ()
        client = ("wget", "-q", "-T", str(REGISTRY_S), "-t", "1", *settings, "-O", "/dev/null", url)
    answer = host.ask(*client, within_s=20 + 2, with_stderr=True)
    if answer.status in _UNREACHED[client[0]]:
        said = f" ({answer.text.strip()})" if client[0] == "curl" else ""
        raise Lack(UNREACHABLE, f"the image: its registry {registry} does not answer{said}")


def is_old(version: str) -> bool:
    """Old versions of Podman, such as Ubuntu 22.04's, do not know `--device nvidia.com/gpu=all`.

    Source: NVIDIA Container Toolkit, "Support for Container Device Interface", Podman 4.1.0 or newer; read 2026-11-21.
    """
    found = re.match(r"podman version (\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) < (4, 1)


def _lacks_of_docker(host: Host) -> str:
    """What it lacks to run the exporter; empty where it can.

    podman-docker emulates every docker command, but has no docker.service. Docker of a snap sees few of the host's files, so the
    list of counters cannot be mounted; a rootless one, which a context of root's may name, gives no GPUs away; and with
    no-cgroups, which rootless Docker needs, no other Docker does (docker-snap issue 36, dcgm-exporter issue 440)."""
    is_podman = host.ask("docker", "--version").text.startswith("podman")
    answer = host.ask("docker", "info", "--format", "{{.DockerRootDir}} {{.SecurityOptions}}", within_s=20)
    if is_podman or answer.status != 0:
        return "a running Docker"
    if answer.text.startswith("/var/snap/"):
        return "a Docker that sees the host's files; this one is a snap"
    if "name=rootless" in answer.text:
        return "a Docker that runs as root; this one is rootless"
    if re.search(r"^\s*no-cgroups\s*=\s*true", host.text(_TOOLKIT_SETTINGS), re.MULTILINE):
        return f"a Docker that gives GPUs to containers; {_TOOLKIT_SETTINGS} has no-cgroups = true"
    return ""


def _expect_to_stand_alone(host: Host) -> None:
    """Would a runtime of ours be the only one on this host?"""
    other = _others(host)
    if other:
        raise Lack(UNSUPPORTED, f"Docker or Podman; gpu-fleet installs none beside what is here: {other}")


def _others(host: Host, *names: str) -> str:
    """What else runs containers or guests here, or is set up to."""
    found: list[str] = []
    # Not a signal: a home on a server that does not respond holds whoever looks at it.
    look = threading.Thread(target=lambda: found.append(runtimes.first_sign(host, *names)), daemon=True)
    look.start()
    look.join(OTHERS_S)
    return found[0] if found else "something that could not be determined"


def _may_install(host: Host) -> bool:
    return host.setting("DCGM_INSTALL", "no") == "yes"


def _offer(host: Host) -> str:
    """What to set in the stack file where only that is missing."""
    if _may_install(host) or _installable(host) == "none":
        return ""
    return ", which gpu-fleet installs only with dcgm: {install: true}"


def _installable(host: Host) -> str:
    """The distribution's own runtime; none where the distribution is not supported, or only Docker's own repository has it."""
    named = host.setting("DCGM_RUNTIME", "auto")
    if _family(host) == "debian":
        return "podman" if named == "podman" else "docker"
    return "podman" if _family(host) == "rhel" and named != "docker" else "none"


def _family(host: Host) -> str:
    return family(host.text("/etc/os-release"))


def _names_repository(host: Host) -> bool:
    """Does a source of the host's own name NVIDIA's repository?"""
    address = f"{host.setting('TOOLKIT_REPOSITORY').rpartition('://')[2]}/stable/"
    files = [host.path("/etc/apt/sources.list")]
    for directory in ("/etc/apt/sources.list.d", "/etc/yum.repos.d"):
        files += [Path(path, name) for path, _, names in os.walk(host.path(directory)) for name in names]
    return any(address in text_of(file) for file in files if file.name not in ("gpu-fleet-nvidia.list", "gpu-fleet-nvidia.repo"))
