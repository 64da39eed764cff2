"""docs/compatibility.md has the versions of versions.yaml and the lock file; `make setup` takes the Pythons that it names."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from gpu_fleet.toolchain.programs import PROGRAMS
from gpu_fleet.toolchain.versions import FILE, chart, read_charts, read_images, read_releases, release
from lab.hosts.variants import VARIANTS
from tests.checkout import REPO

PAGE = REPO / "docs/compatibility.md"
PROGRAM_OF_ROW = {
    "Pulumi": "pulumi",
    "pulumi-command": "pulumi-resource-command",
    "pulumi-kubernetes": "pulumi-resource-kubernetes",
    "pulumiverse-grafana": "pulumi-resource-grafana",
    "Helm": "helm",
    "Alloy": "alloy",
    "Mimir": "mimir",
    "Loki": "loki",
    "Prometheus, as store": "prometheus",
    "VictoriaMetrics, as store": "victoria-metrics",
    "Grafana": "grafana",
    "Caddy": "caddy",
    "node_exporter": "node_exporter",
    "nvidia_gpu_exporter": "nvidia_gpu_exporter",
    "Kubernetes": "kube-apiserver",
}


def rows() -> dict[str, list[str]]:
    """By program: what is pinned, and what it was tested with."""
    found = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    return {name: cells for name, *cells in found}


def test_the_page_has_the_pinned_versions_and_says_where_another_one_is_built() -> None:
    of_page = rows()
    for name, program in PROGRAM_OF_ROW.items():
        version, built = release(program).version, PROGRAMS[program].go
        pinned, tested = of_page[name][:2]
        assert pinned == ("-" if "as store" in name else version)
        assert tested.startswith(version)
        if built and built.differs:
            assert f"({built.differs})" in tested, f"{name}: what is built where it cannot be downloaded is another version"
    for name, row in of_page.items():
        if name.startswith("chart "):
            assert row[0] == chart(name.removeprefix("chart ")).version
    locked = re.search(r"(?m)^pulumi==([\d.]+)", (REPO / "requirements.txt").read_text())
    assert locked and of_page["pulumi (Python SDK)"][0] == locked[1]


def test_every_distribution_of_the_lab_is_named() -> None:
    tested = rows()["hosts"][1]
    for variant in VARIANTS.values():
        if variant.has_systemd:
            assert re.split(r" on bare metal|:", variant.text)[0] in tested


def test_everything_that_a_stack_uses_has_a_row() -> None:
    page = PAGE.read_text()
    of_tests = {"promtool", "versitygw", "kwok", "etcd", "kube-controller-manager", "kube-scheduler"}
    used = {release.version for name, release in read_releases(FILE).items() if name not in of_tests}
    used |= {image.tag for image in read_images(FILE).values() if image.repository != "nvcr.io/nvidia/cloud-native/dcgm"}
    used |= {chart.version for chart in read_charts(FILE).values()}
    assert [version for version in sorted(used) if version.removeprefix("v") not in page] == []


def test_an_older_python_is_refused_with_its_version_and_before_anything_is_installed(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    python = checkout / "programs/python3"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\n[ "$1" = -V ] && exec echo Python 3.10.12\nexit 1\n')
    python.chmod(0o755)
    for name in ("Makefile", "requirements.txt"):
        shutil.copy(REPO / name, checkout)
    environment = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["make", "setup", "BASE_PYTHONS=python3"], cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0 and "python3 is Python 3.10.12; 3.11 or newer is needed" in done.stdout
    assert not (checkout / ".venv").exists()


def test_a_python_that_is_too_old_is_passed_over_for_one_that_is_not(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("Makefile", "requirements.txt"):
        shutil.copy(REPO / name, checkout)
    old = checkout / "old"
    old.write_text("#!/bin/sh\nexit 1\n")
    new = checkout / "new"
    new.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "$@" >asked\nexit 1\n')
    for program in (old, new):
        program.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = ["make", "setup", f"BASE_PYTHONS={old} {new}"]
    subprocess.run(command, cwd=checkout, env=environment, capture_output=True, check=False)
    assert (checkout / "asked").read_text() == "-m venv .venv\n"
