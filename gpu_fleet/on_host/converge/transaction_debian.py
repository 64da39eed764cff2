"""Package transactions by apt and dpkg."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from typing import Iterator

from .programs import lines_of, run
from .transaction_shared import Transaction

_HALF = ("half-installed", "half-configured", "unpacked")
_ABSENT = ("", "not-installed", "config-files")


class Debian(Transaction):
    """apt itself reports what it is about to install, under its locks, so another installer's packages are never included.
    Protocol 3 of Pre-Install-Pkgs: its configuration, an empty line, then a line per package: name, version before (- for none),
    its architecture and Multi-Arch, <=>, version after, its architecture and Multi-Arch, file. Source: apt.conf(5),
    apt-pkg/deb/dpkgpm.cc of apt 2.6, read 2026-11-22."""

    def owns(self, name: str, path: str) -> bool:
        owner = run("dpkg-query", "--search", path).stdout  # "NAME: PATH", also of a package whose configuration was left
        return owner.startswith(f"{name}:")

    def guard(self, asked: str) -> int:
        """Called by apt under its locks. A non-zero exit ends it with nothing changed."""
        asked = asked.partition("\n\n")[2]
        for line in lines_of(asked):
            name, before, _, _, _, after, *_, file = line.split(None, 8)
            if file.startswith("**"):
                continue
            if before != "-":
                if not self.is_ours(name):
                    self.refuse(f"it would replace {name} {before} by {after}")
                continue
            # What an interrupted installation has unpacked.
            if self._status(name) in _HALF:
                continue
            for path in self._files_of(file):
                self.check_file(name, path)
        if self.read("refused"):
            return 1
        self.append("planned", asked)
        self.flush("planned")
        return 0

    def _files_of(self, package: str) -> Iterator[str]:
        import tarfile

        with subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", package], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        ) as process, tarfile.open(fileobj=process.stdout, mode="r|") as tar:
            for member in tar:
                if not member.isdir():
                    yield re.sub(r"^\./", "/", member.name)

    def _status(self, name: str) -> str:
        return run("dpkg-query", "-W", "-f", "${db:Status-Status}", name).stdout.strip()

    def _all(self) -> list[list[str]]:
        return [line.split(" ", 1) for line in lines_of(run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n").stdout)]

    def _apt(self, *arguments: str) -> int:
        """apt has three locks, and waits for at most one of them: of package lists, of downloads and of dpkg. At a host's first
        boot, when the daily upgrade runs too, any of them may be held for minutes."""
        program = f"{sys.executable} -I -S -B '{os.path.abspath(sys.argv[0])}' transaction"
        guard = f"Pre-Install-Pkgs::=env {program} '{self.directory}' debian guard"
        # Without --no-remove, apt would remove conflicting packages, such as DCGM 3 in favor of DCGM 4, which is not ours to
        # decide.
        command = ["apt-get", "-q", "-y", "--no-install-recommends", "--no-remove"]
        command += ["-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"]
        command += ["-o", "APT::Keep-Downloaded-Packages=false"]  # half a gigabyte with Docker, which a removal would leave
        command += ["-o", f"DPkg::{guard}", "-o", "DPkg::Tools::Options::env::Version=3"]
        return self.run_past_locks(*command, *arguments, is_locked="Could not get lock ")

    def install(self, names: list[str]) -> int:
        self._find_unfinished()
        if self.read("refused"):
            return 1
        self._repair()
        # Configuration files left by an administrator's removed package are not ours to purge.
        left = "".join(f"{name}\n" for status, name in self._all() if status == "config-files")
        with open(self.at("left-behind"), "w", encoding="utf-8") as file:
            file.write(left)
        code = self._apt("install", *names)
        if code == 0 or self.read("refused") or self.read("planned"):  # dpkg was at work, so it is not for the package lists
            return code
        self._clear("stderr")
        self._apt("update")  # a fresh Debian image has no package lists yet; one repository that fails may not matter
        os.rename(self.at("attempt"), self.at("updated"))
        return self._apt("install", *names)

    def _clear(self, name: str) -> None:
        os.truncate(self.at(name), 0)

    def _find_unfinished(self) -> None:
        """Refuses where somebody else has left a package half installed: apt and `dpkg --configure -a` would finish it, and so
        start or restart its services."""
        if not self._unfinished():
            return
        self._apt("check")  # waits for an installer in progress, which looks the same, but holds the lock
        self._clear("stderr")
        for name in self._unfinished():
            if not self.is_ours(name):
                self.refuse(f"{name}, which is not ours, is not fully installed; finish that (dpkg --configure -a), or remove it")

    def _unfinished(self) -> list[str]:
        return [name for status, name in self._all() if status in _HALF]

    def _repair(self) -> None:
        """An interrupted dpkg refuses to work until `--configure -a` has run. An installer in progress looks the same, but holds
        the lock."""
        tries = 60
        while os.listdir("/var/lib/dpkg/updates") or run("dpkg", "--audit").stdout.strip():
            if self.run("dpkg", "--force-confdef", "--force-confold", "--configure", "-a", errors="repair", fresh=True) == 0:
                self.append("said", "dpkg had been interrupted; it was repaired by dpkg --configure -a\n")
                return
            tries -= 1
            said = lines_of(self.read("repair"))
            if not any("lock" in line for line in said) or tries == 0:
                self.append("said", f"dpkg had been interrupted, and dpkg --configure -a failed: {said[-1] if said else ''}\n")
                return
            time.sleep(2)

    def reinstall(self, names: list[str]) -> int:
        return self._apt("install", "--reinstall", *names)

    def purge(self, names: list[str]) -> int:
        every = [name.rpartition("/remove")[0] or name for name in names]
        whole = [name for name in names if not name.endswith("/remove")]
        code = self.run_past_locks("dpkg", "--remove", *every, is_locked="lock")
        return self.run_past_locks("dpkg", "--purge", *whole, is_locked="lock") if code == 0 and whole else code

    def installed(self) -> Iterator[str]:
        native = run("dpkg", "--print-architecture").stdout.strip()
        left: set[str] = set(lines_of(self.read("left-behind")))
        names = set()
        for line in lines_of(self.read("planned")):
            fields = line.split()
            if fields[1] == "-" and not fields[8].startswith("**"):
                names.add(fields[0] if fields[6] in (native, "all") else f"{fields[0]}:{fields[6]}")
        for name in sorted(names):
            if self._status(name) not in _ABSENT:  # it may not have got that far
                yield f"{name}\t{'remove' if name.partition(':')[0] in left else 'purge'}"
