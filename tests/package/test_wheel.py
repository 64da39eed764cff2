"""`pip wheel .` gives the program's packages whole, also what hosts get."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from gpu_fleet.version import VERSION
from tests.checkout import REPO

PACKAGES = ("alerts", "components", "dashboards", "gpu_fleet")


def test_a_wheel_has_every_file_of_the_packages_as_it_is(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "checkout-index", "--all", f"--prefix={checkout}/"], cwd=REPO, check=True)
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, checkout], check=True)
    with zipfile.ZipFile(tmp_path / f"gpu_fleet-{VERSION}-py3-none-any.whl") as wheel:
        placed = {entry.filename: (entry.external_attr >> 16 & 0o100, wheel.read(entry)) for entry in wheel.infolist()}
    tracked = subprocess.run(["git", "ls-files", *PACKAGES], cwd=REPO, capture_output=True, text=True, check=True).stdout.split()
    expected = {name: ((REPO / name).stat().st_mode & 0o100, (checkout / name).read_bytes()) for name in tracked}
    assert {name: found for name, found in placed.items() if ".dist-info/" not in name} == expected
