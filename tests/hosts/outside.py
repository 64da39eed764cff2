"""Scraping a host from outside: the site's certificate on the host, and the arguments of curl."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.hosts import Host

PASSWORD = "planted-scrape-secret"
CERTIFICATE, KEY = "/etc/ssl/gpu-test.pem", "/etc/ssl/gpu-test.key"
SECTION = {"username": "prometheus", "tls": {"certificateFile": CERTIFICATE, "keyFile": KEY}}
LOGIN = f"prometheus:{PASSWORD}"


def make_certificate(address: str, directory: Path, *more: str) -> tuple[Path, Path]:
    """Key and certificate, which is its own authority. `address` and `more`: IP addresses or names."""
    key, certificate = directory / "key", directory / "ca.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    alternatives = ",".join(f"{'IP' if each[-1].isdigit() else 'DNS'}:{each}" for each in (address, *more))
    name = ["-subj", "/CN=lab", "-addext", f"subjectAltName={alternatives}"]
    subprocess.run([*make, *name, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return key, certificate


@contextmanager
def with_certificate(host: Host, directory: Path) -> Iterator[Path]:
    """The host has one for its address, as a site's PKI puts it there. Yields the authority's, in the directory."""
    key, certificate = make_certificate(host.address, directory)
    for source, target in ((key, KEY), (certificate, CERTIFICATE)):
        there = host.inside / target.lstrip("/")
        there.write_text(source.read_text())
        there.chmod(0o644)  # the lab's hosts have no group of keys
    try:
        yield certificate
    finally:
        host.ssh(f"rm -f {CERTIFICATE} {KEY}")


def asked(url: str, ca: Path, login: str = "") -> tuple[str, str]:
    """Status as curl prints it (000: no answer), and body."""
    user = ["--user", login] if login else []
    done = subprocess.run(
        ["curl", "-s", "--max-time", "60", "--cacert", ca, *user, "-w", "\n%{http_code}", url], capture_output=True, text=True
    )
    body, _, status = done.stdout.rpartition("\n")
    return status, body
