"""The lab's own charts as packages: made by helm, under the names and versions that versions.yaml has of the official ones."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from gpu_fleet import toolchain
from gpu_fleet.toolchain import versions

SOURCES = Path(__file__).with_name("charts")


def package(name: str, into: Path) -> Path:
    """The .tgz of a chart, by our name of it: dcgm-exporter, gpu-operator, alloy, node-exporter, ..."""
    pinned = versions.chart(name)
    into.mkdir(parents=True, exist_ok=True)
    # helm puts a chart's dependencies beside its sources, which belong to the checkout.
    copy = into / "sources"
    if not copy.exists():
        shutil.copytree(SOURCES, copy)
    command = ["package", copy / pinned.chart, "--version", pinned.version, "--destination", into]
    if "dependencies:" in (copy / pinned.chart / "Chart.yaml").read_text():
        command.append("--dependency-update")
    subprocess.run([toolchain.find("helm"), *command], check=True, capture_output=True, text=True)
    return into / f"{pinned.chart}-{pinned.version}.tgz"
