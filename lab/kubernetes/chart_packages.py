"""Charts as packages: the lab's own, under the names and versions that versions.yaml has of the official ones."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from components.kubernetes.charts import ChartSource, fetched
from gpu_fleet import toolchain
from gpu_fleet.toolchain import versions

SOURCES = Path(__file__).with_name("charts")


def package(name: str, into: Path) -> Path:
    """The .tgz of a chart, by our name of it: dcgm-exporter, gpu-operator, alloy, node-exporter, ... With NO_STAND_INS=1 it is
    the official one, from its repository, with the checksum of versions.yaml; raises ChartError if it cannot be fetched."""
    pinned = versions.chart(name)
    into.mkdir(parents=True, exist_ok=True)
    if os.environ.get("NO_STAND_INS") == "1":
        official = ChartSource(
            name=name, reference=pinned.chart, repository=pinned.repository, version=pinned.version, sha256=pinned.sha256
        )
        return Path(shutil.copy(fetched(official).file, into))
    # helm puts a chart's dependencies beside its sources, which belong to the checkout.
    copy = into / "sources"
    if not copy.exists():
        shutil.copytree(SOURCES, copy)
    command = ["package", copy / pinned.chart, "--version", pinned.version, "--destination", into]
    if "dependencies:" in (copy / pinned.chart / "Chart.yaml").read_text():
        command.append("--dependency-update")
    subprocess.run([toolchain.find("helm"), *command], check=True, capture_output=True, text=True)
    return into / f"{pinned.chart}-{pinned.version}.tgz"
