"""A signed package repository for real apt or dnf, laid out as NVIDIA's: a directory per architecture, `gpgkey` at the top."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import tempfile
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

_SUMS = {"MD5Sum": hashlib.md5, "SHA256": hashlib.sha256}


@dataclass(frozen=True)
class Repository:
    """`directory` is what a web server serves. `packages_below`: where the packages lie in it."""

    directory: Path
    packages_below: str = "stable/deb/amd64"

    @property
    def packages(self) -> Path:
        return self.directory / self.packages_below

    @property
    def key_sha256(self) -> str:
        return hashlib.sha256((self.directory / "gpgkey").read_bytes()).hexdigest()

    def publish(self) -> None:
        """For apt: lists the files in `packages` and signs the list."""
        listed = subprocess.run(["dpkg-scanpackages", "--multiversion", "."], cwd=self.packages, check=True, capture_output=True)
        (self.packages / "Packages").write_bytes(listed.stdout)
        (self.packages / "Packages.gz").write_bytes(gzip.compress(listed.stdout, mtime=0))
        lines = ["Origin: gpu-fleet lab", "Suite: stable", f"Date: {formatdate(usegmt=True)}", "Architectures: amd64"]
        for title, algorithm in _SUMS.items():
            lines.append(f"{title}:")
            for name in ("Packages", "Packages.gz"):
                content = (self.packages / name).read_bytes()
                lines.append(f" {algorithm(content).hexdigest()} {len(content)} {name}")
        (self.packages / "Release").write_text("\n".join(lines) + "\n")
        self.sign(self.packages / "Release", "--clearsign", to="InRelease")

    def sign(self, file: Path, *how: str, to: str) -> None:
        """Beside the file, by a key made for this alone, whose public half becomes `gpgkey`. `how`: gpg's verb."""
        with tempfile.TemporaryDirectory() as home:
            gpg = ["gpg", "--homedir", home, "--batch", "--yes", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""]
            made = [*gpg, "--quick-gen-key", "gpu-fleet lab", "ed25519", "sign", "never"]
            subprocess.run(made, check=True, capture_output=True)
            subprocess.run([*gpg, "--output", file.with_name(to), *how, file], check=True, capture_output=True)
            key = subprocess.run([*gpg, "--armor", "--export"], check=True, capture_output=True).stdout
            subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False, capture_output=True)
        (self.directory / "gpgkey").write_bytes(key)
