"""What people change on a host by hand: each kind is found by a check, named so that a person knows what it is, and repaired."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.hosts import Site
from tests.hosts.placed import CONVERGE, PlacedHost
from tests.hosts.stack import left_as_found

LIBEXEC = "/opt/gpu-fleet/libexec"
COLLECT = "/opt/gpu-fleet/lib/python/on_host/collect"
UNITS = "/etc/systemd/system"

# What somebody does as root -> every line that a check then gives. They do not touch each other, so one check has to find all.
BY_HAND: dict[str, list[str]] = {
    # files
    "echo '// mine' >>/etc/gpu-fleet/alloy/discover.alloy": ["file /etc/gpu-fleet/alloy/discover.alloy: content differs"],
    ": >/etc/gpu-fleet/alloy/collect_kernel_journal.alloy": [
        "file /etc/gpu-fleet/alloy/collect_kernel_journal.alloy: content differs"
    ],
    f"rm {LIBEXEC}/start-reload-alloy": [f"file {LIBEXEC}/start-reload-alloy: missing"],
    f"chmod 777 {LIBEXEC}/start-alloy": [f"file {LIBEXEC}/start-alloy: mode is 777, not 755"],
    f"chmod u+s {LIBEXEC}/start-node-exporter": [f"file {LIBEXEC}/start-node-exporter: mode is 4755, not 755"],
    "chown ops /etc/gpu-fleet/alloy/process_kernel.alloy": [
        "file /etc/gpu-fleet/alloy/process_kernel.alloy: owner is ops:root, not root:root",
    ],
    f"chgrp ops {LIBEXEC}/run": [f"file {LIBEXEC}/run: owner is root:ops, not root:root"],
    f"ln -sf /dev/null {LIBEXEC}/fetch-metrics": [f"file {LIBEXEC}/fetch-metrics: is a symbolic link"],
    f"rm {LIBEXEC}/python-program; mkfifo {LIBEXEC}/python-program": [f"file {LIBEXEC}/python-program: is not a file"],
    f"chattr +i {LIBEXEC}/watch-alloy": [f"file {LIBEXEC}/watch-alloy: is locked against changes (chattr +i)"],
    # directories
    f"mkdir /root/elsewhere; mv {COLLECT} /root/elsewhere; ln -s /root/elsewhere/collect {COLLECT}": [
        f"directory {COLLECT}: is a symbolic link",
    ],
    "chmod 1777 /var/log/gpu-fleet": ["directory /var/log/gpu-fleet: mode is 777, not 755"],
    "echo x >/etc/gpu-fleet/alloy/extra.alloy": ["file /etc/gpu-fleet/alloy/extra.alloy: foreign file in our directory"],
    "mkdir /etc/gpu-fleet/alloy/backup": ["file /etc/gpu-fleet/alloy/backup: foreign file in our directory"],
    "echo x >/etc/gpu-fleet/secrets/note": ["file /etc/gpu-fleet/secrets/note: foreign file in our directory"],
    # values and secrets
    "sed -i s/lab-west/lab-east/ /etc/gpu-fleet/gpu-fleet.env": [
        "file /etc/gpu-fleet/gpu-fleet.env: content differs: GPU_FLEET_DATACENTER GPU_FLEET_STACK",
    ],
    "echo other >/etc/gpu-fleet/secrets/metrics-password": ["file /etc/gpu-fleet/secrets/metrics-password: content differs"],
    "chmod 644 /etc/gpu-fleet/secrets/logs-password": ["file /etc/gpu-fleet/secrets/logs-password: mode is 644, not 640"],
    # programs
    "cp --remove-destination /bin/true /opt/gpu-fleet/bin/node_exporter": [
        "program /opt/gpu-fleet/bin/node_exporter: content differs",
    ],
    "setcap cap_net_raw+ep /opt/gpu-fleet/bin/nvidia_gpu_exporter": [
        "program /opt/gpu-fleet/bin/nvidia_gpu_exporter: has unexpected capabilities (cap_net_raw=ep)",
    ],
    # services
    "systemctl stop gpu-fleet-node-exporter": ["service gpu-fleet-node-exporter: is not running (dead)"],
    "systemctl disable --quiet gpu-fleet-alloy": ["service gpu-fleet-alloy: is disabled"],
    f"mkdir {UNITS}/gpu-fleet-nvidia-gpu-exporter.service.d;"
    f"printf '[Service]\\nUser=root\\n' >{UNITS}/gpu-fleet-nvidia-gpu-exporter.service.d/override.conf;"
    "systemctl daemon-reload": [
        f"file {UNITS}/gpu-fleet-nvidia-gpu-exporter.service.d/override.conf: foreign file in our directory",
    ],
    "systemctl set-property --runtime gpu-fleet-alloy CPUQuota=5%": [
        "file /run/systemd/system.control/gpu-fleet-alloy.service.d/50-CPUQuota.conf: foreign file in our directory",
    ],
    # A directory that passes its group on, which is not ours to change: what is placed in it again still belongs to root:root.
    f"chgrp adm {UNITS}; chmod g+s {UNITS};"
    f"sed -i s/RestartSec=15/RestartSec=1500/ {UNITS}/gpu-fleet-textfile.service; systemctl daemon-reload": [
        f"file {UNITS}/gpu-fleet-textfile.service: content differs",
    ],
    f"rm {UNITS}/gpu-fleet-check.timer; systemctl mask --quiet --now gpu-fleet-check.timer": [
        f"file {UNITS}/gpu-fleet-check.timer: is a symbolic link",
        "service gpu-fleet-check: is masked and is not running (failed)",
    ],
    # accounts
    "usermod --shell /bin/bash gpu-fleet-textfile": [
        "user gpu-fleet-textfile: login shell is /bin/bash, not /usr/sbin/nologin",
    ],
    "sed -i 's|^\\(gpu-fleet-nvidia-gpu-exporter:.*:\\)/nonexistent:|\\1/root:|' /etc/passwd": [
        "user gpu-fleet-nvidia-gpu-exporter: home is /root, not /nonexistent",
    ],
    "gpasswd --delete gpu-fleet-alloy systemd-journal": ["user gpu-fleet-alloy: is not in group systemd-journal"],
    "userdel --force gpu-fleet-node-exporter": ["user gpu-fleet-node-exporter: missing"],
}

# What cannot be seen beside those: the same parts again.
MORE_BY_HAND: dict[str, list[str]] = {
    "rm -r /var/lib/gpu-fleet/textfile": [
        "directory /var/lib/gpu-fleet/textfile: missing",
        "file /var/lib/gpu-fleet/textfile/fleet_bundle.prom: missing",
    ],
    "sed -i '/^gpu-fleet-textfile:/d' /etc/group /etc/gshadow": ["user gpu-fleet-textfile: its group does not exist"],
    "gpasswd --add gpu-fleet-node-exporter adm": ["user gpu-fleet-node-exporter: is in group adm"],
    "systemctl kill --signal=STOP gpu-fleet-nvidia-gpu-exporter": [
        "service gpu-fleet-nvidia-gpu-exporter: http://127.0.0.1:9835/metrics does not respond",
    ],
    "systemctl stop --quiet gpu-fleet-check.timer": ["service gpu-fleet-check: is not running (dead)"],
    "chattr +i /etc/gpu-fleet/alloy": ["directory /etc/gpu-fleet/alloy: is locked against changes (chattr +i)"],
    f"echo '# mine' >>{UNITS}/gpu-fleet-alloy.service": [
        f"file {UNITS}/gpu-fleet-alloy.service: content differs",
        "service gpu-fleet-alloy: has a unit file that systemd has not read",
    ],
}


@pytest.fixture(scope="module")
def placed(site: Site, artifacts: Path) -> Iterator[PlacedHost]:
    placed = PlacedHost(site.hosts["metal-b"], artifacts)
    with left_as_found(placed.host):
        try:
            assert placed.apply().errors == {}
            yield placed
        finally:
            placed.host.ssh(f"rm -rf /root/elsewhere; chmod g-s {UNITS}; chgrp root {UNITS}")
            placed.leave()


@pytest.mark.parametrize("changes", [BY_HAND, MORE_BY_HAND], ids=["each part", "each part again"])
def test_what_people_change_is_found_named_and_repaired(placed: PlacedHost, changes: dict[str, list[str]]) -> None:
    placed.host.ssh("set -e\n" + "\n".join(changes))
    check = placed.check()
    assert sorted(check.drift) == sorted(line for lines in changes.values() for line in lines)
    assert check.code == 4
    assert placed.apply().errors == {}
    assert placed.check().drift == []


def test_a_host_that_nobody_touched_is_never_called_drifted(placed: PlacedHost) -> None:
    checks = f"for i in $(seq 20); do {CONVERGE} check --prefix '' 2>/dev/null | tail -n 1; done"
    results = placed.host.ssh(checks, timeout_s=600).stdout.splitlines()
    assert len(results) == 20
    assert [line for line in results if '"ok":true' not in line] == []
