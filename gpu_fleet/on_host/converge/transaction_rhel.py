"""Package transactions by dnf or yum, and rpm."""

from __future__ import annotations

import glob
import os
import re
import shutil
from typing import Iterator, Sequence

from .. import dnf
from .programs import lines_of, run
from .transaction_shared import Transaction

_IS_LOCKED = r"can't create transaction lock on .* \(Resource temporarily unavailable\)"


class Rhel(Transaction):
    def owns(self, name: str, path: str) -> bool:
        return run("rpm", "--query", "--file", path).ok  # rpm itself detects a conflict

    def _dnf(self, *arguments: str, output: str) -> int:
        """dnf waits for another dnf, but not for an rpm at work, such as a configuration manager's."""
        # Without -q, which would hide the address that failed.
        tool = "dnf" if shutil.which("dnf") else "yum"
        command = (tool, "-y", "--setopt=*.skip_if_unavailable=1", *arguments)
        return self.run_past_locks(*command, is_locked=_IS_LOCKED, output=output)

    def install(self, names: list[str]) -> int:
        """In two steps, so that the list of what will be installed is on disk before the first package is."""
        self._repair()
        code = self._dnf("install", "--downloadonly", f"--setopt=destdir={self.at('rpms')}", *names, output="planned")
        if code != 0 or not self._guard():
            return code or 1
        self.flush("planned")
        return self._dnf("install", *names, output="planned")

    def _guard(self) -> bool:
        """The same as Debian's from dnf's table and the packages that it has downloaded."""
        for name in dnf.replaces(self.read("planned")):
            if not self.is_ours(name):
                self.refuse(f"it would replace {name}")
        for each in self._planned():
            name = re.sub(r"\.(i[3-6]86|x86_64|aarch64|noarch)$", "", each)
            for directory in (self.at("rpms"), "/var/cache/yum"):
                for package in glob.glob(f"{directory}/**/{glob.escape(name)}-[0-9]*.rpm", recursive=True):
                    form = "[%{FILEMODES:perms} %{FILENAMES}\n]"
                    listed = run("rpm", "--query", "--package", "--nosignature", "--queryformat", form, package).stdout
                    for line in lines_of(listed):
                        if not line.startswith("d"):
                            self.check_file(name, line.partition(" ")[2])
        if self.read("refused"):
            os.truncate(self.at("planned"), 0)
            return False
        return True

    def _repair(self) -> None:
        """On releases whose database is Berkeley DB, the locks left by a killed rpm block every later one."""
        code = self.run("rpm", "--query", "--all", output="packages", errors="repair", fresh=True)
        said = lines_of(self.read("repair"))
        if code == 0 and not any(line.startswith("error: ") for line in said):
            return
        if self.run("rpm", "--rebuilddb", errors="log") == 0:
            self.append("said", "rpm's database had been damaged; it was repaired by rpm --rebuilddb\n")
        else:
            self.append("said", f"rpm's database is damaged, and rpm --rebuilddb failed: {said[0] if said else ''}\n")

    def reinstall(self, names: list[str]) -> int:
        """The package's scripts did not finish, which rpm, unlike dpkg, does not record."""
        return self._dnf("reinstall", *names, output="log")

    def purge(self, names: list[str]) -> int:
        return self.run("rpm", "--erase", *names)

    def _planned(self) -> Sequence[str]:
        return dnf.installs(self.read("planned"), os.uname().machine)

    def installed(self) -> Iterator[str]:
        for name in self._planned():
            if run("rpm", "--query", "--queryformat", "installed", name).stdout.startswith("installed"):
                yield f"{name}\tpurge"
