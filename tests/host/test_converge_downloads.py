"""Downloaded programs: verified before they may run, and clearly reported when they do not arrive."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import io
import os
import platform
import ssl
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from gpu_fleet.host.part import Download, Part, Source
from gpu_fleet.on_host.converge import fetch
from gpu_fleet.on_host.converge.errors import Failure
from tests.host.hosts import SimulatedHost, page

ARCH = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
PATH = "/opt/gpu-fleet/bin/tool"
TOOL = b"#!/bin/sh\necho tool of version 1\n" + bytes(range(256)) * 300


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _part(sha256: str, url: str = "", member: str = "") -> Part:
    source = Source(sha256=sha256, url=url, member=member)
    return Part(name="tool", downloads=(Download(path=PATH, sources={ARCH: source}),))


@dataclass
class Mirror:
    """A file server. `cut`: ends a transfer after so many bytes, whatever length it announced."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cut: int | None = None
    sent: int = 0
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    mirror = Mirror()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            mirror.requests.append(self.path)
            if self.path == "/endless":
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(OSError):
                    while mirror.sent < 50_000_000:
                        mirror.sent += self.wfile.write(bytes(1_000_000))
                return
            content = mirror.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: mirror.cut])

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        mirror.url = f"http://127.0.0.1:{server.server_port}"
        yield mirror
        server.shutdown()


def _tar_gz(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _zip(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED, comment: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.comment = comment
    return buffer.getvalue()


def test_a_program_from_a_url_is_placed_executable_and_fetched_once(host: SimulatedHost, mirror: Mirror) -> None:
    mirror.files["/tool"] = TOOL
    part = _part(_sum(TOOL), f"{mirror.url}/tool")
    assert host.apply([part]).changes("tool") == [f"program {PATH}: missing"]
    assert host.at(PATH).read_bytes() == TOOL
    assert os.access(host.at(PATH), os.X_OK)
    assert host.apply([part]).result["changed"] == 0
    assert host.check().code == 0
    assert mirror.requests == ["/tool"]


@pytest.mark.parametrize(
    "archive",
    [
        pytest.param(("/tool.tar.gz", _tar_gz({"tool-1/README": b"read me", "tool-1/tool": TOOL})), id="tar.gz"),
        pytest.param(("/tool.zip", _zip({"tool-1/README": b"read me", "tool-1/tool": TOOL})), id="zip"),
        pytest.param(("/tool.zip", _zip({"tool-1/tool": TOOL}, zipfile.ZIP_STORED, b"a comment")), id="stored zip with comment"),
    ],
)
def test_a_program_is_taken_out_of_its_archive(host: SimulatedHost, mirror: Mirror, archive: tuple[str, bytes]) -> None:
    name, content = archive
    mirror.files[name] = content
    host.apply([_part(_sum(content), mirror.url + name, "tool-1/tool")])
    assert host.at(PATH).read_bytes() == TOOL
    assert host.check().code == 0


def test_every_byte_that_a_zip_may_hold_in_its_sums_arrives(host: SimulatedHost, mirror: Mirror) -> None:
    """The sum and the size of a member pass through the shell; some bytes mean something there."""
    for number, length in enumerate((0x2525, 0x5C5C, 0x0A0A, 0x0125)):
        content = bytes([number]) * length
        archive = _zip({"tool": content})
        mirror.files["/tool.zip"] = archive
        host.apply([_part(_sum(archive), f"{mirror.url}/tool.zip", "tool")])
        assert host.at(PATH).read_bytes() == content


def test_a_wrong_checksum_shows_both_sums_and_places_nothing(host: SimulatedHost, mirror: Mirror) -> None:
    mirror.files["/tool"] = TOOL + b"evil"
    apply = host.run("apply", [_part(_sum(TOOL), f"{mirror.url}/tool"), page()])
    assert apply.code == 1
    error = apply.error("tool")
    assert error["code"] == "checksum"
    assert _sum(TOOL) in error["message"]
    assert _sum(TOOL + b"evil") in error["message"]
    assert [path for path in host.prefix.rglob("*") if "tool" in path.name] == []
    assert apply.statuses["page"] == "changed"


def test_a_truncated_download_is_reported_and_leaves_nothing(host: SimulatedHost, mirror: Mirror) -> None:
    mirror.files["/tool"] = TOOL
    mirror.cut = 1000
    apply = host.run("apply", [_part(_sum(TOOL), f"{mirror.url}/tool")])
    assert apply.error("tool")["code"] == "download"
    assert f"cannot get {mirror.url}/tool" in apply.error("tool")["message"]
    assert list(host.at("/var/lib/gpu-fleet").glob("scratch.*")) == []
    mirror.cut = None
    host.apply([_part(_sum(TOOL), f"{mirror.url}/tool")])
    assert host.at(PATH).read_bytes() == TOOL


def test_a_missing_file_is_named_without_the_password_of_its_url(host: SimulatedHost, mirror: Mirror) -> None:
    url = mirror.url.replace("//", "//reader:planted-secret@") + "/tool"
    apply = host.run("apply", [_part(_sum(TOOL), url)])
    assert apply.error("tool")["code"] == "download"
    assert f"cannot get {mirror.url}/tool" in apply.error("tool")["message"]
    assert "404" in apply.error("tool")["message"]
    assert "planted-secret" not in apply.stdout + apply.stderr


def _certificate(file: Path, begins: datetime, ends: datetime) -> None:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, begins, ends)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    signed = made.add_extension(address, critical=False).sign(key, SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(signed.public_bytes(Encoding.PEM) + private)


@pytest.mark.parametrize(("from_year", "to_year"), [(2001, 2002), (2098, 2099)])
def test_a_certificate_out_of_its_time_shows_the_clock_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_year: int, to_year: int
) -> None:
    """As with a clock that is years off, where nobody looks at the certificate."""
    chain = tmp_path / "chain.pem"
    _certificate(chain, datetime(from_year, 1, 1), datetime(to_year, 1, 1))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("SSL_CERT_FILE", str(chain))
    monkeypatch.setattr(fetch, "_TRIES", 1)
    with pytest.raises(Failure, match=rf"this host's clock says {datetime.now(UTC):%Y-%m-%d} .*timedatectl"):
        fetch.fetch(f"https://127.0.0.1:{server.server_port}/tool", str(tmp_path / "tool"), 1000, "tool")
    server.shutdown()


def test_the_controller_is_asked_only_for_what_is_missing(host: SimulatedHost, mirror: Mirror) -> None:
    mirror.files["/other"] = b"other"
    other = Download(path="/opt/gpu-fleet/bin/other", sources={ARCH: Source(sha256=_sum(b"other"), url=f"{mirror.url}/other")})
    unwanted = Download(path="/opt/gpu-fleet/bin/unwanted", sources={ARCH: Source(sha256=_sum(b"unwanted"))})
    parts = [
        _part(_sum(TOOL)),
        Part(name="other", downloads=(other,)),
        Part(name="unwanted", downloads=(unwanted,), when={"UNWANTED": ("yes",)}, settings={"UNWANTED": "no"}),
    ]
    host.artifacts = None
    asked = host.run("apply", parts)
    assert (asked.code, asked.events[-1]) == (0, {"event": "needs", "files": [_sum(TOOL)]})
    assert host.run("needs", parts).stdout.split() == [_sum(TOOL)], "as gpu-fleet-pull asks"
    assert not host.at(PATH).exists() and not host.at("/opt").exists(), "nothing was done yet"
    assert not (host.prefix / "var/lib/gpu-fleet/placed").exists()
    host.artifacts = {_sum(TOOL): TOOL}
    host.apply(parts)
    assert host.at(PATH).read_bytes() == TOOL
    assert host.run("needs", parts).stdout == ""
    host.at(PATH).chmod(0o644)
    assert host.run("needs", parts).stdout == "", "a mode is repaired without sending the program again"
    host.artifacts = None
    assert host.apply(parts).result["ok"]
    assert host.at(PATH).stat().st_mode & 0o777 == 0o755 and host.at(PATH).read_bytes() == TOOL
    assert host.check().code == 0 and not list(host.at(PATH).parent.glob(".*"))


def test_an_artifact_directory_of_the_controller_is_read_in_place(host: SimulatedHost, tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    (artifacts / _sum(TOOL)).write_bytes(TOOL)
    assert host.run("apply", [_part(_sum(TOOL))], "--artifacts", str(artifacts)).code == 0
    assert host.at(PATH).read_bytes() == TOOL


def test_a_program_that_was_compressed_for_the_way_is_unpacked_at_its_place(host: SimulatedHost) -> None:
    sent = gzip.compress(TOOL)
    host.artifacts = {f"{_sum(TOOL)}.gz": sent[: len(sent) // 2]}
    apply = host.run("apply", [_part(_sum(TOOL))])
    assert apply.error("tool")["code"] == "checksum" and not host.at(PATH).exists()
    host.artifacts = {f"{_sum(TOOL)}.gz": b"no gzip"}
    assert "cannot unpack" in host.run("apply", [_part(_sum(TOOL))]).error("tool")["message"]
    assert not host.at(PATH).exists() and not list(host.at(PATH).parent.glob(".*"))
    host.artifacts = {f"{_sum(TOOL)}.gz": sent}
    host.apply([_part(_sum(TOOL))])
    assert host.at(PATH).read_bytes() == TOOL and host.at(PATH).stat().st_mode & 0o777 == 0o755
    assert host.check().code == 0


def test_a_forged_artifact_is_refused(host: SimulatedHost) -> None:
    host.artifacts = {_sum(TOOL): b"forged"}
    apply = host.run("apply", [_part(_sum(TOOL))])
    assert apply.error("tool")["code"] == "checksum"
    assert not host.at(PATH).exists()


def test_a_file_the_controller_did_not_send_is_requested(host: SimulatedHost) -> None:
    apply = host.run("apply", [_part(_sum(TOOL))])
    assert apply.error("tool")["code"] == "download"
    assert "artifact directory" in apply.error("tool")["message"]


def test_a_swapped_program_is_drift_and_replaced(host: SimulatedHost) -> None:
    host.artifacts = {_sum(TOOL): TOOL}
    host.apply([_part(_sum(TOOL))])
    swapped = TOOL.replace(b"version 1", b"version 6")
    host.at(PATH).write_bytes(swapped)  # the same length, in the same inode
    assert host.check().drift("tool") == [f"program {PATH}: content differs"]
    host.apply([_part(_sum(TOOL))])
    assert host.at(PATH).read_bytes() == TOOL


def test_a_program_that_was_only_touched_is_no_drift(host: SimulatedHost) -> None:
    host.artifacts = {_sum(TOOL): TOOL}
    host.apply([_part(_sum(TOOL))])
    os.utime(host.at(PATH), (0, 0))
    assert host.check().code == 0


def test_an_upgrade_replaces_the_program_and_a_failed_one_keeps_it(host: SimulatedHost) -> None:
    newer = TOOL.replace(b"version 1", b"version 2")
    host.artifacts = {_sum(TOOL): TOOL}
    host.apply([_part(_sum(TOOL))])
    assert host.run("apply", [_part(_sum(newer))]).code == 1
    assert host.at(PATH).read_bytes() == TOOL
    assert host.check().drift("tool") == [f"program {PATH}: another version"]
    host.artifacts = {_sum(newer): newer}
    assert host.apply([_part(_sum(newer))]).changes("tool") == [f"program {PATH}: another version"]
    assert host.at(PATH).read_bytes() == newer
    host.remove()
    assert not host.at(PATH).exists()
