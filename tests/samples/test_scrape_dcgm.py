"""What real dcgm-exporters say, handed on by the real node_exporter as start-scrape-dcgm runs it."""

from __future__ import annotations

import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_fleet.toolchain import find
from lab.ports import free_ports
from tests.samples.conftest import SAMPLES

BODIES = sorted((SAMPLES / "dcgm-exporter/metrics").glob("*.prom"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("copies")


@pytest.fixture(scope="module")
def url(directory: Path) -> Iterator[str]:
    [port] = free_ports(1)
    flags = ["--collector.disable-defaults", "--collector.textfile", f"--collector.textfile.directory={directory}"]
    command = [find("node_exporter"), *flags, "--web.disable-exporter-metrics", f"--web.listen-address=127.0.0.1:{port}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://127.0.0.1:{port}/metrics"
        finally:
            process.terminate()


def fetch(url: str) -> str:
    deadline = time.monotonic() + 120
    while True:
        try:
            return urllib.request.urlopen(url, timeout=60).read().decode()
        except urllib.error.URLError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def series(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """DCGM's series. A label without a value is none: node_exporter adds those where series of one name differ."""
    found = re.findall(r"^(DCGM_\w+)\{(.*)\} (\S+)$", text, re.MULTILINE)
    labels = re.compile(r'(\w+)="((?:[^"\\]|\\.)+)"')
    return {(name, frozenset(labels.findall(inside))): float(value) for name, inside, value in found}


@pytest.mark.parametrize("body", BODIES, ids=lambda path: path.stem)
def test_a_copy_has_the_series_of_the_original(body: Path, directory: Path, url: str) -> None:
    text = body.read_text()
    (directory / "dcgm-exporter.prom").write_text(f"{text}\n")  # the script adds the line end too, which recordings lack
    assert series(text) and series(fetch(url)) == series(text)
