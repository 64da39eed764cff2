"""`make dev JOBS=1`: a real Slurm whose jobs have the dev datacenter's simulated GPUs.

Slurm of Debian's packages runs in a container of lab.hosts, with a network of its own. The programs of the dev host find its
commands, and its devices, in .dev/slurm: the Python that they are started with is a script there. Nothing of the jobs uses a GPU.

    python -m lab.dev.slurm    holds the container, and submits jobs, until it is terminated
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from gpu_fleet.toolchain.progress import Progress
from lab.dev.workspace import DEV, REPO, DevError, relative
from lab.gpu.machine import MACHINE_FILE
from lab.hosts import VARIANTS, Host, Site, needs
from lab.hosts.errors import HostsError
from lab.hosts.slurm import Slurm, driver_files

HOST = "dev-gpu-host"  # of Pulumi.dev.yaml: nodes are joined with hosts by their names
DIRECTORY = DEV / "slurm"
PYTHON = DIRECTORY / "python3"
_ROOT, _BIN = DIRECTORY / "root", DIRECTORY / "bin"
_HOLDER, _READY, _LOG = DIRECTORY / "pid", DIRECTORY / "ready", DIRECTORY / "log"
_WITHIN_S = 900  # Debian's packages are downloaded the first time
_COMMANDS = {"scontrol": "/usr/bin", "squeue": "/usr/bin", "sinfo": "/usr/bin", "sdiag": "/usr/bin", "slurmd": "/usr/sbin"}
_USERS = {"alice": "vision", "bob": "vision", "carol": "speech"}
_MOST_PENDING = 4
# In a namespace for the name alone: Slurm's name of the node is not that of this machine.
_PYTHON = """\
#!/bin/sh
case " $* " in
  *" jobs "* | *" slurm_queue "*)
    GPU_FLEET_ROOT={root} PATH={bin}:$PATH
    export GPU_FLEET_ROOT PATH
    exec unshare --uts -- sh -c 'hostname {host} && exec "$@"' sh {python} "$@"
    ;;
esac
exec {python} "$@"
"""
_COMMAND = '#!/bin/sh\nexec nsenter --target {leader} --mount --pid --net --uts --ipc --root --wd=/ -- {program} "$@"\n'


def start() -> None:
    """Returns when Slurm takes jobs. Raises DevError."""
    holder = None if _pid() else _begin()
    deadline = time.monotonic() + _WITHIN_S
    while not _READY.exists():
        has_ended = holder.poll() is not None if holder else not _pid()
        if has_ended or time.monotonic() > deadline:
            stop()
            last = "\n".join(_LOG.read_text(errors="replace").splitlines()[-8:])
            raise DevError(f"Slurm did not start, which JOBS=1 needs; the end of {relative(_LOG)}:\n{last}")
        time.sleep(0.5)


def _begin() -> subprocess.Popen[bytes]:
    """Raises DevError."""
    try:
        needs.require(Progress())
    except HostsError as error:
        raise DevError(f"JOBS=1 runs a real Slurm: {error} `make dev` without JOBS=1 needs none of it.") from None
    DIRECTORY.mkdir(exist_ok=True)
    _READY.unlink(missing_ok=True)
    command = [sys.executable, "-m", "lab.dev.slurm"]
    with _LOG.open("w") as log:
        holder = subprocess.Popen(command, cwd=REPO, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    _HOLDER.write_text(str(holder.pid))
    return holder


def stop() -> None:
    """Nothing of it runs then."""
    pid = _pid()
    if pid:
        os.kill(pid, signal.SIGTERM)
        while _pid():
            time.sleep(0.2)
    _HOLDER.unlink(missing_ok=True)


def _pid() -> int:
    """Of the process that holds the container; 0: none does."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(_HOLDER.read_text())
        if b"lab.dev.slurm" in Path(f"/proc/{pid}/cmdline").read_bytes():  # empty of a zombie
            return pid
    return 0


def hold() -> None:
    """Until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with Site.up({HOST: VARIANTS["newer-slurm"]}) as site:
        node = site.hosts[HOST]
        slurm = Slurm(node, [node])
        slurm.start({})
        for user in _USERS:
            node.ssh(f"useradd --create-home {user}")
        _place(node)
        _READY.touch()
        chosen = random.Random()
        while True:
            _submit(slurm, chosen)
            time.sleep(15)


def _place(node: Host) -> None:
    """What the programs of the dev host find Slurm and its devices with."""
    for path, text in driver_files((DEV / "gpus" / "state" / MACHINE_FILE).read_text()).items():
        file = _ROOT / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    scripts = {PYTHON: _PYTHON.format(root=_ROOT, bin=_BIN, host=HOST, python=sys.executable)}
    for name, directory in _COMMANDS.items():
        scripts[_BIN / name] = _COMMAND.format(leader=node.leader, program=f"{directory}/{name}")
    _BIN.mkdir(exist_ok=True)
    for file, text in scripts.items():
        file.write_text(text)
        file.chmod(0o755)


def _submit(slurm: Slurm, chosen: random.Random) -> None:
    """A few minutes each, more than fit: some wait."""
    if len(slurm.ask("squeue --noheader --states=PENDING --format=%A").split()) < _MOST_PENDING:
        user = chosen.choice(list(_USERS))
        options = (f"--account={_USERS[user]}", f"--gpus={chosen.choice((1, 2, 2, 4))}", "--no-requeue")
        slurm.submit(f"sleep {chosen.randint(90, 600)}", *options, user=user)


if __name__ == "__main__":
    hold()
