"""Writes one publication of a stack: everything a host needs to apply the stack to itself and to keep following it.

    latest                  the signed index, then its signatures; docs/pull.md has its lines
    bundle-<sha256>.tar     the bundle, byte for byte what push sends
    artifacts/<sha256>      programs, where the stack says `artifacts: controller`
    install-gpu-fleet       the installer, with the public key in it
    SHA256SUMS              of all of these except the index

A host accepts an index only with a signature of a key it trusts, before the index expires, and when its version is not lower than
any it has seen. The index is written last, in one file with its signatures, so a copy of the directory taken at any moment is a
complete publication. Not done here: copying the directory anywhere.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_fleet.host.bundle import ENVIRONMENT, Bundle
from gpu_fleet.host.part import FIND_PYTHON, ROOTFS
from gpu_fleet.host.program import installer_modules

INDEX = "latest"
INSTALLER = "install-gpu-fleet"
NAMESPACE = "gpu-fleet"  # of the signatures: one made with the same key for another purpose is rejected
ALL = 10_000  # shares of the hosts are counted in units of 1/10,000
DAY_S = 86_400
CLOCKS_DIFFER_S = 300  # less is no reason for a word
_END = "END OF FILE"  # in the installer
_SIGNATURE_BEGIN = "-----BEGIN SSH SIGNATURE-----"


class PublishError(Exception):
    """Nothing was published; the text gives the reason and the fix."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When which hosts apply a new bundle. A host's place, from 0 to 9999, is derived from its name.

    `shares`: the hosts up to and including each wave, of 10,000; the last is 10,000. `pause_s`: from the last host of a wave to
    the first of the next. `hosts`, `bytes_per_s`: the downloads of all hosts are spread to stay below this rate; 0: not spread.
    """

    shares: Sequence[int] = (ALL,)
    pause_s: int = 0
    hosts: int = 0
    bytes_per_s: float = 0.0

    @property
    def has_waits(self) -> bool:
        return len(self.shares) > 1 or self.bytes_per_s > 0

    def waves(self, begins_s: int, size: int) -> list[tuple[int, int, int]]:
        """For each wave: its share, when its first host may start, and over how many seconds the others follow. `size`: bytes
        that one host fetches."""
        whole_s = self.hosts * size / self.bytes_per_s if self.bytes_per_s else 0.0
        waves, before = [], 0
        for share in self.shares:
            spread_s = math.ceil(whole_s * (share - before) / ALL)
            waves.append((share, begins_s, spread_s))
            begins_s, before = begins_s + spread_s + self.pause_s, share
        return waves


@dataclass(frozen=True, kw_only=True)
class Publication:
    """`settings`: the environment file of every host of the stack, without the options given to its installer.
    `artifacts`: directory of the files that the bundle expects from us, by sha256. `url`: where the hosts find the publication;
    empty when unknown: the installer then uses its own directory. `valid_s`: from signing to the expiry of the index.
    `spare_key`: public key that hosts trust too; an index signed by another key cannot replace it. `is_stopped`: hosts that have
    not applied this bundle yet do not apply it."""

    stack: str
    bundle: Bundle
    settings: Mapping[str, str]
    artifacts: Path | None = None
    url: str = ""
    valid_s: int = 30 * DAY_S
    spare_key: str = ""
    schedule: Schedule = field(default_factory=Schedule)
    is_stopped: bool = False

    def write(self, directory: Path, keys: Sequence[SigningKey], *, now_s: int) -> Written:
        """`keys`: each of them signs, and hosts trust only these from then on. `now_s`: becomes the version, unless the last
        version in `directory` is as high; then it becomes the one after that.

        Raises PublishError.
        """
        directory.mkdir(parents=True, exist_ok=True)
        before = _lines(directory / INDEX)
        version = max(now_s, *(int(line.split()[1]) + 1 for line in before if line.startswith("version ")), 0)
        if version > now_s + DAY_S:
            raise PublishError(
                f"{directory / INDEX} has version {version - 1}, which is more than a day in the future (now: {now_s}): no host "
                "accepts that. Correct the clock of this machine, or publish into an empty directory"
            )
        behind_s = version - 1 - now_s if version > now_s else 0
        signers = [key.public for key in keys]
        spare = [f"spare {self.spare_key}"] if self.spare_key else []
        content = self._content()
        size = self._new_bytes(directory)
        if set(content) <= set(before) and self.schedule.has_waits:  # signed again: hosts keep their turns
            waves = [line for line in before if line.startswith("wave ")]
        else:
            # Turns in the past would come at once.
            first_s = version if behind_s > CLOCKS_DIFFER_S and self.schedule.has_waits else now_s
            waves = [f"wave {share} {begins} {spread}" for share, begins, spread in self.schedule.waves(first_s, size)]
        index = "".join(
            f"{line}\n"
            for line in (
                "gpu-fleet 1",
                f"stack {self.stack}",
                f"version {version}",
                f"expires {now_s + self.valid_s}",
                *spare,
                *(f"key {key}" for key in signers),
                *waves,
                *(["stop"] if self.is_stopped else []),
                *content,
            )
        )
        signed = index + "".join(key.sign(index) for key in keys)
        files = {
            f"bundle-{self.bundle.digest}.tar": self.bundle.tar,
            INSTALLER: self._installer([*spare, *signers], version).encode(),
        }
        for name, text in files.items():
            _replace(directory / name, text)
        sums = {name: hashlib.sha256(text).hexdigest() for name, text in files.items()}
        sums |= {f"artifacts/{digest}": digest for digest in self._copy_artifacts(directory / "artifacts")}
        _replace(directory / "SHA256SUMS", "".join(f"{sums[name]}  {name}\n" for name in sorted(sums)).encode())
        _replace(directory / INDEX, signed.encode())
        *_, (_, last_begins, last_spread) = (tuple(int(word) for word in line.split()[1:]) for line in waves)
        return Written(
            directory / INSTALLER,
            size=size,
            done_s=last_begins + last_spread,
            expires_s=now_s + self.valid_s,
            behind_s=behind_s,
        )

    def _content(self) -> list[str]:
        """What hosts apply."""
        settings = [f"setting {name}={value}" for name, value in sorted(self.settings.items())]
        return [f"bundle {self.bundle.digest} {len(self.bundle.tar)}", *settings]

    def _new_bytes(self, directory: Path) -> int:
        """Bytes that a host with the previous publication fetches for this one, for the architecture that needs the most."""
        sizes = Counter[str]()
        for digest, artifact in self.bundle.artifacts.items():
            source = self.artifacts / digest if self.artifacts else None
            if source and source.is_file() and not (directory / "artifacts" / digest).exists():
                sizes[artifact.arch] += source.stat().st_size
        return len(self.bundle.tar) + max(sizes.values(), default=0)

    def _installer(self, trusted: Sequence[str], version: int) -> str:
        """One script, whose Python sources can be read in it."""
        published = {"stack": self.stack, "keys": ",".join(trusted), "version": str(version), "from": self.url.rstrip("/")}
        programs = {f"libexec/{Path(path).name}": (ROOTFS / path[1:]).read_bytes() for path in (ENVIRONMENT, FIND_PYTHON)}
        files = {name: content.decode() for name, content in {**programs, **installer_modules()}.items()}
        files["published"] = "".join(f"{name}={value}\n" for name, value in published.items())
        directories = sorted({str(Path(name).parent) for name in files})
        lines = [f"cat >\"$work/{name}\" <<'{_END}' &&\n{text}{_END}\n" for name, text in sorted(files.items())]
        if any(f"\n{_END}\n" in text for text in files.values()):
            raise AssertionError(f"a source has the line {_END}")
        head = f"#!/bin/sh\n# Adds this host to the stack {self.stack}; see --help.\nset -u\n"
        unpack = f'unpack() {{\n(cd "$work" && mkdir -p {" ".join(directories)}) || return\n{"".join(lines)}:\n}}\n'
        return "\n".join((head, unpack, (Path(__file__).parent / "install.sh").read_text()))

    def _copy_artifacts(self, directory: Path) -> list[str]:
        """Returns their names. Existing files are not copied again: they are named by their content."""
        for digest, artifact in sorted(self.bundle.artifacts.items()):
            source = self.artifacts / digest if self.artifacts else None
            if source is None or not source.is_file():
                missing = f"{self.artifacts} has no file {digest}; `make artifacts` fetches it"
                raise PublishError(f"{artifact.path} ({artifact.arch}) is missing: {missing}")
            directory.mkdir(exist_ok=True)
            if not (directory / digest).exists():
                partial = directory / f"{digest}.partial"
                shutil.copyfile(source, partial)
                partial.rename(directory / digest)
        return sorted(self.bundle.artifacts)


@dataclass(frozen=True)
class Written:
    """`size`: bytes that each host fetches. `done_s`: when the last host has had its turn; times are seconds since 1970.
    `behind_s`: how far this machine's clock is behind the last publication."""

    installer: Path
    size: int
    done_s: int
    expires_s: int
    behind_s: int = 0


@dataclass(frozen=True)
class SigningKey:
    """An SSH key: its private key file, or the public key file (`.pub`) of a key in the ssh-agent."""

    path: Path

    @property
    def public(self) -> str:
        """Type and key, without the comment. Raises PublishError."""
        public = self.path if self.path.suffix == ".pub" else self.path.with_name(f"{self.path.name}.pub")
        try:
            return " ".join(public.read_text().split()[:2])
        except OSError as error:
            raise PublishError(
                f"the public key {public} cannot be read ({error.strerror}). "
                f'Create a key for publications once, and keep it safe:\n  ssh-keygen -t ed25519 -C gpu-fleet -f "{self.path}"'
            ) from None

    def sign(self, text: str) -> str:
        """The detached signature, armored. ssh-keygen prompts for a passphrase on the terminal. Raises PublishError."""
        command = ["ssh-keygen", "-Y", "sign", "-n", NAMESPACE, "-f", str(self.path)]
        try:
            done = subprocess.run(command, input=text, capture_output=True, text=True)
        except FileNotFoundError:
            raise PublishError("ssh-keygen is not on the PATH; install OpenSSH's client, 8.1 or newer") from None
        if done.returncode or not done.stdout.startswith(_SIGNATURE_BEGIN):
            raise PublishError(f"ssh-keygen did not sign with {self.path}: {done.stderr.strip() or 'it printed no reason'}")
        return done.stdout


def _lines(index: Path) -> list[str]:
    """Lines of an index; none when the file does not exist."""
    return index.read_text().splitlines() if index.is_file() else []


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(content)
    partial.chmod(0o755 if path.name == INSTALLER else 0o644)
    partial.rename(path)
