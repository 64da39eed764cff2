"""The same run under every shell this machine has, and with busybox in place of all the usual tools."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from gpu_fleet.host.part import Download, HttpCheck, Source
from tests.host.hosts import SimulatedHost, page, path_without, snapshot, web
from tests.host.test_converge_downloads import ARCH, TOOL, _sum, _zip

SHELLS = {
    name: command
    for name, command in {
        "dash": ("dash",),
        "bash": ("bash",),
        "busybox": ("busybox", "sh"),
        "busybox alone": ("sh",),
    }.items()
    if shutil.which("busybox" if name.startswith("busybox") else command[0])
}


def _busybox_alone(directory: Path) -> str:
    """A PATH with nothing but busybox: no GNU tool, no curl. Debian's has no flock, others do."""
    directory.mkdir()
    (directory / "flock").symlink_to(shutil.which("flock"))
    applets = subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True).stdout.split()
    for applet in set(applets) - {"flock"}:
        (directory / applet).symlink_to(shutil.which("busybox"))
    return str(directory)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_host_is_converged_checked_and_cleaned(tmp_path: Path, free_port: int, shell: str) -> None:
    host = SimulatedHost.below(tmp_path, "a host", shell=SHELLS[shell])
    if shell == "busybox alone":
        host.path = _busybox_alone(tmp_path / "busybox")
    host.settings |= {"WEB_PORT": str(free_port), "TRICKY": 'a "b" \\ $c `d` é'}
    host.secrets = {"page-password": "x\\ny"}
    archive = _zip({"tool": TOOL})
    tool = Download(path="/opt/gpu-fleet/bin/tool", sources={ARCH: Source(sha256=_sum(TOOL))})
    host.artifacts = {_sum(TOOL): TOOL, _sum(archive): archive}
    parts = [page(downloads=(tool,), secrets=("page-password",)), web(host)]
    try:
        assert host.run("plan", parts).code == 0
        host.apply(parts)
        assert host.apply(parts).result["changed"] == 0
        assert host.check().code == 0
        host.at("/etc/page/index.html").write_text("by hand")
        host.at("/etc/page/extra").write_text("by hand")
        assert len(host.check().drift("page")) == 2
        host.apply([page("é\n"), web(host, "newer")])
        assert host.remove().code == 0
        assert snapshot(host.prefix) == {}
    finally:
        host.stop()


def test_services_are_asked_on_a_host_without_curl_and_wget(tmp_path: Path, free_port: int) -> None:
    host = SimulatedHost.below(tmp_path, path=path_without(tmp_path / "bin", "curl", "wget"))
    host.settings["WEB_PORT"] = str(free_port)
    try:
        host.apply([web(host)])
        other = replace(
            web(host, "newer"), checks=(HttpCheck(url="http://127.0.0.1:${WEB_PORT}/", contains="another page", within_s=10),)
        )
        unit = tmp_path / "rootfs/etc/gpu-fleet/supervisor.d/gpu-fleet-web.conf"
        unit.write_text(f"{unit.read_text()}stopwaitsecs = 9\n")
        message = host.run("apply", [other]).error("web")["message"]
        assert "responds, but without another page" in message
        assert message.endswith("the previous version runs again")
    finally:
        host.stop()


def test_a_host_that_cannot_ask_its_services_is_refused_before_anything_is_placed(tmp_path: Path) -> None:
    host = SimulatedHost.below(tmp_path, path=path_without(tmp_path / "bin", "curl", "wget", "bash"))
    assert host.run("apply", [page()]).error("host") == {
        "code": "unsupported",
        "message": "this host has neither curl nor wget nor bash, one of which is needed to check services; install one",
    }
    assert not host.at("/etc").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_archives_are_unpacked(tmp_path: Path, shell: str) -> None:
    host = SimulatedHost.below(tmp_path, shell=SHELLS[shell])
    if shell == "busybox alone":
        host.path = _busybox_alone(tmp_path / "busybox")
    library = Path(__file__).parents[2] / "gpu_fleet/host/converge/lib"
    (tmp_path / "tool.zip").write_bytes(_zip({"README": b"x", "a/tool": TOOL}))
    with tarfile.open(tmp_path / "tool.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo("a/tool")
        info.size = len(TOOL)
        tar.addfile(info, BytesIO(TOOL))
    for archive in ("tool.zip", "tool.tar.gz"):
        script = (
            'SCRATCH=$2 NEW=$2/new; . "$1/errors.sh"; . "$1/downloads.sh"; no_error; '
            'unpack "$2/$3" a/tool "$3" || echo "$FAIL_MESSAGE"'
        )
        command = [*host.shell, "-c", script, "sh", str(library), str(tmp_path), archive]
        run = subprocess.run(command, env={"PATH": host.path}, capture_output=True, text=True, check=True)
        assert run.stdout + run.stderr == ""
        assert (tmp_path / "new").read_bytes() == TOOL


@pytest.mark.parametrize("shell", SHELLS)
def test_what_services_log_becomes_json_whatever_bytes_it_has(tmp_path: Path, shell: str) -> None:
    host = SimulatedHost.below(tmp_path, shell=SHELLS[shell])
    path = _busybox_alone(tmp_path / "busybox") if shell == "busybox alone" else host.path
    library = Path(__file__).parents[2] / "gpu_fleet/host/converge"
    awkward = {
        b'quote " and \\ backslash': 'quote " and \\ backslash',
        b"tab\tbell\x07escape\x1b[0m": "tab\tbell\x07escape\x1b[0m",
        "é → 日本 🙂".encode(): "é → 日本 🙂",
        b"latin \xe9 alone, cut \xe2\x86": "latin ? alone, cut ??",
        b"overlong \xc0\x80, surrogate \xed\xa0\x80": "overlong ??, surrogate ???",
        b"": "",
    }
    script = 'HERE=$1; LC_ALL=C; export LC_ALL; . "$1/lib/events.sh"; json list'
    run = subprocess.run(
        [*host.shell, "-c", script, "sh", str(library)],
        input=b"\n".join(awkward) + b"\n",
        env={"PATH": path},
        capture_output=True,
        check=True,
    )
    assert json.loads(run.stdout.decode()) == list(awkward.values())
