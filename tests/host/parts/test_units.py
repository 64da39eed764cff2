"""Units and scripts as their own tools read them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from gpu_fleet.host.part import ROOTFS
from gpu_fleet.host.parts.monitoring import GRAFANA, SERVERS, Monitoring

SERVICES = sorted((ROOTFS / "etc/systemd/system").glob("*.service"))
_SERVER = Monitoring(programs={name: {} for name in (*SERVERS, GRAFANA)}, certificate="")
SYSTEMD_ONLY = {unit.name for part in _SERVER.parts() for unit in part.units}
READ_BY_OTHERS = ("environment",)
SCRIPTS = sorted(
    file for file in (ROOTFS / "opt/gpu-fleet/libexec").rglob("*") if file.is_file() and file.name not in READ_BY_OTHERS
)
EXPOSURE_LIMIT = 2.5  # systemd's own scale from 0 to 10; an unhardened service has 9.6
# One places files, users and packages as push does over SSH, the other reads what root alone may; the units say what that needs.
ROOT_SERVICES = (
    "gpu-fleet-pull",
    "gpu-fleet-check",
    "gpu-fleet-container-toolkit",
    "gpu-fleet-dcgm-exporter-podman",
    "gpu-fleet-jobs",
    "gpu-fleet-slurm-queue",
)


@pytest.mark.parametrize("service", SERVICES, ids=lambda file: file.stem)
def test_a_service_is_confined(service: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(service)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    exposure = float(re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)[1])
    assert exposure <= EXPOSURE_LIMIT, done.stdout


@pytest.mark.parametrize("service", [file for file in SERVICES if file.stem not in ROOT_SERVICES], ids=lambda file: file.stem)
def test_a_service_runs_as_a_user_of_its_own(service: Path) -> None:
    assert f"User={service.stem}\n" in service.read_text(), "the run script drops to the user of this name too"


def test_every_service_has_a_program_for_supervisor_of_the_same_name() -> None:
    programs = {file.stem for file in (ROOTFS / "etc/gpu-fleet/supervisor.d").glob("*.conf")}
    assert programs == {file.stem for file in SERVICES} - SYSTEMD_ONLY


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda file: file.name)
def test_a_script_is_posix_sh_and_can_be_executed(script: Path) -> None:
    assert script.read_text().startswith("#!/bin/sh\n")
    assert script.stat().st_mode & 0o111 == 0o111
