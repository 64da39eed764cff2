"""Containers whose device cgroup systemd manages, on hosts of the lab, and what NVIDIA's hook does to that cgroup.

The kernel has no GPU: opening the device file of one fails with ENXIO, or with EPERM where the cgroup forbids it.
"""

from __future__ import annotations

from dataclasses import dataclass

from lab.hosts import Host

LOST, KEPT = "Operation not permitted", "No such device or address"
# Version 2: takes systemd's program off the cgroup, which leaves it open, as with a hook that puts a wider one in its place.
_OPEN_V2 = """
import ctypes, os, platform, struct, sys
def bpf(command, attributes):
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\\0"), 128)
    found = libc.syscall({"x86_64": 321, "aarch64": 280}[platform.machine()], command, buffer, 128)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found, buffer.raw
libc, device, ids = ctypes.CDLL(None, use_errno=True), 6, (ctypes.c_uint32 * 16)()
group = os.open(sys.argv[1], os.O_RDONLY)
_, answer = bpf(16, struct.pack("=IIIIQI", group, device, 0, 0, ctypes.addressof(ids), 16))
for number in ids[: struct.unpack_from("=I", answer, 24)[0]]:
    bpf(9, struct.pack("=III", group, bpf(13, struct.pack("=I", number))[0], device))
"""
_TREES = "/sys/fs/cgroup/devices /sys/fs/cgroup"  # of version 1, where systemd has it, and version 2


@dataclass(frozen=True)
class Container:
    """A scope of systemd with a /dev of its own; as runc makes it: all devices may be made, few may be opened."""

    host: Host
    number: str = "5eed" * 16

    @property
    def scope(self) -> str:
        return f"docker-{self.number}.scope"

    @property
    def called(self) -> str:
        return f"Docker container {self.number[:12]}"

    def start(self) -> None:
        allowed = "".join(f" -p 'DeviceAllow={each}'" for each in ("/dev/null rwm", "char-* m"))
        nodes = "mknod /dev/null c 1 3 && mknod /dev/nvidia0 c 195 0"
        self.host.ssh(
            f"systemd-run --quiet --scope --unit={self.scope} -p DevicePolicy=strict{allowed} "
            f"unshare --mount sh -c 'mount -t tmpfs none /dev && {nodes} && exec sleep 3600' >/dev/null 2>&1 </dev/null &\n"
            f"for i in $(seq 50); do [ ! -e /proc/$({self._pid})/root/dev/nvidia0 ] || break; sleep 0.2; done"
        )

    @property
    def _pid(self) -> str:
        """sh, for the first process of it."""
        groups = " ".join(f"{tree}/system.slice/{self.scope}/cgroup.procs" for tree in _TREES.split())
        return f"cat {groups} 2>/dev/null | head -n 1"

    def open_gpus(self) -> None:
        """Behind systemd's back, as the hook does."""
        group = f"system.slice/{self.scope}"
        self.host.ssh(
            f"if [ -d /sys/fs/cgroup/devices/{group} ]; then echo 'c 195:* rwm' >/sys/fs/cgroup/devices/{group}/devices.allow; "
            f"else python3 - /sys/fs/cgroup/{group}; fi",
            stdin=_OPEN_V2,
        )

    def gpus(self) -> str:
        """What a program that is started in it now gets: LOST or KEPT."""
        group = f"$tree/system.slice/{self.scope}"
        enter = f"for tree in {_TREES}; do [ ! -d {group} ] || echo $$ >{group}/cgroup.procs; done"
        look = f"{enter}; exec nsenter --mount --target $pid cat /dev/nvidia0"
        done = self.host.ssh(f"export pid=$({self._pid}); sh -c '{look}'", check=False)
        return done.stderr.strip().rpartition(": ")[2]

    def end(self) -> None:
        self.host.ssh(f"systemctl stop {self.scope}", check=False)


@dataclass(frozen=True)
class DockerContainer(Container):
    """By Docker itself."""

    @classmethod
    def run(cls, host: Host, name: str, gpu: str = "") -> DockerContainer:
        """`gpu`: options that give it the device file, instead of the hook."""
        parts = "bin lib lib64 usr/lib64 usr/bin usr/lib/x86_64-linux-gnu"
        host.ssh(f"docker image inspect program || tar --create --directory / {parts} 2>/dev/null | docker import - program")
        number = host.ssh(f"docker run --detach --network none --name {name} {gpu} program /bin/sleep 3600").stdout.strip()
        if not gpu:
            host.ssh(f"nsenter --mount --target $(docker inspect -f '{{{{.State.Pid}}}}' {name}) mknod /dev/nvidia0 c 195 0")
        return cls(host, number)

    def gpus(self) -> str:
        return self.host.ssh(f"docker exec {self.number} /bin/cat /dev/nvidia0", check=False).stderr.strip().rpartition(": ")[2]

    def end(self) -> None:
        self.host.ssh(f"docker rm --force {self.number}")


def reloads(host: Host) -> int:
    """How many times systemd has read all its unit files again since it started."""
    return int(host.ssh("journalctl --quiet --boot _PID=1 | grep -c 'Reloading\\.'", check=False).stdout)


def searches(host: Host) -> int:
    """How many times a run of ours has looked for containers with GPUs since the host started."""
    return int(host.ssh("journalctl --quiet --boot _PID=1 | grep -c 'Started .*program.pyz gpu-containers'", check=False).stdout)
