"""Takes this host out of service for alerts, and returns it: what a reboot, a GPU reset or a driver upgrade causes meanwhile is
not notified. The end confirms that earlier GPU incidents of this host are over."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from .files import replace, text_of

USAGE = "usage: gpu-fleet-maintenance start [--free-gpus] [REASON] | stop | status"
STOPPED = Path("/run/gpu-fleet-maintenance")  # units, until the next boot, which starts them
# DCGM keeps the GPUs open, and then the driver refuses a reset, another MIG mode and its own removal. The other exporters ask
# nvidia-smi now and then. The timer of pull mode would start what is stopped here.
FROM_PACKAGES = "gpu-fleet-dcgm-exporter-host.service"
HOLDERS = ("gpu-fleet-pull.timer", "gpu-fleet-dcgm-exporter.service", "gpu-fleet-dcgm-exporter-podman.service", FROM_PACKAGES)
HOST_ENGINE = "nvidia-dcgm.service"  # of DCGM's packages: it has them open for that exporter
BEGUN = """\
# HELP gpu_fleet_maintenance 1 while this host is out of service, with the reason.
# TYPE gpu_fleet_maintenance gauge
gpu_fleet_maintenance{{reason="{reason}"}} 1
"""
ENDED = """\
# HELP gpu_fleet_maintenance_end_timestamp_seconds When this host was last returned to service.
# TYPE gpu_fleet_maintenance_end_timestamp_seconds gauge
gpu_fleet_maintenance_end_timestamp_seconds {now}
"""


def main(arguments: list[str]) -> int:
    prefix = os.environ["GPU_FLEET_PREFIX"]
    metrics = Path(f"{prefix}/var/lib/gpu-fleet/textfile/maintenance.prom")
    verb, *rest = arguments or [""]
    frees = rest[:1] == ["--free-gpus"]
    if len(rest) - frees > (verb == "start") or verb not in ("start", "stop", "status"):
        return _failed(2, USAGE)
    if verb == "status":
        found = re.search(r'^gpu_fleet_maintenance\{reason="(.*)"\} 1$', text_of(metrics), re.MULTILINE)
        print(f"in maintenance: {found[1]}" if found else "in service")
        return 0
    reason = (rest[frees:] or ["maintenance"])[0]
    if not re.fullmatch(r"[A-Za-z0-9 ._:/@#+-]+", reason):
        expected = "expected: letters, digits, spaces and . _ : / @ # + -"
        return _failed(2, f"gpu-fleet-maintenance: the reason is '{reason}'; {expected}")
    try:
        replace(metrics, BEGUN.format(reason=reason) if verb == "start" else ENDED.format(now=int(time.time())))
    except OSError:
        return _failed(1, f"gpu-fleet-maintenance: cannot write {metrics}; run it as root (sudo) on a host of the fleet")
    # Below a prefix the units of these names are those of the host itself.
    has_units = not prefix and Path("/run/systemd/system").is_dir()
    if verb == "start":
        _collect_evidence(prefix, reason)
        if frees and has_units:
            free_gpus()
    elif has_units:
        return_gpus()
    return 0


def _failed(status: int, text: str) -> int:
    print(text, file=sys.stderr)
    return status


def _collect_evidence(prefix: str, reason: str) -> None:
    """What comes next may be a reset or a reboot, which destroys what the driver knows."""
    program = Path(f"{prefix}/opt/gpu-fleet/bin/gpu-fleet-evidence")
    if program.exists():
        print("collecting evidence, for at most 90 seconds", file=sys.stderr, flush=True)
        subprocess.run([program, f"maintenance: {reason}"])


def free_gpus() -> None:
    """Stops what keeps the GPUs open for us."""
    stopped = [unit for unit in HOLDERS if _stop(unit)]
    if FROM_PACKAGES in stopped:
        # What needs the host engine stops with it.
        asked = ("systemctl", "show", "--value", "--property=RequiredBy", "--property=BoundBy", HOST_ENGINE)
        needing = subprocess.run(asked, stdout=subprocess.PIPE).stdout.decode().split()
        for unit in (*needing, HOST_ENGINE):
            _stop(unit)


def _stop(unit: str) -> bool:
    """Returns whether it ran."""
    if not _systemctl("is-active", "--quiet", unit):
        return False
    with STOPPED.open("a") as file:
        file.write(f"{unit}\n")
    if _systemctl("stop", unit):
        print(f"stopped {unit} until `gpu-fleet-maintenance stop`", file=sys.stderr)
    return True


def return_gpus() -> None:
    """Starts what was stopped."""
    for unit in text_of(STOPPED).split():
        _systemctl("start", unit)
    STOPPED.unlink(missing_ok=True)


def _systemctl(*arguments: str) -> bool:
    return subprocess.run(["systemctl", *arguments]).returncode == 0
