"""What still uses the Docker or Podman that a part installed, its toolkit or its settings. Our own containers have been removed
by then. Where an installed engine does not respond, the use is unknown, and there is no answer."""

from __future__ import annotations

import os
import re
from typing import Callable, Iterable, Iterator

from ..files import text_of
from .host import Host, Refusal
from .runtimes import first_sign

_TOOLKIT = re.compile(r"nvidia-(container-runtime|container-toolkit|ctk|cdi-hook)")
_CONFIGURED = ("/etc/containerd", "/etc/crio", "/etc/docker", "/etc/containers", "/etc/cdi", "/etc/enroot")
_AT_A_TIME = 100
_BOUND = ("--property=RequiredBy", "--property=WantedBy", "--property=BoundBy", "--value")


def probe(host: Host, part: str) -> str:
    """The first use of what this part has placed, or nothing. Raises Refusal."""
    if part == "container-toolkit":
        return _first(_of_the_toolkit(host))
    if part == "container-runtime-settings":
        return "Docker stays" if host.has("dockerd") else ""
    return _first(_of_an_engine(host, part.rpartition("-")[2]))


def _of_the_toolkit(host: Host) -> Iterator[str]:
    """Containers, and whatever else is configured with its programs."""
    for engine in ("docker", "podman"):
        if not host.has(engine):
            continue
        containers = _listed(host, engine, "container", "ls", "--all").split()
        # Some at a time: a container takes 10 kB, and as much more as its labels have.
        for at in range(0, len(containers), _AT_A_TIME):
            details = host.ask(engine, "container", "inspect", *containers[at : at + _AT_A_TIME], cut=True)
            if re.search('"gpu"|nvidia', details.text, re.IGNORECASE):
                yield "existing containers use it for GPU access"
            elif details.status is None:
                raise Refusal(1, f"{engine} does not describe its containers: it is unknown which of them use GPUs")
    for file in _files_of(host, _CONFIGURED):
        if _TOOLKIT.search(text_of(host.path(file))):
            yield f"{file} names it"
    yield from _may_be_used_by(first_sign(host, "Kubernetes", "CRI-O", "HPC containers"))


def _of_an_engine(host: Host, engine: str) -> Iterator[str]:
    if not host.has(engine):
        return
    for kind, arguments in (("container", ("ls", "--all")), ("image", ("ls",)), ("volume", ("ls",))):
        if _listed(host, engine, kind, *arguments):
            yield f"it still holds {kind}s"
    if engine == "podman":
        yield from _may_be_used_by(first_sign(host, "Podman"))
        return
    for find in _USERS_OF_DOCKER:
        yield from _may_be_used_by(find(host))


def _of_containerd(host: Host) -> str:
    namespaces = host.ask("ctr", "namespaces", "list", "--quiet").text.splitlines()
    return _first(f"the namespace of containerd {name}" for name in namespaces if name not in ("moby", "default"))


def _of_the_group(host: Host) -> str:
    members = host.ask("getent", "group", "docker").text.strip().rpartition(":")[2].split(",")
    return _first(f"{name} in the group docker" for name in members if name and not name.startswith("gpu-fleet-"))


def _bound_to_docker(host: Host) -> str:
    names = host.ask("systemctl", "show", *_BOUND, "docker.service", "containerd.service").text.split()
    of_others = (name for name in names if re.search(r"\.(service|socket|timer)$", name))
    return _first(name for name in of_others if not re.fullmatch(r"gpu-fleet-.*|docker\.(service|socket)", name))


# Those who use Docker, or the containerd that came with it, without a container of Docker's own.
_USERS_OF_DOCKER: tuple[Callable[[Host], str], ...] = (
    lambda host: first_sign(host, "Kubernetes", "CRI-O", "containerd"),
    _of_containerd,
    _of_the_group,
    _bound_to_docker,
)


def _listed(host: Host, engine: str, *arguments: str) -> str:
    answer = host.ask(engine, *arguments, "--quiet")
    if answer.status != 0:
        raise Refusal(1, f"{engine} does not answer: it is unknown what uses it")
    return answer.text.strip()


def _files_of(host: Host, directories: Iterable[str]) -> Iterator[str]:
    for directory in directories:
        for path, _, names in os.walk(host.root + directory):
            for name in sorted(names):
                if not name.startswith("gpu-fleet-"):
                    yield f"{path[len(host.root) :]}/{name}"


def _may_be_used_by(user: str) -> Iterator[str]:
    if user:
        yield f"it may be used by {user}"


def _first(found: Iterable[str]) -> str:
    return next(iter(found), "")
