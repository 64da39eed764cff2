"""An upstream of programs and what the tests make releases of."""

from __future__ import annotations

import hashlib
import io
import tarfile
import time
import zipfile
from collections.abc import Callable, Collection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gpu_fleet.toolchain import Cache, Program
from gpu_fleet.toolchain.install import Installer, architecture
from gpu_fleet.toolchain.progress import Progress
from gpu_fleet.toolchain.versions import Release, ReleaseFile

NOBODY = "http://127.0.0.1:1"  # port 1 is refused at once, as an upstream out of reach


def script(version: str) -> bytes:
    """A program that prints its version, as all of ours do."""
    return f"#!/bin/sh\necho 'tool, version {version} (branch: x)'\n".encode()


def executable(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)
    return path


def tar_gz(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zip_of(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        for name, content in members.items():
            zipped.writestr(name, content)
    return buffer.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Upstream:
    """Serves `files` (path -> body); `requests` lists the GETs.

    `cuts` says how often a path's answer breaks off half-way, `moved` where a path redirects to.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cuts: dict[str, int] = {}
        self.moved: dict[str, str] = {}
        self.requests: list[str] = []
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.send_response(200)
                self.end_headers()

            def do_GET(self) -> None:
                upstream.requests.append(self.path)
                if self.path in upstream.moved:
                    self.send_response(302)
                    self.send_header("Location", upstream.moved[self.path])
                    self.end_headers()
                    return
                body = upstream.files.get(self.path)
                if body is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if upstream.cuts.get(self.path, 0) > 0:
                    upstream.cuts[self.path] -= 1
                    body = body[: len(body) // 2]
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def release(self, name: str = "tool", version: str = "1.2.3", *, body: bytes | None = None, **file: object) -> Release:
        """A release of a bare binary served by this upstream, pinned unless `sha256=None`; `file` overrides its fields."""
        body = script(version) if body is None else body
        self.files[f"/{name}-{version}"] = body
        fields = {"url": f"{self.url}/{name}-{version}", "sha256": sha256(body), "checksums_url": f"{self.url}/sums", **file}
        return Release(name=name, version=version, files={architecture(): ReleaseFile(**fields)})  # type: ignore[arg-type]


def module(directory: Path, go_version: str = "1.26.5") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "go.mod").write_text(f"module gpu-fleet.invalid/tool\n\ngo {go_version}\n")
    return directory


class Run:
    """One run of the installer and what a person saw of it."""

    def __init__(self, cache: Cache):
        self.cache = cache
        self.seen = ""

    def install(
        self, *programs: Program, names: list[str] | None = None, optional: Collection[str] = (), **options: bool
    ) -> dict[str, str]:
        """Which optional programs no source has, and why."""
        out = io.StringIO()
        installer = Installer(cache=self.cache, programs={p.name: p for p in programs}, progress=Progress(out), **options)
        try:
            return installer.install(names, optional=optional)
        finally:
            self.seen = out.getvalue()

    def installed(self, program: Program) -> Path | None:
        """The installed file, or None; fails when anything unfinished was left behind."""
        partial = self.cache.root / "partial"
        assert not partial.exists() or not any(partial.iterdir()), "unfinished work was left in the cache"
        record = self.cache.record(program.name, program.release.version)
        return self.cache.directory(program.name, program.release.version) / record.program if record else None


def until(condition: Callable[[], bool]) -> None:
    """Waits for what another process or thread does; the limit is only for a test that would otherwise hang."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)
