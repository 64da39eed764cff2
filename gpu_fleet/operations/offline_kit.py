"""`make offline-kit`: one archive with everything that a machine without internet access needs to deploy stacks.

    python -m gpu_fleet.operations.offline_kit [--stack NAME] [--arch amd64 --arch arm64] [--python 3.11] [--to DIRECTORY]

The machine that makes it has the architecture of the one that uses it. The kit has the files that git tracks, the Python packages
of requirements.txt for several versions of Python, Pulumi with its plugins, the hosts' programs, the charts of a stack that has a
cluster, and the sums of all that. kit_install.py installs it there. Not in it: packages of distributions, container images.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_fleet.host.artifacts import INDEX, SIMULATED
from gpu_fleet.host.parts import PROGRAMS as HOST_PROGRAMS
from gpu_fleet.operations import kit_install
from gpu_fleet.operations.artifacts import gather_artifacts, programs_for
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.kit_install import ABOUT, ARTIFACTS, CHARTS, REPOSITORY, SUMS, TOOLS, WHEELS
from gpu_fleet.operations.output import own_lines, run
from gpu_fleet.operations.programs import needed_for
from gpu_fleet.operations.stack import configuration, enter_project, stack_file
from gpu_fleet.stackfile.config import ROOT
from gpu_fleet.toolchain import PROGRAMS, Cache, ToolchainError, located
from gpu_fleet.toolchain.cache import RECORD, Record, sha256_of
from gpu_fleet.toolchain.install import Installer, architecture
from gpu_fleet.toolchain.programs import OF_STACKS
from gpu_fleet.toolchain.progress import Progress
from gpu_fleet.toolchain.versions import ARCHITECTURES, chart, charts, images

PYTHONS = ("3.11", "3.12", "3.13")
PIP = "pip==25.3"  # of the kit: without Debian's python3-venv a Python has none
# The oldest C library whose wheels the locked packages have: RHEL 8, Debian 11 and Ubuntu 20.04 have it or a newer one.
_PLATFORMS = ("manylinux2014_{machine}", "manylinux_2_17_{machine}", "manylinux_2_28_{machine}", "any")
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of CONTENTS. `origin`: where it is from, and how it was verified."""

    what: str
    version: str
    arch: str
    origin: str

    def line(self) -> str:
        return f"{self.what:<28} {self.version:<22} {self.arch:<6} {self.origin}\n"


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """A kit for trying out: `programs` are not in it, by name with what replaces them; `gather` fills the directory of the hosts'
    programs with whatever there is."""

    programs: Mapping[str, str]
    gather: Callable[[Path, Collection[str]], None]


def tools_for(stack: str) -> list[str]:
    """Programs of the machine that runs Pulumi: those that `make setup` installs there, and what the stack needs beyond them."""
    usual = [name for name, program in PROGRAMS.items() if program.purpose in OF_STACKS]
    return [*usual, *(name for name in needed_for(configuration(stack).keys if stack else ()) if name not in usual)]


def hosts_programs_for(stack: str) -> tuple[str, ...]:
    return programs_for(stack) if stack else HOST_PROGRAMS


def make_kit(
    to: Path, *, stack: str, architectures: Sequence[str], pythons: Sequence[str], replaced: Replaced | None = None
) -> Path:
    """The kit's archive in the directory `to`. Without `replaced`, every program is what upstream released or a build of the same
    source. Raises OperationError and ToolchainError."""
    progress, here = Progress(own_lines()), architecture()
    names, hosts = tools_for(stack), hosts_programs_for(stack)
    has_cluster = bool(stack) and "kubernetes" in configuration(stack).keys
    if replaced is None:
        Installer(progress=progress).install(sorted({*names, *hosts}, key=list(PROGRAMS).index))
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to) as scratch:
        kit = Path(scratch) / f"gpu-fleet-kit-{_commit()}-{here}"
        kit.mkdir()
        entries = [
            *_repository(kit, stack),
            *_packages(kit / WHEELS, here, pythons, progress),
            *_programs(kit / TOOLS, names, here, replaced),
            *_artifacts(kit / ARTIFACTS, hosts, architectures, replaced),
            *_charts(kit / CHARTS, needed=has_cluster and replaced is None),
        ]
        return _pack(kit, to, entries, pythons=pythons, stand_ins=replaced is not None)


def _pack(kit: Path, to: Path, entries: Sequence[Entry], *, pythons: Sequence[str], stand_ins: bool) -> Path:
    warning = "NOT FOR REAL USE: some programs are the lab's stand-ins.\n\n" if stand_ins else ""
    (kit / "CONTENTS").write_text(warning + "".join(entry.line() for entry in entries))
    about = {"architecture": architecture(), "pythons": list(pythons), "standIns": stand_ins}
    (kit / ABOUT).write_text(json.dumps(about, indent=2) + "\n")
    shutil.copyfile(kit_install.__file__, kit / "install.py")
    files = sorted(path for path in kit.rglob("*") if path.is_file())
    (kit / SUMS).write_text("".join(f"{sha256_of(path)}  {path.relative_to(kit)}\n" for path in files))
    archive = to / f"{kit.name}{'-stand-ins' if stand_ins else ''}.tar"
    partial = archive.with_suffix(".partial")
    with tarfile.open(partial, "w") as tar:  # programs and wheels are compressed, or compress badly
        tar.add(kit, kit.name)
    partial.rename(archive)
    return archive


# --- the parts ---------------------------------------------------------------------------------------------------------------


def _repository(kit: Path, stack: str) -> Iterator[Entry]:
    """Files that git tracks, as they are now, and the stack's file: an untracked file may be a private key. Not the
    user's own directory, if the stack is in one (docs/air-gapped.md)."""
    listed = _git("ls-files", "-z")
    files = {Path(name) for name in listed.split("\0") if name}
    if stack and (file := stack_file(stack).resolve()).is_relative_to(ROOT):
        files.add(file.relative_to(ROOT))
    with tarfile.open(kit / REPOSITORY, "w") as tar:
        for file in sorted(file for file in files if (ROOT / file).is_file()):
            tar.add(ROOT / file, str(file), recursive=False)
    changed = ", with uncommitted changes" if _git("status", "--porcelain", "--untracked-files=no") else ""
    yield Entry(what="repository", version=_commit(), arch="-", origin=f"files that git tracks{changed}")


def _packages(wheels: Path, here: str, pythons: Sequence[str], progress: Progress) -> Iterator[Entry]:
    kept = Cache().wheels
    kept.mkdir(parents=True, exist_ok=True)
    locked = ["--require-hashes", "-r", str(ROOT / "requirements.txt")]
    for python in pythons:
        with progress.step(f"Python {python}", "downloading its packages"):
            number = python.replace(".", "")
            target = ["--python-version", number, "--implementation", "cp"]
            for abi in (f"cp{number}", "abi3", "none"):
                target += ["--abi", abi]
            for platform in _PLATFORMS:
                target += ["--platform", platform.format(machine=_MACHINES[here])]
            # pip compares everything that the index has of each package, which takes it ten seconds. What it verified is kept.
            if _download(wheels, "--no-index", "--find-links", str(kept), *target, *locked) is not None:
                error = _download(wheels, *target, *locked)
                if error is not None:
                    raise OperationError(f"packages for Python {python} cannot be downloaded:\n{error}")
                shutil.copytree(wheels, kept, dirs_exist_ok=True)
    error = _download(wheels, PIP)
    if error is not None:
        raise OperationError(f"{PIP} cannot be downloaded:\n{error}")
    count = len(list(wheels.glob("*.whl")))
    yield Entry(
        what="Python packages",
        version=f"{count} wheels",
        arch=here,
        origin=f"the package index, verified by the hashes of requirements.txt; Python {', '.join(pythons)}",
    )


def _download(wheels: Path, *arguments: str) -> str | None:
    """Fills `wheels`. None, or the end of what pip said about its failure."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
    command += ["--no-deps", "--dest", str(wheels), *arguments]
    environment = {**os.environ, "PIP_CACHE_DIR": str(Cache().root / "pip")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stderr.strip()[-2000:] if done.returncode != 0 else None


def _programs(tools: Path, names: Sequence[str], here: str, replaced: Replaced | None) -> Iterator[Entry]:
    """In the layout of the toolchain's cache, where they are found on the other machine."""
    for name in names:
        program, found = PROGRAMS[name], located(name)
        if replaced and name in replaced.programs:
            yield Entry(what=name, version=program.release.version, arch=here, origin=replaced.programs[name])
            continue
        assert found is not None, "the installer has it"
        go = program.go
        if found.how == "go" and go and go.differs and replaced is None:
            raise ToolchainError(
                f"{program.title}: this machine has only {go.differs}. Run it where the release can be downloaded."
            )
        version = program.release.version
        target = tools / name / version
        target.parent.mkdir(parents=True)
        cached = Cache().directory(name, version)
        if found.path.is_relative_to(cached):
            shutil.copytree(cached, target, symlinks=True)
        else:
            _copy_found(program.release.files[here].also, found.path, target)
        yield Entry(what=name, version=version, arch=here, origin=_origin(target))


def _copy_found(also: Sequence[str], program: Path, target: Path) -> None:
    """A program that was found on this machine, outside the cache."""
    target.mkdir()
    files = [program.resolve(), *(program.with_name(Path(member).name) for member in also)]
    for file in files:
        shutil.copy2(file, target / file.name)
    sums = {file.name: sha256_of(target / file.name) for file in files}
    record = Record.now(how="path", why=f"{program}, found on the machine that made the kit", program=files[0].name, sha256=sums)
    (target / RECORD).write_text(json.dumps(record.__dict__, indent=2) + "\n")


def _origin(target: Path) -> str:
    record = json.loads((target / RECORD).read_text())
    how = {"upstream": "upstream release", "go": "built from the Go module proxy, because"}.get(record["how"], "")
    return f"{how} {record['why']}".strip()


def _artifacts(
    directory: Path, names: Collection[str], architectures: Sequence[str], replaced: Replaced | None
) -> Iterator[Entry]:
    if replaced:
        replaced.gather(directory, names)
    else:
        gather_artifacts(directory, names, architectures=architectures)
    for line in (directory / INDEX).read_text().splitlines():
        digest, what = line.split()
        program, _, arch = what.rpartition(".linux-")
        name, _, version = program.partition("-")
        origin = "stand-in or build of another version, " if version.endswith(SIMULATED) else ""
        yield Entry(what=f"hosts: {name}", version=version, arch=arch, origin=f"{origin}sha256 {digest}")


def _charts(directory: Path, *, needed: bool) -> Iterator[Entry]:
    """`needed`: the stack has a cluster, so its charts must be in the kit."""
    directory.mkdir()
    lines = []
    for name in charts():
        one = chart(name)
        lines.append(f"{one.repository} {one.chart} {one.version} sha256 {one.sha256 or 'unpinned'}\n")
        if not needed:
            continue
        command = ["helm", "pull", one.chart, "--repo", one.repository, "--version", one.version, "--destination", str(directory)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OperationError(f"the chart {one.chart} {one.version} cannot be downloaded: {done.stderr.strip()}")
        archive = directory / f"{one.chart}-{one.version}.tgz"
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if one.sha256 and found != one.sha256:
            raise OperationError(f"the chart {one.chart} {one.version} has sha256 {found}, expected {one.sha256}")
        yield Entry(what=f"chart {name}", version=one.version, arch="-", origin=f"{one.repository}, sha256 {found}")
    (directory / "REFERENCES").write_text("".join([*lines, *(f"image {image.reference}\n" for image in images().values())]))
    yield Entry(what="references", version="-", arch="-", origin=f"{CHARTS}/REFERENCES: charts and images by version and sum")


def _commit() -> str:
    return _git("rev-parse", "--short=10", "HEAD").strip()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OperationError("a kit is made from a git checkout, which lists its files: clone the repository and run it there")
    return done.stdout


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gpu_fleet.operations.offline_kit", description="Make a kit for a site without internet."
    )
    parser.add_argument("--stack", default="", help="only what this stack needs; default: what any stack may need")
    parser.add_argument("--arch", action="append", choices=ARCHITECTURES, help="of hosts; default: both")
    parser.add_argument("--python", action="append", metavar="3.X", help=f"of the other machine; default: {', '.join(PYTHONS)}")
    parser.add_argument("--to", type=Path, default=Path("build/offline-kit"), metavar="DIRECTORY")
    given = parser.parse_args(arguments)
    try:
        enter_project()
        archive = make_kit(
            given.to, stack=given.stack, architectures=given.arch or ARCHITECTURES, pythons=given.python or PYTHONS
        )
    except (OperationError, ToolchainError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB. docs/air-gapped.md says how it is used.")
    return 0


if __name__ == "__main__":
    run(main)
