"""`pin` of container images: the digest of the pinned tag, queried from a registry as Docker does it."""

from __future__ import annotations

import hashlib
import io
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from gpu_fleet.toolchain import ToolchainError
from gpu_fleet.toolchain.pin import pin
from gpu_fleet.toolchain.progress import Progress

INDEX = json.dumps({"schemaVersion": 2, "manifests": []}).encode()
DIGEST = f"sha256:{hashlib.sha256(INDEX).hexdigest()}"


class Registry(BaseHTTPRequestHandler):
    """Anonymous, by token, as nvcr.io. `claimed`: the digest in its headers."""

    claimed = DIGEST

    def do_GET(self) -> None:
        host = self.headers["Host"]
        if self.path.startswith("/token?"):
            return self._answer(200, json.dumps({"token": "for-everybody"}).encode())
        if self.headers.get("Authorization") != "Bearer for-everybody":
            scope = "repository:nvidia/dcgm-exporter:pull"
            return self._answer(401, b"", ("WWW-Authenticate", f'Bearer realm="http://{host}/token",scope="{scope}"'))
        if self.path == "/v2/nvidia/dcgm-exporter/manifests/1.2-3":
            assert "image.index" in self.headers["Accept"], "the digest has to hold for all architectures"
            return self._answer(200, INDEX, ("Docker-Content-Digest", type(self).claimed))
        return self._answer(404, b"")

    def _answer(self, code: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(code)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Registry, "claimed", DIGEST)
    with HTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def versions_file(tmp_path: Path, repository: str, tag: str = "1.2-3") -> Path:
    file = tmp_path / "versions.yaml"
    file.write_text(
        f"programs: {{}}\nimages:\n  dcgm-exporter:\n    repository: {repository}\n    tag: {tag}\n    digest: unpinned\n"
    )
    return file


def test_the_digest_of_the_tag_is_written_and_nothing_else(tmp_path: Path, registry: str) -> None:
    file = versions_file(tmp_path, f"{registry}/nvidia/dcgm-exporter")
    before, out = file.read_text(), io.StringIO()
    pin(["dcgm-exporter"], Progress(out), file)
    source = f"{registry}/nvidia/dcgm-exporter:1.2-3 as its registry serves it now"
    assert (
        re.sub(r", 20\d\d-\d\d-\d\d$", "", file.read_text().rstrip())
        == before.replace("unpinned", f"{DIGEST}  # {source}").rstrip()
    )
    assert "Review the change" in out.getvalue()


def test_a_registry_that_sends_something_else_than_it_names_pins_nothing(
    tmp_path: Path, registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Registry, "claimed", f"sha256:{'0' * 64}")
    file = versions_file(tmp_path, f"{registry}/nvidia/dcgm-exporter")
    before = file.read_text()
    with pytest.raises(ToolchainError, match="nothing is pinned"):
        pin([], Progress(io.StringIO()), file)
    assert file.read_text() == before


@pytest.mark.parametrize(("repository", "tag", "says"), [("", "none", "Not Found"), ("127.0.0.1:1/x", "1.2-3", "refused")])
def test_an_image_that_cannot_be_found_is_reported_with_its_registry(
    tmp_path: Path, registry: str, repository: str, tag: str, says: str
) -> None:
    file = versions_file(tmp_path, repository or f"{registry}/nvidia/dcgm-exporter", tag)
    with pytest.raises(ToolchainError, match=rf"image dcgm-exporter: the registry 127\.0\.0\.1:\d+ gave no digest .*{says}"):
        pin([], Progress(io.StringIO()), file)
