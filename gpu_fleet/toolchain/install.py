"""Installs programs, each from the first source that has it: this machine, the upstream release, a Go build.

A source that cannot be used is reported with its reason. A wrong checksum is different: it ends the run. What is in place stays
in place when something else fails, so the next run continues where this one stopped.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from gpu_fleet.toolchain import gobuild, pulumi_home, system
from gpu_fleet.toolchain.cache import Cache, How, Record, sha256_of
from gpu_fleet.toolchain.errors import ToolchainError, Unavailable, cache_trouble
from gpu_fleet.toolchain.locate import installed, on_path
from gpu_fleet.toolchain.programs import OF_STACKS, PROGRAMS, Program, Purpose
from gpu_fleet.toolchain.progress import Pace, Progress, duration, size
from gpu_fleet.toolchain.upstream import Upstream

# How long a build of another version is used before upstream is tried again for the release: a machine without internet seldom
# gets it within the day, and every `make dev` would wait for the timeout.
RETRY_S = 24 * 3600
GO_CACHES_BYTES = 29e9  # size of Go's caches after building everything, measured


def architecture() -> str:
    """This machine's, as versions.yaml names it. Raises ToolchainError for one without releases."""
    names = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
    machine = platform.machine()
    if platform.system() != "Linux" or machine not in names:
        raise ToolchainError(f"The toolchain supports Linux on amd64 and arm64; this is {platform.system()} on {machine}.")
    return names[machine]


class Installer:
    """One run. `keep_go_caches`: keep Go's caches after everything is built; they are several times the size of the programs.

    `of_lab`: also build plugins of another version than the release, which act on nothing but the lab's clusters.
    """

    def __init__(
        self,
        *,
        cache: Cache | None = None,
        programs: Mapping[str, Program] = PROGRAMS,
        progress: Progress | None = None,
        retry_upstream: bool = False,
        keep_go_caches: bool = False,
        of_lab: bool = False,
    ):
        self._cache = cache or Cache()
        self._programs = programs
        self._progress = progress or Progress()
        self._retry_upstream_s = 0 if retry_upstream else RETRY_S
        self._keep_go_caches = keep_go_caches
        self._of_lab = of_lab
        self._upstream = Upstream()

    def install(self, names: Sequence[str] | None = None, *, optional: Collection[str] = ()) -> dict[str, str]:
        """Gets the named programs, by default those for work on stacks. Returns which `optional` ones no source has, and why.

        Raises ToolchainError: at once for a wrong checksum or a cache that cannot be written, else with all that failed.
        """
        if unknown := sorted(set(names or ()) - set(self._programs)):
            raise ToolchainError(f"Unknown program: {', '.join(unknown)}. Known: {', '.join(self._programs)}.")
        wanted = [program for program in self._programs.values() if _is_wanted(program, names)]
        self._progress.installed(
            f"Toolchain: {', '.join(names) if names else f'{len(wanted)} programs'}; cache {self._cache.root}"
        )
        try:
            missing, failures = self._get(wanted)
        except OSError as error:
            raise cache_trouble(error, self._cache.root) or error from None
        needed = [self._by_hand(self._programs[name], why) for name, why in missing.items() if name not in optional]
        if failures or needed:
            end = "What is installed stays installed. Run it again when this is fixed."
            raise ToolchainError("\n".join(["", *needed, *failures, "", end]))
        return missing

    def _by_hand(self, program: Program, why: str) -> str:
        return f"{program.title}: {why}. To install it by hand: {program.by_hand(program.release.files[architecture()].url)}."

    def _get(self, wanted: Sequence[Program]) -> tuple[dict[str, str], list[str]]:
        """Returns the programs that no source has, with the reason, and the messages of what failed.

        Quick sources first, so that a missing compiler is reported before long builds.
        """
        self._cache.root.mkdir(parents=True, exist_ok=True)
        to_build: dict[str, str] = {}  # name -> why not the upstream release
        missing: dict[str, str] = {}
        for program in wanted:
            with self._locked(program):
                if self._is_there(program):
                    continue
                try:
                    self._from_upstream(program)
                except Unavailable as reason:
                    (to_build if program.go and self._serves(program) else missing)[program.name] = str(reason)
        self._offer_plugins(wanted)
        return missing, self._build_all(to_build, {program.purpose for program in wanted})

    def _serves(self, program: Program) -> bool:
        """Whether a build of it is of use here."""
        return self._of_lab or not (program.plugin and program.go and program.go.version)

    def _offer_plugins(self, programs: Sequence[Program]) -> None:
        """To real stacks, which get no plugin of another version."""
        offered = {}
        for program in programs:
            found = installed(program, self._cache) if program.plugin else None
            if found and not (found.how == "go" and program.go and program.go.version):
                offered[program.plugin] = found.path
        pulumi_home.offer(self._cache, offered)

    def _build_all(self, to_build: Mapping[str, str], purposes: Collection[Purpose]) -> list[str]:
        if not to_build:
            return []
        programs = [self._programs[name] for name in to_build]
        for reason in dict.fromkeys(to_build.values()):
            self._progress.say(f"Not from upstream: {reason}.")
        lacking = self._lacking(programs)
        failures = [_cannot_build(group, to_build, lacks) for lacks, group in lacking.items() if lacks]
        buildable = lacking.get((), [])
        if not buildable:
            return failures
        pace = Pace(program.go.seconds for program in buildable if program.go)
        self._progress.say(
            f"Building {len(buildable)} from the Go module proxy: about {duration(pace.left_s)} in all, less with a warm cache."
        )
        free = shutil.disk_usage(self._cache.root).free
        if free < GO_CACHES_BYTES and len(buildable) > 1:
            self._progress.say(f"Building everything takes up to {size(GO_CACHES_BYTES)} of disk space; {size(free)} are free.")
        for program in buildable:
            try:
                with self._locked(program):
                    if not self._is_there(program):  # another run may have built it while we waited
                        self._build(program, to_build[program.name], pace)
                    elif program.go:
                        pace.skip(program.go.seconds)
            except ToolchainError as error:
                self._progress.line(program.title, "failed, see below")
                failures.append(str(error))
                pace.skip(program.go.seconds if program.go else 0)
        if not failures:
            self._free_go_caches(purposes)
        return failures

    def _lacking(self, programs: Sequence[Program]) -> dict[tuple[str, ...], list[Program]]:
        """The programs by what this machine lacks to build them, after installing what we may install."""
        builds = [(program, program.go) for program in programs if program.go]
        go_trouble = gobuild.go_trouble(go.module for _, go in builds)
        if not go_trouble:
            system.install_as_root(system.missing(dict.fromkeys(n for _, go in builds for n in go.needs)), self._progress)
        lacking: dict[tuple[str, ...], list[Program]] = {}
        for program, go in builds:
            missing = system.missing(go.needs)
            lacks = tuple(filter(None, [go_trouble, system.how_to_install(missing) if missing else ""]))
            lacking.setdefault(lacks, []).append(program)
        return lacking

    def _locked(self, program: Program) -> AbstractContextManager[None]:
        return self._cache.locked(
            program.name,
            lambda pid: self._progress.line(program.title, f"waiting: another run (pid {pid}) is installing it"),
        )

    def _is_there(self, program: Program) -> bool:
        version = program.release.version
        record = self._cache.record(program.name, version)
        if record and (record.how != "go" or self._serves(program)):
            if damage := self._cache.damage(program.name, version, record):
                self._progress.line(program.title, f"is damaged and installed again: {damage}")
                shutil.rmtree(self._cache.directory(program.name, version))
            elif self._is_outdated(program, record) and self._replaced_by_release(program, record):
                return True
            else:
                text = f"in the cache ({_origin(record)}{_difference(program, record.how)})"
                self._progress.line(program.title, text, is_installed=True)
                return True
        if path := on_path(program):
            self._progress.line(program.title, f"{path}, found on this machine", is_installed=True)
            return True
        return False

    def _is_outdated(self, program: Program, record: Record) -> bool:
        """A build that differs from the release is used only until the release can be downloaded."""
        return bool(_difference(program, record.how)) and record.age_s > self._retry_upstream_s

    def _replaced_by_release(self, program: Program, record: Record) -> bool:
        try:
            self._from_upstream(program)
        except Unavailable:
            self._cache.note(program.name, program.release.version, record.checked_now())
            return False
        return True

    def _from_upstream(self, program: Program) -> None:
        file = program.release.files[architecture()]
        with self._cache.partial(program.name) as partial:
            prepared = partial / "prepared"
            with self._progress.step(program.title, "downloading the release") as step:
                against = self._upstream.get(file, program.name, prepared, step)
            names = [file.tree or program.name, *(Path(member).name for member in file.also)]
            self._place(program, prepared, "upstream", against, names)
        self._progress.line(program.title, f"upstream release, {against} ({duration(step.elapsed_s)})")

    def _build(self, program: Program, why: str, pace: Pace) -> None:
        if program.go is None:
            raise ValueError(f"{program.name} has no Go build")
        expected_s = pace.expected_s(program.go.seconds)
        with self._cache.partial(program.name) as partial:
            prepared = partial / "prepared"
            with self._cache.using_go(), self._progress.step(program.title, "building with Go", expected_s) as step:
                gobuild.build(program, self._cache, prepared, step)
            built = size((prepared / program.name).stat().st_size)
            self._place(program, prepared, "go", why, [program.name])
        pace.done(program.go.seconds, step.elapsed_s)
        left = f"; about {duration(pace.left_s)} left" if pace.left_s >= 1 else ""
        text = f"built from the Go module proxy in {duration(step.elapsed_s)}, {built}{_difference(program, 'go')}{left}"
        self._progress.line(program.title, text)

    def _place(self, program: Program, prepared: Path, how: How, why: str, files: Sequence[str]) -> None:
        sums = {file: sha256_of(prepared / file) for file in files}
        record = Record.now(how=how, why=why, program=files[0], sha256=sums)
        self._cache.place(program.name, program.release.version, prepared, record)

    def _free_go_caches(self, purposes: Collection[Purpose]) -> None:
        """Once everything is built they are useless until a version changes, and they are by far the largest thing here."""
        programs = [
            program for program in self._programs.values() if program.go and program.purpose in purposes and self._serves(program)
        ]
        unbuilt = [program for program in programs if not self._cache.record(program.name, program.release.version)]
        freed = None if self._keep_go_caches or any(on_path(p) is None for p in unbuilt) else self._cache.free_go()
        if freed is None:
            self._progress.say(
                "Go's caches are kept for the next build; `.venv/bin/python -m gpu_fleet.toolchain clean` removes them."
            )
        else:
            self._progress.say(f"Everything is built: removed Go's caches, {size(freed)}.")


def _is_wanted(program: Program, names: Collection[str] | None) -> bool:
    return program.name in names if names else program.purpose in OF_STACKS


def _cannot_build(programs: Sequence[Program], to_build: Mapping[str, str], lacks: Sequence[str]) -> str:
    titles = ", ".join(program.title for program in programs)
    reasons = "; ".join(dict.fromkeys(to_build[program.name] for program in programs))
    return "\n".join([f"{titles}: {reasons}. To build from the Go module proxy instead:", *(f"  {lack}" for lack in lacks)])


def _difference(program: Program, how: How) -> str:
    return f"; not the upstream release but {program.go.differs}" if how == "go" and program.go and program.go.differs else ""


def _origin(record: Record) -> str:
    return {"upstream": "upstream release", "go": "built from the Go module proxy"}.get(record.how, record.how)
