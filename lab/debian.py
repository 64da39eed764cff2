"""Vendors' real programs from Debian's packages: downloaded and unpacked into the cache, never installed. Needs no root.

    $XDG_CACHE_HOME/gpu-fleet/debian/SUITE-NAME-DIGEST/    what the packages put below /, and VERSION, that of the first one

apt verifies the signatures with Debian's own keys. It gets the lists and packages of a suite in a directory of their own: the
machine's settings for apt (proxy, login) are used, its lists and sources are not touched.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpu_fleet.toolchain import Cache
from gpu_fleet.toolchain.progress import Progress
from lab.mirrors import mirror

KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class NoPackages(Exception):
    """The packages are not available here; the text says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Packages:
    """`names`: what is unpacked; dependencies are not looked at. `component`: of the suite, such as non-free."""

    suite: str
    component: str
    names: tuple[str, ...]

    @property
    def root(self) -> Path:
        digest = hashlib.sha256(" ".join((self.component, *self.names)).encode()).hexdigest()[:8]
        return Cache().root / "debian" / f"{self.suite}-{self.names[0]}-{digest}"

    @property
    def version(self) -> str:
        return (self.root / "VERSION").read_text().strip()

    def ensure(self, progress: Progress | None = None) -> Path:
        """The directory, after a download where it is missing. Raises NoPackages."""
        progress = progress or Progress()
        name = f"debian-{self.root.name}"
        with Cache().locked(name, lambda holder: progress.line(name, f"waiting for process {holder}")):
            if not self.root.is_dir():
                with Cache().partial(name) as partial:
                    progress.line(name, "downloading")
                    self._download(partial)
                    self._unpack(partial)
                    self.root.parent.mkdir(parents=True, exist_ok=True)
                    (partial / "root").rename(self.root)
        return self.root

    def _download(self, directory: Path) -> None:
        if not KEYRING.exists():
            raise NoPackages(
                f"{KEYRING} is missing, with which Debian's packages are verified: apt-get install debian-archive-keyring"
            )
        for name in ("lists/partial", "archives/partial", "sources", "packages"):
            (directory / name).mkdir(parents=True)
        url = mirror("debian", self.suite)
        (directory / "sources/debian.sources").write_text(
            f"Types: deb\nURIs: {url}\nSuites: {self.suite}\nComponents: {self.component}\nSigned-By: {KEYRING}\n"
        )
        settings = {
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": directory / "sources",
            "Dir::State::lists": directory / "lists",
            "Dir::State::status": "/dev/null",
            "Dir::Cache::archives": directory / "archives",
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            "APT::Sandbox::User": "",
            "Acquire::Languages": "none",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        }
        apt = ["apt-get", "--quiet", *(f"--option={name}={value}" for name, value in settings.items())]
        # An update that could not reach the mirror is a warning to apt.
        self._run([*apt, "--option=APT::Update::Error-Mode=any", "update"], directory)
        self._run([*apt, "download", *self.names], directory / "packages")

    def _unpack(self, directory: Path) -> None:
        for name in self.names:
            [package] = (directory / "packages").glob(f"{name}_*.deb")
            self._run(["dpkg-deb", "--extract", str(package), str(directory / "root")], directory)
            if name == self.names[0]:
                version = self._run(["dpkg-deb", "--field", str(package), "Version"], directory)
                (directory / "root/VERSION").write_text(version)

    def _run(self, command: list[str], directory: Path) -> str:
        if not shutil.which(command[0]):
            raise NoPackages(f"{command[0]} is missing, which gets {self.names[0]} from Debian's packages: use Debian or Ubuntu")
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = "; ".join((done.stdout + done.stderr).strip().splitlines()[-5:])
            url = mirror("debian", self.suite)
            raise NoPackages(
                f"{' '.join(self.names)} of Debian {self.suite}, {self.component}, are not available from {url}: set a mirror "
                f"that has them in /etc/apt, or https_proxy. {command[0]} said: {said}"
            )
        return done.stdout
