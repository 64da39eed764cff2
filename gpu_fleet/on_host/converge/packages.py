"""Distribution packages: installed by apt or dnf, removed by dpkg or rpm, which never remove what other packages need."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from typing import Sequence

from ..distribution import family
from . import package_failure, proxies
from .disk import Disk, create
from .errors import Failure
from .events import say
from .gpu_containers import GpuContainers
from .host import PROGRAM, Host
from .lock import try_lock
from .manifest import Part
from .packages_in_use import adopted_by_others, can_purge, stop_services, used_by
from .programs import lines_of, must, pause, read_or_empty, run, until
from .records import Placed, Record

# How long a run waits for a package manager, which takes minutes even for a driver on a slow mirror. One that hangs (a maintainer
# script that waits for an answer, a dead NFS mount) is never ended: a package that is cut off in the middle breaks later
# installations.
_AWAIT_LONGEST_S = 7200
_UNIT = "gpu-fleet-packages.service"


def _family() -> str:
    return family(read_or_empty("/etc/os-release"))


def _status(name: str) -> str:
    return run("dpkg-query", "-W", "-f", "${db:Status-Status}", name).stdout


def has_package(of: str, name: str) -> bool:
    return _status(name) == "installed" if of == "debian" else run("rpm", "-q", name).ok


def _is_present(of: str, name: str) -> bool:
    """In any state, including an interrupted installation."""
    return _status(name) not in ("", "not-installed", "config-files") if of == "debian" else run("rpm", "-q", name).ok


class _Unfinished(Failure):
    """The package manager was killed before it wrote its status, or was never started. The next run settles it."""


class Packages:
    """`said`: what was repaired after a killed transaction, by part."""

    def __init__(self, host: Host, disk: Disk, placed: Placed, gpu_containers: GpuContainers) -> None:
        self._host = host
        self._disk = disk
        self._placed = placed
        self._gpu_containers = gpu_containers
        self._directory = f"{host.state}/packages"
        self.said: dict[str, str] = {}

    def missing(self, part: Part) -> list[str]:
        if not part.packages:
            return []
        here = _family()
        families = sorted({known for known, _ in part.packages})
        if here not in families:
            raise Failure(
                "unsupported",
                f"part {part.name} needs distribution packages, which are defined only for: {' '.join(families)}, not for this "
                f"distribution ({here})",
            )
        return [name for known, name in part.packages if known == here and not has_package(here, name)]

    def place(self, name: str, part: str) -> list[str]:
        """Records what its transaction installed, so that all of it can be removed. Returns what was repaired first."""
        if not self._host.owners:
            raise Failure(
                "unsupported",
                f"package {name} is missing, and only root can install it; install it and apply again, or apply as root",
            )
        harm = self.harm()
        if harm:
            raise Failure(
                "gpus-in-use",
                f"package {name} is missing, and its installation makes systemd read its unit files again, which would take the "
                f"GPUs from {harm}. Install {name} when they may lose them, or recreate them with CDI or --device, and then `up` "
                "again",
            )
        say(f"{part}: installing package {name}")
        code = self._transact(part, _family(), "install", [name])
        errors, refused = self._read("stderr"), self._read("refused").split("\n")[0]
        failure = package_failure.of(_family(), name, self._read) if code != 0 else None
        said = lines_of(self._read("said"))
        self._record(part)
        if failure is None:
            return said
        if refused:
            raise Failure(
                "unsupported",
                f"package {name} was not installed, and nothing was changed: {refused}. Next: set `exporter: "
                f"nvidia_gpu_exporter`, which needs no packages, for this host, or install {name} yourself",
                errors.split("\n")[:-1],
            )
        raise failure

    def harm(self) -> str:
        """Whom a transaction would harm: hooks of packages make systemd read its unit files again."""
        return str(self._gpu_containers.at_risk()) if os.path.isdir("/run/systemd/system") else ""

    # --- transactions: once started, never cut short by the end of this run, see transaction.py --------------------------------

    def _read(self, name: str) -> str:
        return read_or_empty(f"{self._directory}/{name}")

    def _last_words(self) -> str:
        return self._read("stderr").rstrip("\n").split("\n")[-1]

    def _transact(self, part: str, of: str, verb: str, names: Sequence[str]) -> int:
        """Starts a transaction and waits for its end. Returns its exit code."""
        if self._is_running():
            raise Failure(
                "locked", "the package manager, which an earlier part started, is still running; apply again once it has ended"
            )
        shutil.rmtree(self._directory, ignore_errors=True)
        os.mkdir(self._directory, 0o700)
        # A copy of the program: the bundle that it comes from may be deleted while it runs.
        create(f"{self._directory}/program.pyz", f"{self._host.bundle}/{PROGRAM}")
        create(f"{self._directory}/environment", proxies.for_sh().encode("utf-8", "surrogateescape"))
        create(f"{self._directory}/request.new", f"{' '.join((part, of, verb, *names))}\n".encode())
        self._disk.commit(f"{self._directory}/request.new", f"{self._directory}/request")
        command = self._command(f"{self._directory}/program.pyz", of, verb, *names)
        if os.path.isdir("/run/systemd/system"):
            self._await_end_of_unit()
            # mixed: only the program gets a shutdown's signal, and it continues; the shutdown waits for it.
            must(
                "systemd does not start the unit in which packages are installed",
                *("systemd-run", "--quiet", "--collect", f"--unit={_UNIT}"),
                *("--description=Package manager, started by gpu-fleet", "--property=KillMode=mixed"),
                *("--property=TimeoutStopSec=15min", *command),
            )
        else:
            quiet = subprocess.DEVNULL
            subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
        return self._await(part, 50)

    def _await_end_of_unit(self) -> None:
        """That of the transaction before: its status is on disk a moment before its unit is gone, which no other may be called as
        until then."""
        asked = ("systemctl", "show", "--property=LoadState", "--value", _UNIT)
        until(50, lambda: run(*asked).stdout.strip() == "not-found")

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [sys.executable, "-I", "-S", "-B", program, "transaction", self._directory, *arguments]

    def _await(self, part: str, tries: int) -> int:
        """Waits for its end. `tries`: how many times it may be found neither running nor done."""
        began, next_s = time.monotonic(), 30
        while not self._read("status"):
            tries = 3 if self._is_running() else tries - 1
            if tries <= 0 and not self._read("status"):
                raise _Unfinished(
                    "internal",
                    "the package manager was killed before it finished; apply again, which first repairs what it left "
                    f"(journalctl --unit {_UNIT} shows how it ended)",
                )
            waited_s = int(time.monotonic() - began)
            if waited_s >= next_s:
                say(f"{part}: the package manager has been running for {waited_s} seconds")
                next_s += 30
            if waited_s >= _AWAIT_LONGEST_S:
                asked = " ".join(self._read("request").split()[2:])
                raise Failure(
                    "locked",
                    f"the package manager has been running for {waited_s // 60} minutes ({asked}); it was left alone, since a "
                    "package must not be cut off in the middle: see what it waits for (ps -ef --forest; systemctl status "
                    "gpu-fleet-packages), and apply again once it has ended",
                )
            pause()
        return int(self._read("status"))

    def _is_running(self) -> bool:
        with contextlib.suppress(FileNotFoundError), open(f"{self._directory}/lock", "rb") as lock:
            return not try_lock(lock.fileno(), fcntl.LOCK_SH)
        return False

    def _record(self, part: str) -> None:
        """Records what the transaction installed as ours, and forgets the transaction."""
        names = (line.split("\t") for line in lines_of(self._read("names")))
        self._placed.update([Record("package", name, part, how) for name, how in names])
        shutil.rmtree(self._directory, ignore_errors=True)

    def settle(self) -> None:
        """Finishes a transaction that an earlier run started and did not wait for. What it installed is recorded. dpkg is
        repaired before its next use."""
        if not os.path.isfile(f"{self._directory}/request"):
            return
        part, of, verb, *names = self._read("request").split()
        asked = " ".join((verb, *names))
        if self._is_running():
            say(f"{part}: waiting for the package manager, which an earlier run started ({asked})")
        again: list[str] = []
        with contextlib.suppress(_Unfinished):
            self._await(part, 3)
        if not self._read("status"):
            run(*self._command(f"{self._host.bundle}/{PROGRAM}", of, "resolve"))
            say(f"{part}: the package manager was killed before it finished, during an earlier run ({asked})")
            if (self._host.verb, verb, of) == ("apply", "install", "rhel"):
                again = [line.split("\t")[0] for line in lines_of(self._read("names"))]
        self._record(part)
        if not again:
            return
        said = "rpm had been interrupted; it was repaired by dnf reinstall"
        try:
            code = self._transact(part, "rhel", "reinstall", again)
        except _Unfinished:
            code = 1
        if code != 0:
            said = f"rpm had been interrupted, and dnf reinstall failed: {self._last_words()}"
        self.said[part] = " ".join((said, *again))
        shutil.rmtree(self._directory, ignore_errors=True)

    # --- removal --------------------------------------------------------------------------------------------------------------

    def drop(self, part: Part) -> list[str]:
        """Removes the packages that the part installed, in one transaction since they need each other; packages that are needed
        by others by now are kept, which is reported. Only when the host is removed: a change of exporter is no reason to remove a
        container runtime."""
        installed = self._placed.of(part.name, "package")
        if not installed:
            return []
        here = _family()
        manual = run("apt-mark", "showmanual").stdout.split() if here == "debian" else []
        asked = [package for _, package in part.packages]
        changes, names, purge = [], [], []
        for record in installed:
            if not _is_present(here, record.key):
                continue
            # Installed as a dependency, and named by somebody since.
            if asked and record.key in manual and record.key not in asked:
                changes.append(f"package {record.key}: kept, because somebody installed it explicitly")
                continue
            names.append(record.key)
            purge.append(f"{record.key}/remove" if record.a == "remove" else record.key)
        if not names:
            return changes
        harm = self.harm()
        why = f"its removal would take the GPUs from {harm}" if harm else ""
        why = why or used_by(self._host, part) or adopted_by_others(here, names)
        if not why and not can_purge(here, names):
            why = "other packages need it"
        if not why:
            say(f"{part.name}: removing packages: {' '.join(names)}")
            stop_services(here, names)
            try:
                code = self._transact(part.name, here, "purge", purge)
            except _Unfinished:
                code = 1
            if code != 0:
                why = f"it could not be removed: {self._last_words()}"
            shutil.rmtree(self._directory, ignore_errors=True)
        return changes + [f"package {package}: {f'kept, because {why}' if why else 'removed'}" for package in names]
