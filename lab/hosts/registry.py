"""A container registry with one image, over TLS: a stand-in of the half of the OCI distribution specification that a pull needs.

    GET, HEAD  /v2/                              it is one
               /v2/NAME/manifests/DIGEST         the index, and the manifest it names
               /v2/NAME/blobs/DIGEST             configuration and layer

Not here: pushes, tags, logins. Source: github.com/opencontainers/distribution-spec, v1.1, "Pull"; read 2026-11-21.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import ssl
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

_OCI = "application/vnd.oci.image"


@dataclass
class Registry:
    """`name`: of the image. `content`: what there is by digest, with its media type."""

    name: str
    content: dict[str, tuple[str, bytes]] = field(default_factory=dict)

    def add(self, archive: Path) -> str:
        """The image of an archive as `docker save` writes it, for amd64. Returns the digest of its index."""
        with tarfile.open(archive) as tar:
            [image] = json.load(tar.extractfile("manifest.json"))
            config = self._put(f"{_OCI}.config.v1+json", tar.extractfile(image["Config"]).read())
            layers = [self._put(f"{_OCI}.layer.v1.tar", tar.extractfile(layer).read()) for layer in image["Layers"]]
        manifest = self._put_json(f"{_OCI}.manifest.v1+json", {"config": config, "layers": layers})
        manifest["platform"] = {"architecture": "amd64", "os": "linux"}
        return self._put_json(f"{_OCI}.index.v1+json", {"manifests": [manifest]})["digest"]

    @contextmanager
    def serving(self, *, certificate: Path, key: Path) -> Iterator[int]:
        """Its port on 127.0.0.1."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self)) as server:
            server.socket = context.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield server.server_address[1]
            server.shutdown()

    def _put(self, media_type: str, content: bytes) -> dict:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.content[digest] = (media_type, content)
        return {"mediaType": media_type, "digest": digest, "size": len(content)}

    def _put_json(self, media_type: str, document: dict) -> dict:
        return self._put(media_type, json.dumps({"schemaVersion": 2, "mediaType": media_type, **document}).encode())


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, registry: Registry, *args: object) -> None:
        self._registry = registry
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        name, _, rest = self.path.removeprefix("/v2/").rpartition("/manifests/" if "/manifests/" in self.path else "/blobs/")
        if self.path == "/v2/":
            self._answer(200, "application/json", b"{}")
        elif name != self._registry.name:
            self._refuse("NAME_UNKNOWN", "repository name not known to registry")
        elif rest not in self._registry.content:
            self._refuse("MANIFEST_UNKNOWN", "manifest unknown")
        else:
            self._answer(200, *self._registry.content[rest], digest=rest)

    do_HEAD = do_GET

    def _refuse(self, code: str, message: str) -> None:
        self._answer(404, "application/json", json.dumps({"errors": [{"code": code, "message": message}]}).encode())

    def _answer(self, status: int, media_type: str, content: bytes, digest: str = "") -> None:
        self.send_response(status)
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(content)))
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass
