"""The installer and gpu-fleet-pull with the oldest and the newest Python that this machine has, and how one is found."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.host.hosts import page, path_without, snapshot
from tests.host.pull.pulled import PulledHost

OLDEST = (3, 8)


def _pythons() -> dict[str, Path]:
    """Of pyenv, and the system's."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = sorted((tuple(map(int, path.name.split("."))), path / "bin/python3") for path in versions.glob("3.*.*"))
    fitting = [(".".join(map(str, version)), path) for version, path in found if version >= OLDEST]
    return {**dict(fitting[:1] + fitting[-1:]), "system": Path("/usr/bin/python3")}


@pytest.mark.parametrize("version", _pythons())
def test_a_host_is_installed_brought_forward_rolled_back_and_cleaned(pulled: PulledHost, tmp_path: Path, version: str) -> None:
    pulled.python = str(_pythons()[version])
    password = tmp_path / "password"
    password.write_text("x\\ny %s")
    pulled.site.publish([page(secrets=("metrics-password",))])
    run = pulled.install("--password-file", str(password))
    assert run.code == 0, run.said
    assert pulled.at("/etc/gpu-fleet/secrets/metrics-password").read_text() == "x\\ny %s"
    good = pulled.site.publish([page("é\n", secrets=("metrics-password",))])
    assert pulled.pull("--check").code == 0
    run = pulled.pull()
    assert run.code == 0, run.said
    assert pulled.at("/etc/page/index.html").read_text() == "é\n"
    pulled.site.publish([page("newer\n"), page(name="broken", probe="driver", files=(), directories=())])
    run = pulled.pull()
    assert run.code == 1 and f"bundle {good[:12]} is running" in run.said, run.said
    (pulled.site.directory / "latest").unlink()
    run = pulled.pull()
    assert run.code == 1
    assert f"cannot get {pulled.site.url}/latest: the server answered 404" in run.said
    assert pulled.pull("--remove").code == 0
    assert snapshot(pulled.prefix) == {}


def test_the_installer_works_from_a_pipe_with_every_shell(pulled: PulledHost) -> None:
    pulled.site.publish([page()])
    text = (pulled.site.directory / "install-gpu-fleet").read_text()
    for shell in filter(shutil.which, ("dash", "bash", "busybox")):
        command = [*([shell, "sh"] if shell == "busybox" else [shell]), "-s", "--", *pulled.installer()[2:]]
        done = subprocess.run(command, input=text, env={"PATH": pulled.path}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert pulled.pull("--remove").code == 0
        cut = subprocess.run(command, input=text[:-10], env={"PATH": pulled.path}, capture_output=True, text=True)
        assert snapshot(pulled.prefix) == {}, f"half of it was run: {cut.stderr}"


def test_the_installer_leaves_nothing_of_itself(pulled: PulledHost, tmp_path: Path) -> None:
    pulled.site.publish([page()])
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    pulled.environment = {"TMPDIR": str(temporary)}
    assert pulled.install().code == 0
    assert pulled.install("--cluster", "a b").code == 2
    assert list(temporary.iterdir()) == []


def test_a_host_without_python_is_refused_with_what_to_install(pulled: PulledHost) -> None:
    pulled.site.publish([page()])
    versions = [f"python3{minor}" for minor in ("", *(f".{number}" for number in range(8, 15)))]
    pulled.path = path_without(pulled.simulated.directory / "bin", *versions, "platform-python")
    pulled.environment = {"GPU_FLEET_ROOT": str(pulled.simulated.directory)}
    (pulled.simulated.directory / "usr").mkdir(exist_ok=True)
    run = pulled.install()
    assert run.code == 1 and run.said.startswith("install-gpu-fleet: this host has no Python 3.8 or newer"), run.said
    assert "install the distribution's" in run.said
    run = pulled.install("--python", "/opt/none/python3")
    assert run.said.startswith("install-gpu-fleet: /opt/none/python3, which was given as this host's python"), run.said
    assert snapshot(pulled.prefix) == {}
