"""A real Slurm on hosts of the lab: slurmctld on the first, slurmd on each, with the GPUs that the lab simulates as its devices.

Debian's packages (22.05, 24.11, 26.05). The device files are those of /dev/null: nothing opens them. Their minor numbers are not
in the driver's order, as on real machines: position, minor and index of a GPU are three numbers.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.gpu.machine import MACHINE_FILE
from lab.hosts.errors import HostsError
from lab.hosts.host import Host

USER = "ops"
SHARDS = 4  # of each GPU
ORDER = (2, 3, 0, 1, 6, 7, 4, 5)  # of the GPUs' minor numbers in gres.conf
_READY_S = 180  # seconds on an idle machine

# systemd's sandbox hides what is mounted over /proc in a container; on a real host the driver's files are /proc's own.
_DRIVER_SEEN = """
mkdir -p /etc/systemd/system/service.d
printf '[Service]\\nProtectKernelTunables=no\\nProtectControlGroups=no\\n' >/etc/systemd/system/service.d/lab.conf
"""
_PARTITION = "PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
_CONF, _DBD_CONF = (Path(__file__).with_name(name) for name in ("slurm.conf", "slurmdbd.conf"))


@dataclass(frozen=True)
class Slurm:
    """`users`: who submits jobs, to their accounts; others than USER are made on the nodes, and Slurm keeps a record of jobs then
    (nodes of the variant slurm-accounting)."""

    controller: Host
    nodes: Sequence[Host]
    users: Mapping[str, str] = field(default_factory=lambda: {USER: ""})

    def start(self, settings: Mapping[str, str]) -> None:
        """`settings`: of slurm.conf: Prolog, Epilog. Returns when all nodes are idle. Raises HostsError."""
        gpus = len(ORDER)
        offered = f"gpu:{gpus},shard:{gpus * SHARDS}"
        lines = [f"NodeName={node.name} NodeAddr={node.address} CPUs=16 Gres={offered} State=UNKNOWN" for node in self.nodes]
        if any(self.users.values()):
            record = {"AccountingStorageType": "accounting_storage/slurmdbd", "AccountingStorageHost": self.controller.name}
            settings = {**settings, **record, "AccountingStorageTRES": "gres/gpu"}
        lines = [f"{name}={value}" for name, value in settings.items()] + lines
        lines = [f"SlurmctldHost={self.controller.name}({self.controller.address})", *lines, _PARTITION]
        conf = _CONF.read_text() + "".join(f"{line}\n" for line in lines)
        # Consecutive minors of one line would be put in their order.
        gres = "".join(f"Name=gpu File=/dev/nvidia{minor}\n" for minor in ORDER)
        gres += f"Name=shard Count={gpus * SHARDS}\n"
        for node in self.nodes:
            for file, text in (("slurm.conf", conf), ("gres.conf", gres)):
                node.ssh(f"cat >/etc/slurm/{file}", stdin=text)
            self.boot(node)
        accounts = {account for account in self.users.values() if account}
        if accounts:
            self._keep_records()
        self.controller.ssh("systemctl start slurmctld")
        for account in accounts:
            self.ask(f"sacctmgr --immediate add account {account}")
        for user, account in self.users.items():
            if account:
                self.ask(f"sacctmgr --immediate add user {user} account={account}")
        self.all_ready()

    def _keep_records(self) -> None:
        for node in self.nodes:
            for number, user in enumerate(sorted(self.users)):
                node.ssh(f"id {user} || useradd --create-home --uid {3000 + number} {user}")
        grant = "CREATE USER slurm@localhost; GRANT ALL ON slurm_acct_db.* TO slurm@localhost; CREATE DATABASE slurm_acct_db"
        self.controller.ssh(f"systemctl start mariadb && mariadb --execute '{grant}'")
        file = "/etc/slurm/slurmdbd.conf"
        conf = f"{_DBD_CONF.read_text()}DbdHost={self.controller.name}\n"
        self.controller.ssh(f"cat >{file} && chown slurm {file} && chmod 600 {file}", stdin=conf)
        self.controller.ssh("systemctl start slurmdbd")
        deadline = time.monotonic() + _READY_S
        while self.controller.ssh("sacctmgr --immediate add cluster lab", check=False).returncode != 0:
            if time.monotonic() > deadline:
                raise HostsError(f"slurmdbd does not answer:\n{self.ask('tail -n 20 /var/log/slurm/slurmdbd.log')}")
            time.sleep(1)

    def boot(self, node: Host) -> None:
        """What a driver does at each boot, and the daemons that the lab does not start by themselves."""
        node.ssh(_DRIVER_SEEN + "mount -t tmpfs tmpfs /proc/driver")
        for index, (path, text) in enumerate(driver_files((node.gpu_state / MACHINE_FILE).read_text()).items()):
            node.ssh(f"mkdir -p $(dirname {path}) && cat >{path} && mknod /dev/nvidia{index} c 1 3", stdin=text)
        hosts = "".join(f"{each.address} {each.name}\n" for each in self.nodes)
        node.ssh("cat >/etc/hosts", stdin=f"127.0.0.1 localhost\n{hosts}")
        node.ssh("systemctl daemon-reload && systemctl start munge slurmd")
        # Where it runs, it is in a sandbox of before, and sees nothing of the driver.
        node.ssh("systemctl --quiet try-restart gpu-fleet-jobs", check=False)

    def all_ready(self) -> None:
        """Every node may be given jobs."""
        deadline = time.monotonic() + _READY_S
        while not set(states := self.ask("sinfo --noheader --Node --format=%t").split()) <= {"idle", "mix", "alloc"}:
            if time.monotonic() > deadline:
                log = self.controller.ssh("tail -n 20 /var/log/slurm/*.log", check=False).stdout
                raise HostsError(f"Slurm's nodes are {states}:\n{log}")
            time.sleep(0.5)

    def ask(self, command: str) -> str:
        return self.controller.ssh(command).stdout

    def submit(self, script: str, *options: str, user: str = USER) -> str:
        """The job's id. `script`: one line of sh, run by a user of the hosts."""
        command = f"cd /tmp && runuser -u {user} -- sbatch --parsable --output=/dev/null {' '.join(options)} --wrap '{script}'"
        return self.ask(command).strip()

    def gpus_of(self, job_id: str, node: Host) -> set[str]:
        """The uuids that a job has there, as the controller numbers them."""
        said = self.ask(f"scontrol show job {job_id} --details --oneliner")
        of_node = re.search(rf"\bNodes=\S*{node.name[-1]}\S* .*?GRES=gpu:\d+\(IDX:([\d,-]+)\)", said)
        positions = of_node[1].split(",") if of_node else []
        ranges = [range(int(first), int(last or first) + 1) for first, _, last in (each.partition("-") for each in positions)]
        return uuids(node, [position for positions in ranges for position in positions])

    def kill(self, node: Host) -> None:
        """As an out-of-memory killer or an administrator does: the daemon, its jobs and what would have run their epilogs."""
        node.ssh(
            "systemctl kill --signal=KILL --kill-whom=all slurmd; pkill -KILL slurmstepd; "
            f"pkill -KILL -u {','.join(self.users)} sleep; true"
        )
        node.ssh("systemctl reset-failed slurmd; systemctl start slurmd")


def uuids(node: Host, positions: Iterable[int]) -> set[str]:
    """Of the GPUs that Slurm numbers so on this node."""
    minors = {ORDER[position] for position in positions}
    return {f"GPU-{gpu['uuid']}" for index, gpu in enumerate(machine(node)["gpus"]) if _minor_of(index) in minors}


def driver_files(machine: str) -> dict[str, str]:
    """What NVIDIA's driver says of each GPU of a simulated machine, by path; in the order of the GPUs."""
    found = {}
    for index, gpu in enumerate(json.loads(machine)["gpus"]):
        bus, device = gpu["pci"]
        text = f"GPU UUID: \t GPU-{gpu['uuid']}\nDevice Minor: \t {_minor_of(index)}\n"
        found[f"/proc/driver/nvidia/gpus/0000:{bus:02x}:{device:02x}.0/information"] = text
    return found


def machine(host: Host) -> dict:
    return json.loads((host.gpu_state / MACHINE_FILE).read_text())


def _minor_of(index: int) -> int:
    """As it is on boards where the driver finds GPUs in another order than that of their PCI addresses."""
    return len(ORDER) - 1 - index
