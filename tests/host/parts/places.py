"""A host below a directory, for tests of parts: their files laid out as converge would, for given facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from gpu_fleet.host.bundle import ENVIRONMENT
from gpu_fleet.host.part import FIND_PYTHON, File, Part, Source
from gpu_fleet.host.parts import PROGRAMS, HostOptions, standard_parts

NO_PROGRAMS: Mapping[str, Mapping[str, Source]] = {name: {"amd64": Source(sha256="0" * 64)} for name in PROGRAMS}


def parts_of(facts: Mapping[str, str], **options: object) -> list[Part]:
    """The standard parts that a GPU host with these facts and settings wants; nothing on it is adopted unless a fact says so."""
    usual = {"GPU_FLEET_ROLE": "gpu", "GPU_FLEET_NODE_EXPORTER_ADOPTED": "no", "GPU_FLEET_GPU_EXPORTER_ADOPTED": "no"}
    facts = {**usual, **facts}
    parts = standard_parts(HostOptions(programs=NO_PROGRAMS, **options))  # type: ignore[arg-type]
    return [part for part in parts if all(facts.get(name) in allowed for name, allowed in part.when.items())]


def defaults(parts: Iterable[Part]) -> dict[str, str]:
    return {name: value for part in parts for name, value in part.settings.items()}


def place(parts: Iterable[Part], prefix: Path) -> None:
    """Files and directories of the parts below `prefix`, and what every bundle has for them; no owners, no downloads."""
    for part in (Part(name="host", files=(File.from_rootfs(ENVIRONMENT), File.from_rootfs(FIND_PYTHON))), *parts):
        for directory in part.directories:
            (prefix / directory.path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        for file in part.files:
            target = prefix / file.path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.content)
            target.chmod(file.mode)
