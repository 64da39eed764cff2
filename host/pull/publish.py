"""Writes one publication of a stack: everything a host needs to bring itself to the stack's state and to stay there.

    latest                  the signed index: version, the bundle's sha256 and size, the stack's settings; and its signature
    bundle-<sha256>.tar     the bundle, byte by byte what push sends
    artifacts/<sha256>      programs, where the stack says `artifacts: controller`
    install-gpu-fleet       the installer, with the public key in it
    SHA256SUMS              of all of these but the index

A host takes an index only when its signature is good and its version is not lower than any it has seen. The index is written last
and in one file with its signature, so a copy of the directory taken at any moment is a whole publication.
Not done here: bringing the directory anywhere.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from host.bundle import Bundle
from host.part import ROOTFS

INDEX = "latest"
INSTALLER = "install-gpu-fleet"
NAMESPACE = "gpu-fleet"  # of the signatures: one made for something else with the same key is refused
_SIGNATURE_BEGIN = "-----BEGIN SSH SIGNATURE-----"


class PublishError(Exception):
    """There is no publication; the text says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Publication:
    """`settings`: what every host of the stack gets in its environment file, unless its installer was told otherwise.
    `artifacts`: directory of the files that the bundle leaves to us, by sha256. `url`: where the hosts find all of it, empty when
    that is not known; the installer then looks beside itself."""

    stack: str
    bundle: Bundle
    settings: Mapping[str, str]
    artifacts: Path | None = None
    url: str = ""

    def write(self, directory: Path, key: SigningKey, *, now_s: int) -> Path:
        """Returns the installer's path. `now_s`: becomes the version, or the one after the last in `directory` if that is higher.

        Raises PublishError.
        """
        directory.mkdir(parents=True, exist_ok=True)
        version = max(now_s, _version(directory / INDEX) + 1)
        files = {f"bundle-{self.bundle.digest}.tar": self.bundle.tar, INSTALLER: self._installer(key.public, version).encode()}
        index = self._index(version)
        signed = index + key.sign(index)
        for name, content in files.items():
            _replace(directory / name, content)
        sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        sums |= {f"artifacts/{digest}": digest for digest in self._copy_artifacts(directory / "artifacts")}
        _replace(directory / "SHA256SUMS", "".join(f"{sums[name]}  {name}\n" for name in sorted(sums)).encode())
        _replace(directory / INDEX, signed.encode())
        return directory / INSTALLER

    def _index(self, version: int) -> str:
        settings = "".join(f"setting {name}={value}\n" for name, value in sorted(self.settings.items()))
        bundle = f"bundle {self.bundle.digest} {len(self.bundle.tar)}"
        return f"gpu-fleet 1\nstack {self.stack}\nversion {version}\n{bundle}\n{settings}"

    def _installer(self, public_key: str, version: int) -> str:
        constants = {
            "PUBLIC_KEY": public_key,
            "PUBLISHED_STACK": self.stack,
            "PUBLISHED_VERSION": str(version),
            "PUBLISHED_FROM": self.url.rstrip("/"),
        }
        values = "".join(f"{name}={shlex.quote(value)}\n" for name, value in constants.items())
        library = (ROOTFS / "opt/gpu-fleet/lib/pull.sh").read_text()
        own = (Path(__file__).parent / "install.sh").read_text()
        return (
            f"#!/bin/sh\n# Makes this host one of the stack {self.stack}; --help tells how.\nset -u\n\n{values}\n{library}\n{own}"
        )

    def _copy_artifacts(self, directory: Path) -> list[str]:
        """Their names. Files that are there already are not copied again: they are named by what they hold."""
        for digest, artifact in sorted(self.bundle.artifacts.items()):
            source = self.artifacts / digest if self.artifacts else None
            if source is None or not source.is_file():
                raise PublishError(f"{artifact.path} ({artifact.arch}) is not in {self.artifacts}: no file {digest} there")
            directory.mkdir(exist_ok=True)
            if not (directory / digest).exists():
                partial = directory / f"{digest}.partial"
                shutil.copyfile(source, partial)
                partial.rename(directory / digest)
        return sorted(self.bundle.artifacts)


@dataclass(frozen=True)
class SigningKey:
    """An SSH key: its private file, or the public one (`.pub`) of a key that the ssh-agent holds."""

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
                f'Make a key for publications once, and keep it safe:\n  ssh-keygen -t ed25519 -C gpu-fleet -f "{self.path}"'
            ) from None

    def sign(self, text: str) -> str:
        """The detached signature, in armour. ssh-keygen asks for a passphrase on the terminal. Raises PublishError."""
        command = ["ssh-keygen", "-Y", "sign", "-n", NAMESPACE, "-f", str(self.path)]
        try:
            done = subprocess.run(command, input=text, capture_output=True, text=True)
        except FileNotFoundError:
            raise PublishError("ssh-keygen is not on the PATH; install OpenSSH's client, 8.1 or newer") from None
        if done.returncode or not done.stdout.startswith(_SIGNATURE_BEGIN):
            raise PublishError(f"ssh-keygen did not sign with {self.path}: {done.stderr.strip() or 'it gave no reason'}")
        return done.stdout


def _version(index: Path) -> int:
    """Of the publication that lies there; 0 when none does."""
    lines = index.read_text().splitlines() if index.is_file() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("version ")), 0)


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(content)
    partial.chmod(0o755 if path.name == INSTALLER else 0o644)
    partial.rename(path)
