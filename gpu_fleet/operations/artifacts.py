"""`make artifacts`: fills a directory with the programs of a host, for `gpu-fleet:artifacts: {source: controller}`.

    python -m gpu_fleet.operations.artifacts DIRECTORY [--stack NAME] [--arch amd64 --arch arm64]

Only releases are accepted. Those for this machine's architecture are taken from the toolchain, which may have them already; those
for another one are downloaded.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from gpu_fleet.host.artifacts import DCGM_IMAGE, INDEX, SIMULATED
from gpu_fleet.host.parts import PROGRAMS
from gpu_fleet.host.parts.monitoring import GRAFANA, SERVERS
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.output import own_lines, run
from gpu_fleet.operations.stack import configuration, enter_project
from gpu_fleet.provider.envelope import compress
from gpu_fleet.toolchain.cache import RECORD
from gpu_fleet.toolchain.errors import NotInstalled, ToolchainError
from gpu_fleet.toolchain.install import Installer, architecture
from gpu_fleet.toolchain.locate import located
from gpu_fleet.toolchain.programs import PROGRAMS as TOOLS
from gpu_fleet.toolchain.progress import Progress
from gpu_fleet.toolchain.upstream import Upstream
from gpu_fleet.toolchain.versions import ARCHITECTURES, image, release


def programs_for(stack: str) -> tuple[str, ...]:
    """The programs that the hosts of a stack get. Raises OperationError."""
    monitoring = configuration(stack).values.get("monitoring")
    if not isinstance(monitoring, Mapping):
        return PROGRAMS
    return (*PROGRAMS, *SERVERS, *(() if monitoring.get("grafana") is False else (GRAFANA,)))


def gather_artifacts(
    directory: Path,
    names: Collection[str],
    *,
    architectures: Sequence[str] = (),
    image_archive: Path | None = None,
) -> None:
    """Fills the directory with releases, compressed as the provider sends them. `architectures`: default: this machine's.

    `image_archive`: dcgm-exporter's image as written by `docker save`, for hosts without access to a registry; that of an earlier
    run is kept while its tag is the pinned one. Raises ToolchainError.
    """
    here = architecture()
    with tempfile.TemporaryDirectory() as scratch:
        programs: dict[str, dict[str, Path]] = {name: {} for name in names}
        for arch in architectures or (here,):
            for name in names:
                program = release_of(name) if arch == here else _downloaded(name, arch, Path(scratch))
                programs[name][arch] = artifact_of(name, program, Path(scratch) / f"{name}-{arch}.tar.gz")
        fill(directory, programs, image_archive=image_archive)
    for line in (directory / INDEX).read_text().splitlines():
        file = directory / line.split()[0]
        # Otherwise the provider compresses it while a host waits.
        if f"  {DCGM_IMAGE}-" not in line and not (packed := file.with_name(f"{file.name}.gz")).exists():
            compress(file, packed)


def release_of(name: str) -> Path:
    """A program of the release that hosts run, as it is installed here. Raises ToolchainError."""
    found = located(name)
    if found is None:
        raise NotInstalled(f"{name} is not installed: run `.venv/bin/python -m gpu_fleet.toolchain install {name}`.")
    if found.how == "go" and (build := TOOLS[name].go) and build.version:
        raise ToolchainError(
            f"{name} {release(name).version}: this machine has only its own build of version {build.version}, because the "
            "release could not be downloaded, and hosts get the release. Fill the directory on a machine that can download "
            f"it: `.venv/bin/python -m gpu_fleet.toolchain install --retry-upstream {name}`."
        )
    return found.path


def _downloaded(name: str, arch: str, scratch: Path) -> Path:
    """The release for another architecture than this machine's. Raises ToolchainError."""
    file = release(name).files[arch]
    into = scratch / f"{name}-{arch}"
    with Progress(own_lines()).step(f"{name} {release(name).version} {arch}", "downloading the release") as step:
        Upstream().get(file, name, into, step)
    return into / (file.tree or name)


def artifact_of(name: str, program: Path, archive: Path) -> Path:
    """What hosts get of an installed program: the program, or all of its release as one archive where it needs that. The same
    files give the same bytes. `archive`: where the archive is written."""
    tree = release(name).files[architecture()].tree
    if not tree:
        return program
    root = program.resolve().parents[len(Path(tree).parts) - 1]
    with gzip.GzipFile(archive, "wb", compresslevel=1, mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(root.rglob("*")):
            if path.name != RECORD:
                tar.add(path, f"{name}-{release(name).version}/{path.relative_to(root)}", recursive=False, filter=_anonymous)
    return archive


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member


def fill(
    directory: Path,
    programs: Mapping[str, Mapping[str, Path]],
    *,
    simulated: Collection[str] = (),
    image_archive: Path | None = None,
) -> None:
    """One file per program and architecture, named by its sha256, and SHA256SUMS with their names. Other files are removed.

    `simulated`: those of `programs` that are not the release: real hosts do not get such a directory. Raises ToolchainError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lines = _image_lines(directory, image_archive)
    for name, files in programs.items():
        version = release(name).version + (SIMULATED if name in simulated else "")
        for arch, program in files.items():
            lines.append(f"{_place(name, program.resolve(), directory)}  {name}-{version}.linux-{arch}\n")
    digests = {line.split()[0] for line in lines}
    # Each has a compressed copy beside it, which is what is sent.
    for stale in {path.name for path in directory.iterdir()} - digests - {f"{digest}.gz" for digest in digests} - {INDEX}:
        (directory / stale).unlink()
    (directory / INDEX).write_text("".join(lines))


def _image_lines(directory: Path, archive: Path | None) -> list[str]:
    what = f"  {DCGM_IMAGE}-{image(DCGM_IMAGE).tag}.linux-"
    if archive is None:
        lines = (directory / INDEX).read_text().splitlines(keepends=True) if (directory / INDEX).exists() else []
        return [line for line in lines if what in line and (directory / line.split()[0]).exists()]
    if not archive.is_file():
        raise ToolchainError(f"{archive} is not a file: create it with `docker save {image(DCGM_IMAGE).reference} -o FILE`")
    return [f"{_place(DCGM_IMAGE, archive, directory)}{what}{architecture()}\n"]


def _place(name: str, program: Path, directory: Path) -> str:
    with program.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    target = directory / digest
    if not target.exists():
        partial = target.with_suffix(".partial")
        try:
            shutil.copyfile(program, partial)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise ToolchainError(f"cannot copy {name} to {directory}: {error.strerror}") from None
        partial.chmod(0o755)
        partial.rename(target)
    return digest


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gpu_fleet.operations.artifacts",
        description="Fill a directory for `gpu-fleet:artifacts: {source: controller}`.",
    )
    parser.add_argument("directory", type=Path, metavar="DIRECTORY")
    parser.add_argument("--stack", default="", help="one that has a monitoring server needs its programs too")
    parser.add_argument("--arch", action="append", choices=ARCHITECTURES, help="default: this machine's")
    parser.add_argument("--image", type=Path, metavar="FILE", help="dcgm-exporter's image, as written by `docker save`")
    given = parser.parse_args(arguments)
    try:
        enter_project()
        names = programs_for(given.stack) if given.stack else PROGRAMS
        Installer().install(names)
        gather_artifacts(given.directory, names, architectures=given.arch or (), image_archive=given.image)
    except (OperationError, ToolchainError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    run(main)
