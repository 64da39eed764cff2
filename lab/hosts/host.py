"""One throw-away host: a systemd-nspawn container over an overlay of the cached root, with sshd and an address of its own."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import asyncssh

from gpu_fleet import toolchain
from lab import gpu
from lab.hosts import gpus, image, journal
from lab.hosts.cgroup import Group
from lab.hosts.errors import HostsError
from lab.hosts.network import Network
from lab.hosts.variants import Variant

PORT = 22
UP_S = 300  # 2 s on an idle machine; CI machines are rarely idle
# The toolchain's, by name, for artifacts that start them (lab.standins.programs.gather).
PRESENT = {name: f"/usr/local/lib/gpu-lab-bin/{name}" for name in ("alloy", "mimir", "loki", "caddy")}
SERVERS = "servers"  # the group of processes of a site that belong to no host
_LIBC = "/usr/local/lib/gpu-lab-bin/libc"
_NSPAWN_REBOOT = 133
_CONTAINERS = ("docker", "containers")  # where Docker and Podman keep them, below /var/lib

# A mount namespace of its own, so that the overlay is gone with the processes. $1: overlay options, $2: where it is mounted.
_RUN = f"""
set -u
mount -t overlay overlay -o "$1" "$2" || exit
shift 2
while :; do
  "$@"
  [ $? -eq {_NSPAWN_REBOOT} ] || exit 0
done
"""


@dataclass(frozen=True, kw_only=True)
class Host:
    """`directory`: everything of this host on this machine, within the directory of its site."""

    name: str
    variant: Variant
    directory: Path
    network: Network
    index: int
    authorized_key: str = field(repr=False)

    @property
    def address(self) -> str:
        return self.network.host(self.index)

    @property
    def gpu_count(self) -> int:
        return gpu.count(self.gpu_state) if self.variant.scenario else 0

    @property
    def gpu_state(self) -> Path:
        """The state directory of the simulated GPUs (lab.gpu), live on the host."""
        return self.directory / "gpus"

    @property
    def host_key(self) -> str:
        """Its public key as known_hosts has it: type and key."""
        return " ".join((self._upper / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[:2])

    def prepare(self, layers: list[Path]) -> None:
        """Its files, before the first start. `layers`: directories of its root, uppermost first."""
        for name in ("root", "upper", "work", "gpus", *_CONTAINERS):
            (self.directory / name).mkdir(parents=True)
        (self.directory / "lower").write_text(":".join(map(str, layers)))
        key = asyncssh.generate_private_key("ssh-ed25519", comment=self.name)
        self._place("etc/ssh/ssh_host_ed25519_key", key.export_private_key().decode(), 0o600)
        self._place("etc/ssh/ssh_host_ed25519_key.pub", key.export_public_key().decode())
        self._place("etc/ssh/lab_authorized_keys", self.authorized_key)
        self._place("etc/hostname", self.name + "\n")
        self._place("etc/hosts", f"127.0.0.1 localhost\n{self.address} {self.name}\n")
        self._place("etc/machine-id", uuid.uuid4().hex + "\n")
        if self.variant.has_systemd:
            self._place(
                "etc/systemd/network/10-host0.network",
                f"[Match]\nName=host0\n[Network]\nAddress={self.address}/24\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n",
            )
        else:
            self._place(
                "usr/local/sbin/start-host",
                f"#!/bin/sh\nip address add {self.address}/24 dev host0\nip link set host0 up\nmkdir -p /run/sshd\n"
                "exec /usr/sbin/sshd -D -e\n",
                0o755,
            )
        if self.variant.seems == "container":
            self._place(".dockerenv", "")
        else:
            self._place("usr/local/bin/systemd-detect-virt", "#!/bin/sh\n# The lab's metal hosts.\necho none\nexit 1\n", 0o755)
        if self.variant.scenario:
            gpus.place(self._upper, state=self.gpu_state, scenario=self.variant.scenario, hostname=self.name)

    def start(self) -> None:
        """Returns at once; `wait` says when it is there."""
        lower = (self.directory / "lower").read_text()
        overlay = f"lowerdir={lower},upperdir={self._upper},workdir={self.directory / 'work'}"
        root = str(self.directory / "root")
        self.group.create()
        with self.console.open("a") as console:
            subprocess.Popen(
                ["unshare", "--mount", "--propagation", "slave", "sh", "-c", _RUN, "host", overlay, root, *self._nspawn(root)],
                env={"PATH": os.environ.get("PATH", os.defpath), "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=self.group.entering(),
            )

    def wait(self) -> None:
        """Until sshd answers and everything that starts at boot has started. Raises HostsError."""
        deadline = time.monotonic() + UP_S
        while not self._greets():
            if not self.group.is_alive() or time.monotonic() > deadline:
                raise HostsError(f"{self.name} did not come up; its console ({self.console}) ends with:\n{self._console_end()}")
            time.sleep(0.05)
        if self.variant.has_systemd:
            state = self.ssh("systemctl is-system-running --wait", check=False).stdout.strip()
            if state != "running":
                failed = self.ssh("systemctl --failed --no-legend --plain", check=False).stdout
                raise HostsError(f"{self.name} came up {state or 'without systemd'}:\n{failed}")

    def reboot(self) -> None:
        """In an orderly way, from inside; returns when it is there again. Only hosts with systemd."""
        leader = self.leader
        self.ssh("systemctl reboot", check=False)
        deadline = time.monotonic() + UP_S
        while Path(f"/proc/{leader}").exists():
            if time.monotonic() > deadline:
                raise HostsError(f"{self.name} did not go down within {UP_S} s.")
            time.sleep(0.05)
        self.wait()

    def stop(self) -> None:
        """Like pulling the plug: what its disk holds is still there at the next start."""
        self.group.end()

    def ssh(
        self, command: str, *, user: str = "root", stdin: str | None = None, check: bool = True, timeout_s: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Runs sh's `command` over real ssh. Raises HostsError with what it printed when it fails and `check`."""
        done = subprocess.run(
            ["ssh", "-F", str(self.directory.parent / "ssh_config"), "-l", user, self.name, command],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode != 0:
            raise HostsError(f"{self.name}: `{command}` exited {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def copy(self, file: Path, target: str) -> None:
        """A file of this machine becomes `target` on the running host."""
        shutil.copyfile(file, self.inside / target.lstrip("/"))

    def kernel_line(self, *lines: str, facility: int = 0) -> None:
        """The kernel says this now, in the host's journal: `journalctl --dmesg` there shows it."""
        journal.add_kernel_lines(self.inside, lines, facility=facility)

    def inject_xid(self, code: int, *, gpu_index: int) -> list[str]:
        """The XID happens: the tools report its damage and the kernel says its lines, which are returned."""
        lines = [re.sub(r"^\[[^]]*\] ", "", line) for line in gpu.inject_xid(self.gpu_state, code=code, gpu=gpu_index)]
        self.kernel_line(*lines)
        return lines

    def repair_gpus(self) -> None:
        """Every GPU is healthy again, as after a repair; the journal keeps its lines."""
        gpu.clear(self.gpu_state)

    @property
    def inside(self) -> Path:
        """The host's live file system, as root sees it from outside. An absolute symlink in it leads outside."""
        return Path(f"/proc/{self.leader}/root")

    @property
    def leader(self) -> int:
        """Process 1 of the host, as this machine numbers it."""
        for pid in self.group.processes():
            with contextlib.suppress(OSError):
                numbers = re.search(r"^NSpid:(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
                if numbers and len(numbers[1].split()) == 2 and numbers[1].split()[1] == "1":
                    return pid
        raise HostsError(f"{self.name} is not running.")

    @property
    def console(self) -> Path:
        return self.directory / "console.log"

    @cached_property
    def group(self) -> Group:
        return Group(f"{self.network.number}/{self.name}")

    @property
    def _upper(self) -> Path:
        return self.directory / "upper"

    def _nspawn(self, root: str) -> list[str]:
        command = [
            "systemd-nspawn",
            "--quiet",
            f"--directory={root}",
            f"--machine=lab{self.network.number}-{self.index}",  # unique on this machine: it names the network interface
            f"--hostname={self.name}",
            f"--network-bridge={self.network.bridge}",
            "--register=no",  # no machined is needed
            "--keep-unit",  # nor systemd as this machine's init
            "--settings=no",
            "--resolv-conf=off",
            "--timezone=off",
            "--link-journal=no",
            "--console=read-only",
        ]
        if self.variant.scenario:
            command.append(f"--bind={self.gpu_state}:{gpus.STATE_INSIDE}")
        command += self._present()
        if self.variant.seems == "metal":
            command.append("--setenv=container=")
        if self.variant.has_systemd:
            # For Docker and Podman, there or to be installed: their overlays cannot lie on ours, and their runtimes need two
            # system calls that nspawn denies.
            binds = (f"--bind={self.directory / name}:/var/lib/{name}" for name in _CONTAINERS)
            command += [*binds, "--system-call-filter=keyctl bpf"]
        return [*command, *(["--boot"] if self.variant.has_systemd else ["--as-pid2", "/usr/local/sbin/start-host"])]

    def _present(self) -> Iterator[str]:
        """The toolchain's programs; with the C library that they were built for where the host's is older."""
        old = self.variant.layer in image.OLD_LIBC
        if old:
            libraries = "usr/lib/x86_64-linux-gnu"
            yield f"--bind-ro={image.debian_root() / libraries}:{_LIBC}"
        for name, path in PRESENT.items():
            if found := toolchain.located(name):
                yield f"--bind-ro={found.path.resolve()}:{path}{'.program' if old else ''}"
                if old:
                    start = f'exec {_LIBC}/ld-linux-x86-64.so.2 --library-path {_LIBC} {path}.program "$@"'
                    self._place(path.lstrip("/"), f"#!/bin/sh\n{start}\n", 0o755)

    def _place(self, path: str, text: str, mode: int = 0o644) -> None:
        """A file over the root's. Directories made on the way get the mode that the root has for all of them: 0755."""
        file = self._upper / path
        for parent in reversed(file.relative_to(self._upper).parents):
            (self._upper / parent).mkdir(exist_ok=True)
            (self._upper / parent).chmod(0o755)
        file.write_text(text)
        file.chmod(mode)

    def _greets(self) -> bool:
        try:
            with socket.create_connection((self.address, PORT), timeout=1) as connection:
                connection.settimeout(5)
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def _console_end(self) -> str:
        return "\n".join(self.console.read_text(errors="replace").splitlines()[-15:])

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
