"""The installer and gpu-fleet-pull under every shell this machine has, and with busybox in place of the usual tools and curl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.host.hosts import page, snapshot
from tests.host.pull.pulled import PulledHost

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
    (directory / "flock").symlink_to(str(shutil.which("flock")))
    applets = subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True).stdout.split()
    for applet in set(applets) - {"flock"}:
        (directory / applet).symlink_to(str(shutil.which("busybox")))
    return str(directory)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_host_is_installed_brought_forward_and_cleaned(pulled: PulledHost, tmp_path: Path, shell: str) -> None:
    pulled.shell = SHELLS[shell]
    if shell == "busybox alone":
        pulled.path = _busybox_alone(tmp_path / "busybox")
        (tmp_path / "busybox/ssh-keygen").symlink_to(shutil.which("ssh-keygen"))
    password = tmp_path / "password"
    password.write_text("x\\ny %s")
    pulled.site.publish([page(secrets=("metrics-password",))])
    run = pulled.install("--password-file", str(password))
    assert run.code == 0, run.said
    assert pulled.at("/etc/gpu-fleet/secrets/metrics-password").read_text() == "x\\ny %s"
    pulled.site.publish([page("é\n", secrets=("metrics-password",))])
    assert pulled.pull("--check").code == 0
    run = pulled.pull()
    assert run.code == 0, run.said
    assert pulled.at("/etc/page/index.html").read_text() == "é\n"
    (pulled.site.directory / "latest").unlink()
    run = pulled.pull()
    assert run.code == 1
    assert f"cannot get {pulled.site.url}/latest: " in run.said and "404" in run.said
    assert pulled.pull("--remove").code == 0
    assert snapshot(pulled.prefix) == {}
