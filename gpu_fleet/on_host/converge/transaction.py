"""One package transaction, separate from the run that needs it: in its own unit or session, so that Ctrl-C, a lost connection, a
timer's time limit or a shutdown ends the waiting but never interrupts apt or dnf. packages.py starts a copy of it and waits, so
it imports nothing of this program.

Only new packages are installed: one that would upgrade, replace or hide anything on this host is refused before it is unpacked.

Arguments: DIRECTORY FAMILY install|reinstall|purge|resolve NAME... (purge: NAME/remove keeps its configuration files)
           DIRECTORY debian guard: what apt calls before it unpacks anything
DIRECTORY: environment  the proxy settings of the run that started this, for sh
           lock         held while this runs
           planned      what apt or dnf is about to install, in its own format, on disk before the first package is unpacked
           refused      why nothing was installed
           names        what this transaction installed, NAME TAB HOW: how it is uninstalled, purge or remove
           said         what was repaired first, for people
           stderr       of the package manager
           status       exit code, written last
"""

from __future__ import annotations

import fcntl
import glob
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from typing import IO, Iterable, Iterator

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What administrators hook into apt for their own upgrades: needrestart would restart services of the host, jobs and all (MODE is
# for versions that know no SUSPEND); the others would ask questions, or mail answers.
_QUIET = {
    "LC_ALL": "C",
    "DEBIAN_FRONTEND": "noninteractive",
    "NEEDRESTART_SUSPEND": "1",
    "NEEDRESTART_MODE": "l",
    "APT_LISTCHANGES_FRONTEND": "none",
    "APT_LISTBUGS_FRONTEND": "none",
    "UCF_FORCE_CONFFOLD": "1",
}
_APT_PATIENCE_S = 900
_HALF = ("half-installed", "half-configured", "unpacked")
_ABSENT = ("", "not-installed", "config-files")


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def lines_of(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]


def output_of(*command: str) -> str:
    """Empty where there is no such program."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    except OSError:
        return ""
    return done.stdout.decode("utf-8", "surrogateescape")


class Transaction:
    """What both families have."""

    def __init__(self, directory: str, program: str) -> None:
        self.directory = directory
        self.program = program
        records = (line.split("\t") for line in lines_of(read(f"{directory}/../placed")))
        self._ours = {fields[1] for fields in records if fields[0] == "package"}

    def at(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def read(self, name: str) -> str:
        return read(self.at(name))

    def append(self, name: str, text: str) -> None:
        with open(self.at(name), "a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)

    def refuse(self, reason: str) -> None:
        """The first one counts."""
        if not self.read("refused"):
            self.append("refused", f"{reason}\n")

    def flush(self, name: str) -> None:
        descriptor = os.open(self.at(name), os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    def is_ours(self, name: str) -> bool:
        """A package that an earlier transaction of ours installed."""
        return name in self._ours

    def run(self, *command: str, output: str = "log", errors: str = "stderr", fresh: bool = False) -> int:
        """Appends what it prints. A daemon that a package starts does not inherit our lock."""
        with open(self.at(output), "ab") as out, open(self.at(errors), "wb" if fresh else "ab") as err:
            try:
                return subprocess.call(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            except OSError as error:
                err.write(f"{command[0]}: {error.strerror}\n".encode())
                return 127

    def check_file(self, name: str, path: str) -> None:
        """A path of a package that is not installed yet. What exists there belongs to somebody, and dpkg and rpm would overwrite
        it without a word where it is of no package, as after an installation from an archive."""
        file = os.path.basename(path)
        if re.search(r"/systemd/system/[^@]*\.(service|socket|timer)$", path) and os.path.isdir("/run/systemd/system"):
            state = output_of("systemctl", "show", "--property=LoadState", "--value", file).strip()
            if state not in ("", "not-found"):
                where = output_of("systemctl", "show", "--property=FragmentPath", "--value", file).strip()
                self.refuse(f"{name} contains the unit {file}, which exists on this host ({where})")
        elif re.search(r"/s?bin/[^/]*$", path):
            for other in ("/usr/local/bin", "/usr/local/sbin", "/opt/bin"):
                if os.path.exists(f"{other}/{file}"):
                    self.refuse(f"{name} contains the program {file}, which exists on this host ({other}/{file})")
        if os.path.lexists(path) and not self.owns(name, path):
            self.refuse(f"{name} contains {path}, which exists on this host")

    def owns(self, name: str, path: str) -> bool:
        raise NotImplementedError

    def install(self, names: list[str]) -> int:
        raise NotImplementedError

    def reinstall(self, names: list[str]) -> int:
        raise NotImplementedError

    def purge(self, names: list[str]) -> int:
        raise NotImplementedError

    def installed(self) -> Iterator[str]:
        """Lines of `names`."""
        raise NotImplementedError


# --- Debian ---------------------------------------------------------------------------------------------------------------------


class Debian(Transaction):
    """apt itself reports what it is about to install, under its locks, so another installer's packages are never included.
    Protocol 3 of Pre-Install-Pkgs: its configuration, an empty line, then a line per package: name, version before (- for none),
    its architecture and Multi-Arch, <=>, version after, its architecture and Multi-Arch, file. Source: apt.conf(5),
    apt-pkg/deb/dpkgpm.cc of apt 2.6, read 2026-11-22."""

    def owns(self, name: str, path: str) -> bool:
        owner = output_of("dpkg-query", "--search", path)  # "NAME: PATH", also of a package whose configuration was left
        return owner.startswith((f"{name}: ", f"{name}:"))

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
        return output_of("dpkg-query", "-W", "-f", "${db:Status-Status}", name).strip()

    def _all(self) -> list[list[str]]:
        return [line.split(" ", 1) for line in lines_of(output_of("dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n"))]

    def _apt(self, *arguments: str) -> int:
        """apt has three locks, and waits for at most one of them: of package lists, of downloads and of dpkg. At a host's first
        boot, when the daily upgrade runs too, any of them may be held for minutes."""
        waited_s = 0
        guard = f"Pre-Install-Pkgs::=env {sys.executable} -I -S -B '{self.program}' '{self.directory}' debian guard"
        # Without --no-remove, apt would remove conflicting packages, such as DCGM 3 in favor of DCGM 4, which is not ours to
        # decide.
        command = ["apt-get", "-q", "-y", "--no-install-recommends", "--no-remove"]
        command += ["-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"]
        command += ["-o", f"DPkg::{guard}", "-o", "DPkg::Tools::Options::env::Version=3"]
        while True:
            logged = len(self.read("log"))
            code = self.run(*command, *arguments, errors="attempt", fresh=True)
            said = self.read("attempt")
            if code == 0 or "Could not get lock " not in said or waited_s >= _APT_PATIENCE_S:
                # dpkg's own error, which apt prints among its output, says more than apt's about it.
                lines = self.read("log")[logged:].replace("\r", "").split("\n")
                why = [f"{line}{' '.join(('', lines[at + 1].lstrip())) if at + 1 < len(lines) else ''}\n"
                       for at, line in enumerate(lines) if line.startswith("dpkg: error processing ")]  # fmt: skip
                self.append("stderr", said + "".join(why[:1]))
                return code
            time.sleep(2)
            waited_s += 2

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
        if code == 0 or self.read("refused"):
            return code
        self._clear("stderr")
        self._apt("update")  # a fresh Debian image has no package lists yet; one repository that fails may not matter
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
        while os.listdir("/var/lib/dpkg/updates") or output_of("dpkg", "--audit").strip():
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
        for tries in range(60, 0, -1):
            code = self.run("dpkg", "--remove", *every, fresh=True)
            if code == 0 and whole:
                code = self.run("dpkg", "--purge", *whole, fresh=True)
            # dpkg does not wait for its lock, as apt does.
            if code == 0 or "lock" not in self.read("stderr") or tries == 1:
                return code
            time.sleep(2)
        return 1

    def installed(self) -> Iterator[str]:
        native = output_of("dpkg", "--print-architecture").strip()
        left: set[str] = set(lines_of(self.read("left-behind")))
        names = set()
        for line in lines_of(self.read("planned")):
            fields = line.split()
            if fields[1] == "-" and not fields[8].startswith("**"):
                names.add(fields[0] if fields[6] in (native, "all") else f"{fields[0]}:{fields[6]}")
        for name in sorted(names):
            if self._status(name) not in _ABSENT:  # it may not have got that far
                yield f"{name}\t{'remove' if name.partition(':')[0] in left else 'purge'}"


# --- RHEL -----------------------------------------------------------------------------------------------------------------------


class Rhel(Transaction):
    def owns(self, name: str, path: str) -> bool:
        return "owned" in output_of("rpm", "--query", "--file", path, "--queryformat", "owned")  # rpm itself detects a conflict

    def _dnf(self, *arguments: str, output: str) -> int:
        # Without -q, which would hide the address that failed.
        tool = "dnf" if shutil.which("dnf") else "yum"
        return self.run(tool, "-y", "--setopt=*.skip_if_unavailable=1", *arguments, output=output)

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
        listing = False
        for line in lines_of(self.read("planned")):
            if not line.startswith(" "):
                listing = line.startswith(("Upgrading", "Downgrading", "Replacing", "Removing"))
            elif listing and re.match(" [^ ]", line) and not self.is_ours(line.split()[0]):
                self.refuse(f"it would replace {line.split()[0]}")
        for each in self._planned():
            name = re.sub(r"\.(i[3-6]86|x86_64|aarch64|noarch)$", "", each)
            for directory in (self.at("rpms"), "/var/cache/yum"):
                for package in glob.glob(f"{directory}/**/{glob.escape(name)}-[0-9]*.rpm", recursive=True):
                    form = "[%{FILEMODES:perms} %{FILENAMES}\n]"
                    listed = output_of("rpm", "--query", "--package", "--nosignature", "--queryformat", form, package)
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

    def _planned(self) -> list[str]:
        return planned_by_dnf(lines_of(self.read("planned")), os.uname().machine)

    def installed(self) -> Iterator[str]:
        for name in self._planned():
            if output_of("rpm", "--query", "--queryformat", "installed", name).startswith("installed"):
                yield f"{name}\tpurge"


def planned_by_dnf(lines: Iterable[str], native: str) -> list[str]:
    """The names in dnf's transaction tables, the sections Installing, Installing dependencies and Installing weak dependencies. A
    name too long for its column is on a line of its own."""
    found: set[str] = set()
    waiting = ""
    listing = False

    def bring(name: str, arch: str) -> None:
        if name:
            found.add(name if arch in (native, "noarch", "") else f"{name}.{arch}")

    for line in lines:
        if not line.startswith(" "):
            bring(waiting, "")
            waiting = ""
            listing = bool(re.match("Installing.*:$", line))
        elif listing:
            words = line.split()
            if re.match(" [^ ]", line):
                bring(waiting, "")
                waiting = words[0]
                if len(words) > 1:
                    bring(words[0], words[1])
                    waiting = ""
            elif waiting and words:
                bring(waiting, words[0])
                waiting = ""
    bring(waiting, "")
    return sorted(found)


def _no_interrupt(*_: object) -> None:
    """Caught instead of ignored: child processes would inherit ignored signals forever."""


def main(arguments: list[str]) -> int:
    directory, family, verb, *names = arguments
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:{_PATH}".lstrip(":")
    os.environ.update(_QUIET)
    for word in shlex.split(read(f"{directory}/environment")):
        name, is_value, value = word.partition("=")
        if is_value:
            os.environ[name] = value
    families: dict[str, type[Transaction]] = {"debian": Debian, "rhel": Rhel}
    transaction = families[family](directory, os.path.abspath(sys.argv[0]))
    if verb == "guard":
        assert isinstance(transaction, Debian)
        return transaction.guard(sys.stdin.read())
    lock: IO[str] = open(f"{directory}/lock", "a")  # noqa: SIM115 # until the process ends
    os.dup2(os.open(f"{directory}/stderr", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), 2)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _no_interrupt)
    for name in ("planned", "names", "log"):
        transaction.append(name, "")
    fcntl.flock(lock, fcntl.LOCK_EX)
    code = 0
    if verb == "install":
        code = transaction.install(names)
    elif verb == "reinstall":
        code = transaction.reinstall(names)
    elif verb == "purge":
        code = transaction.purge(names)
    with open(f"{directory}/names", "w", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in transaction.installed()))
    transaction.flush("names")
    with open(f"{directory}/status.new", "w", encoding="utf-8") as file:
        file.write(f"{code}\n")
    transaction.flush("status.new")
    os.rename(f"{directory}/status.new", f"{directory}/status")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
