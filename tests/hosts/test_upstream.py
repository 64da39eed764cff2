"""A fleet whose hosts download the releases themselves, on both families of distributions: from upstream (the default), that is a
server that lays them out as GitHub does, with the same names, paths and archives, and a redirect to where the files are; and from
a mirror. Only the sums differ: the server's archives are packed here, so the copy of the checkout pins them."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import ssl
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gpu_fleet.host.artifacts import INDEX
from gpu_fleet.host.parts import PROGRAMS
from gpu_fleet.toolchain.install import architecture
from gpu_fleet.toolchain.versions import ReleaseFile, release
from lab.dev import query
from lab.hosts import Host, Site
from tests.hosts.outside import make_certificate
from tests.hosts.stack import Backend, Stack, config_of, left_as_found

RELEASES, FILES, MIRROR = "github.com", "release-assets.githubusercontent.com", "files.example.com"
FAMILIES = ("metal", "rhel")  # Debian's and RHEL's
TRUSTED = "/usr/local/share/ca-certificates/of-the-tests.crt"


@pytest.fixture(scope="module")
def archives(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """URL -> what upstream publishes there, packed from the fleet's artifacts."""
    directory = tmp_path_factory.mktemp("releases")
    packed = {}
    for line in (artifacts / INDEX).read_text().splitlines():
        digest, _, title = line.partition("  ")
        name = next((name for name in PROGRAMS if title.startswith(f"{name}-")), None)
        if name is None:  # a program of a monitoring server
            continue
        file = _file(name)
        packed[file.url] = directory / file.url.rpartition("/")[2]
        _pack(file, artifacts / digest, packed[file.url])
    return packed


def _file(name: str) -> ReleaseFile:
    return release(name).files[architecture()]


def _pack(file: ReleaseFile, program: Path, to: Path) -> None:
    if to.suffix == ".zip":
        with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as zipped:
            zipped.write(program, file.member)
    else:
        with tarfile.open(to, "w:gz", compresslevel=1) as tar:
            tar.addfile(tarfile.TarInfo(file.member.partition("/")[0] + "/LICENSE"), io.BytesIO())
            tar.add(program, file.member)


class _GitHub(http.server.BaseHTTPRequestHandler):
    """And a mirror, under its own name. `served`: the names under which files were fetched."""

    def __init__(self, files: Mapping[str, Path], served: set[str], *arguments: object) -> None:
        self._served = served
        self._files = {urlsplit(url).path: file for url, file in files.items()}
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        file = self._files.get(self.path)
        if file is None:
            self.send_error(404)
        elif self.headers["Host"] == RELEASES:
            self.send_response(302)
            self.send_header("Location", f"https://{FILES}{self.path}")
            self.end_headers()
        else:
            self._served.add(self.headers["Host"])
            self.send_response(200)
            self.send_header("Content-Length", str(file.stat().st_size))
            self.end_headers()
            with file.open("rb") as content:
                self.copyfile(content, self.wfile)

    def copyfile(self, source: io.BufferedReader, to: io.BufferedIOBase) -> None:
        while chunk := source.read(1 << 20):
            to.write(chunk)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def upstream(site: Site, hosts: list[Host], archives: Mapping[str, Path], scratch: Path) -> Iterator[set[str]]:
    """The hosts find GitHub and the mirror at the site's gateway and trust their certificate. Yields who served a file."""
    key, certificate = make_certificate(RELEASES, scratch, FILES, MIRROR)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    served: set[str] = set()
    handler = functools.partial(_GitHub, archives, served)
    with http.server.ThreadingHTTPServer((site.network.gateway, 443), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with ExitStack() as each:
                for host in hosts:
                    each.enter_context(_trusting(host, site.network.gateway, certificate))
                yield served
        finally:
            server.shutdown()


@contextmanager
def _trusting(host: Host, gateway: str, certificate: Path) -> Iterator[None]:
    hosts_file = host.ssh("cat /etc/hosts").stdout
    host.copy(certificate, TRUSTED)
    host.ssh(f"echo {gateway} {RELEASES} {FILES} {MIRROR} >>/etc/hosts && update-ca-certificates")
    try:
        yield
    finally:
        host.ssh("cat >/etc/hosts", stdin=hosts_file)
        host.ssh(f"rm {TRUSTED} && update-ca-certificates --fresh")


@pytest.mark.parametrize(
    ("source", "served_by"),
    [(None, {FILES}), ({"source": "mirror", "url": f"https://{MIRROR}"}, {MIRROR})],
    ids=["upstream", "mirror"],
)
def test_hosts_of_both_families_download_the_releases_themselves_and_send_metrics(
    source: dict[str, str] | None,
    served_by: set[str],
    site: Site,
    backend: Backend,
    archives: Mapping[str, Path],
    tmp_path: Path,
    eventually: Callable,
) -> None:
    hosts = [site.hosts[name] for name in FAMILIES]
    entries = {name: {**site.stack_hosts()[name], "exporter": "nvidia_gpu_exporter"} for name in FAMILIES}
    config = config_of(site, entries, tmp_path, backend)
    config["cluster"] = f"by-{'mirror' if source else 'upstream'}"  # the series of the other run are still in Mimir
    del config["artifacts"]  # the default
    if source:
        config["artifacts"] = source
    stack = Stack(tmp_path / "stack", config["cluster"], config).create()
    versions = stack.directory / "gpu_fleet/toolchain/versions.yaml"
    text = versions.read_text()
    for name in PROGRAMS:
        pinned = _file(name).sha256
        assert pinned and text.count(pinned) == 1
        text = text.replace(pinned, hashlib.sha256(archives[_file(name).url].read_bytes()).hexdigest())
    versions.write_text(text)
    with left_as_found(*hosts), upstream(site, hosts, archives, tmp_path) as served:
        try:
            stack.up()
            assert served == served_by
            for name in FAMILIES:
                gpus = f'nvidia_smi_utilization_gpu_ratio{{instance="{name}",cluster="{config["cluster"]}"}}'
                eventually(f"8 GPUs of {name} in Mimir", lambda gpus=gpus: len(query.metrics(backend.mimir, gpus)) == 8)
            stack.up("--expect-no-changes")
        finally:
            stack.destroy()


def test_an_archive_that_was_changed_on_its_way_is_refused_with_both_sums(
    site: Site, backend: Backend, archives: Mapping[str, Path], tmp_path: Path
) -> None:
    host = site.hosts["metal"]
    config = config_of(site, {"metal": site.stack_hosts()["metal"]}, tmp_path, backend)
    del config["artifacts"]
    stack = Stack(tmp_path / "stack", "upstream", config).create()  # pins upstream's own archives
    with left_as_found(host), upstream(site, [host], archives, tmp_path):
        try:
            output = stack.up(ok=False)
        finally:
            stack.destroy()
    for name in PROGRAMS[:1]:
        served = archives[_file(name).url].read_bytes()
        found = f"has sha256 {hashlib.sha256(served).hexdigest()} ({len(served)} bytes), but {_file(name).sha256} is expected"
        assert found in output, output
