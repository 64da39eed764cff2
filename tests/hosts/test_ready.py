"""Whether work may start, on a real host: from its exporter, Alloy and the kernel log to the command that anybody may run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from alerts.readiness import table
from gpu_fleet.host.parts.readiness import COMMAND, STATE, Readiness
from lab.hosts import Site
from tests.hosts.placed import PlacedHost
from tests.hosts.stack import left_as_found

AS_ANYBODY = f"runuser -u nobody -- {COMMAND}"


@pytest.fixture(scope="module")
def placed(site: Site, artifacts: Path) -> Iterator[PlacedHost]:
    placed = PlacedHost(site.hosts["metal-b"], artifacts, options={"readiness": Readiness(table=table())})
    with left_as_found(placed.host):
        try:
            run = placed.apply()
            assert run.errors == {}, run.errors
            yield placed
        finally:
            placed.leave()


def test_a_host_is_ready_until_its_driver_says_that_a_gpu_is_lost_and_again_after_the_repair(
    placed: PlacedHost, eventually: Callable[..., None]
) -> None:
    host = placed.host

    def says(status: int, text: str = "") -> bool:
        done = host.ssh(AS_ANYBODY, check=False)
        return done.returncode == status and text in done.stdout

    shown = lambda: host.ssh(f"{AS_ANYBODY}; journalctl -u gpu-fleet-ready | tail -n 5", check=False).stdout  # noqa: E731
    eventually("the host is ready", lambda: says(0, "pass\n"), shown=shown)
    assert "gpu_fleet_ready_state 0" in host.ssh("curl --silent http://127.0.0.1:9100/metrics").stdout

    host.inject_xid(79, gpu_index=3)
    try:
        eventually("the lost GPU", lambda: says(2, "XID 79: Drain the node and reboot it."), shown=shown)
        eventually("the recovery action", lambda: says(2, "XID 154: "), shown=shown)
        prolog = host.ssh("SLURM_JOB_ID=4711 /opt/gpu-fleet/libexec/slurm-prolog")
        assert "job 4711 starts on a host that is not ready: fail: " in prolog.stderr
        # No Slurm is installed: nobody is harmed, and it is said.
        assert "gpu-fleet-ready: scontrol: " in host.ssh("/opt/gpu-fleet/libexec/slurm-health-check").stderr
        host.ssh("/opt/gpu-fleet/bin/gpu-fleet-maintenance start repair")
    finally:
        host.repair_gpus()
    host.ssh("systemctl restart gpu-fleet-nvidia-gpu-exporter; sleep 1; /opt/gpu-fleet/bin/gpu-fleet-maintenance stop")
    eventually("the repaired host is ready", lambda: says(0, "pass\n"), shown=shown)

    host.ssh("systemctl stop gpu-fleet-alloy")
    try:
        eventually(
            "nobody reads the kernel log", lambda: says(3, "Alloy, which reads the kernel log, does not answer"), shown=shown
        )
    finally:
        host.ssh("systemctl start gpu-fleet-alloy")


def test_a_service_that_was_stopped_makes_it_unknown_and_without_the_section_nothing_of_it_is_left(
    placed: PlacedHost, eventually: Callable[..., None]
) -> None:
    host = placed.host
    host.ssh(f'systemctl stop gpu-fleet-ready; sed -i \'s/"time": [0-9]*/"time": 1700000000/\' {STATE}/ready.json')
    done = host.ssh(AS_ANYBODY, check=False)
    assert done.returncode == 3 and "systemctl status gpu-fleet-ready" in done.stdout
    assert "service gpu-fleet-ready: is not running (dead)" in placed.check().drift

    assert PlacedHost(host, placed.artifacts).apply().errors == {}
    assert host.ssh("getent passwd gpu-fleet-ready", check=False).stdout == ""
    files = f"{COMMAND} {STATE} /var/lib/gpu-fleet/textfile/ready* /etc/systemd/system/gpu-fleet-ready*"
    left = lambda: host.ssh(f"ls -d {files} 2>/dev/null", check=False).stdout  # noqa: E731
    eventually("nothing is left", lambda: left() == "", within_s=60, shown=left)
