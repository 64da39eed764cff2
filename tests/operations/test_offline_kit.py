"""From a kit to a deployed host without any network: an empty HOME, and a network namespace that has loopback alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from gpu_fleet.operations import offline_kit
from gpu_fleet.toolchain.install import architecture
from gpu_fleet.toolchain.progress import Progress
from lab.gpu import setup
from tests import checkout
from tests.checkout import REPO

STACK = "offline"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
NO_NETWORK = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make offline-kit` wrote on the connected machine, with what there is on this one."""
    directory = tmp_path_factory.mktemp("connected")
    gpus = directory / "gpus"
    setup.init(state=gpus / "state", scenario="h100x8", hostname="offline-gpu-host")
    setup.place_tools(state=gpus / "state", bin_directory=gpus / "bin")
    host = {
        "connection": "local",
        "prefix": str(directory / "host"),
        "gpus": 8,
        "exporter": "nvidia_gpu_exporter",
        "supervisord": str(REPO / ".venv/bin/supervisord"),
        "toolPath": [str(gpus / "bin")],
        "kernelLog": str(gpus / "state/kernel.log"),
        "ports": {"gpuExporter": 29835, "nodeExporter": 29100, "alloy": 29345},  # loopback of a namespace of its own
    }
    config = {
        "datacenter": "nowhere",
        "cluster": "offline",
        "hosts": {"offline-gpu-host": host},
        "artifacts": {"source": "controller", "directory": "build/artifacts"},
        "metrics": {"url": "http://127.0.0.1:1/api/v1/push"},
    }
    copy = directory / "checkout"
    checkout.copy_to(copy)
    (copy / f"Pulumi.{STACK}.yaml").write_text(yaml.safe_dump({"config": {f"gpu-fleet:{key}": config[key] for key in config}}))
    (copy / "monitoring.key").write_text("a private key")
    for command in (
        ["init", "--quiet"],
        ["add", "--all", "--", ".", ":!monitoring.key", ":!Pulumi.*.yaml"],
        ["commit", "--quiet", "-m", "x"],
    ):
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@localhost", *command], cwd=copy, check=True)
    command = ["make", "offline-kit", f"STACK={STACK}", f"PYTHONS={PYTHON}", f"ARCH={architecture()}", "STAND_INS=1"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    [archive] = (copy / "build/offline-kit").iterdir()
    return archive


@pytest.fixture(scope="module")
def kit(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpacked on the disconnected machine."""
    directory = tmp_path_factory.mktemp("disconnected")
    subprocess.run(["tar", "-xf", archive, "-C", directory], check=True)
    [kit] = directory.iterdir()
    return kit


def offline(home: Path, directory: Path, *command: str, ok: bool = True) -> str:
    """What the command printed, run as somebody whose home is new on a machine whose network is cut."""
    path = os.pathsep.join([str(Path(sys.base_prefix) / "bin"), "/usr/local/bin", "/usr/bin", "/bin"])
    known = {
        "HOME": str(home),
        "PATH": path,
        "STAND_INS": "1",
        "PULUMI_CONFIG_PASSPHRASE": "x",
        "PULUMI_BACKEND_URL": f"file://{home}",
    }
    done = subprocess.run([*NO_NETWORK, *command], cwd=directory, env=known, capture_output=True, text=True, timeout=900)
    assert (done.returncode == 0) == ok, f"{' '.join(command)} exited {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def test_a_kit_says_what_is_a_stand_in_and_holds_no_untracked_file(kit: Path) -> None:
    contents = (kit / "CONTENTS").read_text()
    assert contents.startswith("NOT FOR REAL USE")
    lines = {line.split("  ")[0]: line for line in contents.splitlines()[2:]}
    assert "hosts: alloy" in lines and "Python packages" in lines and "pulumi" in lines
    assert all(line.strip() for line in lines)
    with tarfile.open(kit / "repository.tar") as tar:
        names = set(tar.getnames())
    assert {"Makefile", f"Pulumi.{STACK}.yaml"} <= names
    assert "monitoring.key" not in names


def test_a_kit_is_for_every_supported_python_unless_versions_are_given() -> None:
    """The other tests give one: the packages of all are a download of minutes."""

    def asked(*arguments: str) -> str:
        command = ["make", "--dry-run", "--always-make", "offline-kit", *arguments]
        shown = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout
        return shown[shown.index("gpu_fleet.operations.offline_kit") :]

    assert "--python" not in asked()
    assert re.findall(r"--python (\S+)", asked("PYTHONS=3.11 3.13")) == ["3.11", "3.13"]


def test_a_kit_of_real_programs_takes_no_stand_in(archive: Path, tmp_path: Path) -> None:
    copy = archive.parents[2]
    command = ["make", "offline-kit", f"STACK={STACK}", f"PYTHONS={PYTHON}", f"ARCH={'amd64'}"]
    environment = {name: value for name, value in os.environ.items() if name != "STAND_INS"}
    path = f"https_proxy=http://127.0.0.1:1 {' '.join(command)}"
    done = subprocess.run(["sh", "-c", path], cwd=copy, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode != 0 and "pulumi-language-python 3.259.0" in done.stderr, done.stderr
    assert len(list((copy / "build/offline-kit").iterdir())) == 1, "nothing is left of it"


# Stands for Python with pip: the index has one wheel, and says how often it was asked.
PIP = """#!/bin/sh
case "$*" in *" pip=="*) exit 0 ;; esac
while [ $# -gt 0 ]; do case $1 in --dest) dest=$2 ;; --find-links) kept=$2 ;; esac; shift; done
mkdir -p "$dest"
if [ -n "$kept" ]; then cp "$kept/one.whl" "$dest"; else echo >>"$INDEX" && cp "$INDEX" "$dest/one.whl"; fi
"""


def test_the_packages_of_a_kit_are_kept_for_the_next_and_downloaded_where_one_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, index, kept = tmp_path / "python", tmp_path / "index", tmp_path / "cache/gpu-fleet/wheels"
    python.write_text(PIP)
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("INDEX", str(index))

    def asked(kit: str) -> int:
        [entry] = offline_kit._packages(tmp_path / kit, "amd64", [PYTHON], Progress(quiet=True))
        assert entry.version == "1 wheels"
        return len(index.read_text())

    assert [asked("first"), asked("second")] == [1, 1]
    (kept / "one.whl").unlink()
    assert [asked("third"), asked("fourth")] == [2, 2]


def test_a_damaged_kit_is_refused_before_anything_is_written(kit: Path, tmp_path: Path) -> None:
    references, home = kit / "charts/REFERENCES", tmp_path
    good = references.read_text()
    references.write_text(good + "x")
    try:
        said = offline(home, kit, "python3", "install.py", str(tmp_path / "fleet"), ok=False)
    finally:
        references.write_text(good)
    assert "charts/REFERENCES is damaged: sha256 " in said
    assert not (tmp_path / "fleet").exists()


def test_a_host_is_deployed_from_a_kit_without_any_network(kit: Path, tmp_path: Path) -> None:
    home, fleet = tmp_path / "home", tmp_path / "fleet"
    home.mkdir()
    offline(home, kit, "python3", "install.py", str(fleet))
    shutil.rmtree(kit)  # it is not needed any more
    offline(home, fleet, "make", "setup")
    pulumi = [str(fleet / ".venv/bin/python"), "-m", "lab.standins", "run", "--", "pulumi"]
    offline(home, fleet, *pulumi, "stack", "init", STACK)
    assert "gpu-fleet:host:Host: (create)" in offline(home, fleet, "make", "preview", f"STACK={STACK}")
    # One namespace from up to destroy: what listens on its loopback is gone with it.
    script = f"""
        set -e
        make up STACK={STACK} YES=1
        curl --silent --fail http://127.0.0.1:29835/metrics | grep -c ^nvidia_smi_gpu_info
        if make check STACK={STACK}; then echo "no store answers here"; exit 1; fi
        {" ".join(pulumi)} destroy --yes --skip-preview --stack {STACK}
    """
    said = offline(home, fleet, "sh", "-c", script)
    assert "1 host: 1 ok." in said, said
    assert "8\n" in said
