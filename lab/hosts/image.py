"""The roots that hosts are made of: built once by debootstrap, kept in the cache, never written to again.

    $XDG_CACHE_HOME/gpu-fleet/hosts/LAYER-DIGEST/root    a whole root, or what a layer adds to the ones below it
                                                         (an overlay's upper directory)

A layer's digest covers its recipe and those of the layers below, so a changed recipe is built beside the old one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_fleet.toolchain import Cache
from gpu_fleet.toolchain.progress import Progress
from lab.debian import NoPackages, Packages
from lab.hosts.errors import HostsError
from lab.mirrors import mirror

LOGINS = {"ops": "sudo without a password", "careful": "sudo asks for the password", "guest": "no sudo"}
SUDO_PASSWORD = "the-lab's-sudo-password"  # noqa: S105  of throw-away hosts that only this machine reaches
_UBUNTU_KEYS = Packages(suite="trixie", component="main", names=("ubuntu-keyring",))


@dataclass(frozen=True, kw_only=True)
class Layer:
    """`packages`: Debian's. `setup`: sh, run as root inside when they are installed. `suite`: of the layer that lies lowest."""

    name: str
    below: Layer | None = None
    packages: tuple[str, ...]
    setup: str = ""
    suite: str = "bookworm"

    @property
    def digest(self) -> str:
        recipe = [self.stack()[-1].suite, self.name, self.packages, self.setup, self.below.digest if self.below else ""]
        return hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:16]

    def stack(self) -> list[Layer]:
        """This layer and those below it, uppermost first: the order of an overlay's lower directories."""
        return [self, *(self.below.stack() if self.below else [])]


def shell(name: str) -> str:
    """A script of setup/, for a layer, without the lines before the first command."""
    text = (Path(__file__).parent / "setup" / f"{name}.sh").read_text()
    while text.startswith("#"):
        text = text.partition("\n")[2]
    return f"\n{text}"


_LOGINS_AND_SSHD = f"""
for login in {" ".join(LOGINS)}; do useradd --create-home --shell /bin/bash "$login"; done
echo "careful:{SUDO_PASSWORD}" | chpasswd
echo 'ops ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/ops
echo 'careful ALL=(ALL) ALL' >/etc/sudoers.d/careful
chmod 0440 /etc/sudoers.d/*
printf '%s\\n' 'PasswordAuthentication no' 'UseDNS no' 'HostKey /etc/ssh/ssh_host_ed25519_key' \\
  'AuthorizedKeysFile /etc/ssh/lab_authorized_keys' 'MaxStartups 100' >/etc/ssh/sshd_config.d/lab.conf
rm -f /etc/ssh/ssh_host_*_key*
echo 'en_US.UTF-8' >/etc/locale.conf
: >/etc/machine-id
"""
# A login's user manager stays: starting one for each login is two thirds of what a login costs (0.19 s of CPU against 0.07).
_SYSTEMD_SETUP = shell("systemd")

# gzip, sed, awk and the like are essential packages; python3 is what our programs and the simulated GPU tools need.
BASE = Layer(
    name="base",
    packages=("openssh-server", "sudo", "iproute2", "procps", "curl", "ca-certificates", "python3"),
    setup=_LOGINS_AND_SSHD,
)
CONTAINER = Layer(name="container", below=BASE, packages=("supervisor",))
MACHINE = Layer(
    name="machine",
    below=BASE,
    packages=("systemd", "systemd-sysv", "systemd-journal-remote", "dbus", "libpam-systemd"),
    setup=_SYSTEMD_SETUP,
)
# A systemd that is three years younger: 257 says of units that they changed on disk where 252 does not. Both sudos.
NEWER_BASE = replace(BASE, name="newer-base", suite="trixie", packages=(*BASE.packages, "sudo-rs", "libpam-google-authenticator"))
NEWER_MACHINE = replace(MACHINE, name="newer-machine", below=NEWER_BASE)
# What other machines have: from Python 3.8 and systemd 245 to 26.04's sudo and coreutils, which are written in Rust.
# networkd of 245 waits for udev, which containers have not, where nothing says that it is in one.
_OLD_NETWORKD = shell("old-networkd")
OTHERS = {
    name: replace(
        BASE,
        name=name,
        suite=suite,
        packages=(*BASE.packages, *MACHINE.packages, *more),
        setup=BASE.setup + MACHINE.setup + setup,
    )
    for name, suite, more, setup in (
        ("debian-11", "bullseye", (), ""),
        ("ubuntu-20.04", "focal", (), _OLD_NETWORKD),
        ("ubuntu-22.04", "jammy", (), ""),
        ("ubuntu-24.04", "noble", (), ""),
        ("ubuntu-26.04", "resolute", ("sudo-rs",), "update-alternatives --set sudo /usr/lib/cargo/bin/sudo\n"),
    )
}
OLD_LIBC = (OTHERS["debian-11"], OTHERS["ubuntu-20.04"])  # 2.31: programs that are built on Debian 12 need 2.34
# An idle containerd looks for garbage again after 49 times what it took last, which is every millisecond where there is none:
# 1.6 % of a core for as long as the host is up. Without a threshold it does so when something was deleted.
DOCKER = Layer(
    name="docker",
    below=MACHINE,
    packages=("docker.io", "iptables"),
    setup=r"""
printf '%s\n' '[plugins."io.containerd.gc.v1.scheduler"]' 'pause_threshold = 0.0' >>/etc/containerd/config.toml
""",
)
# Hosts of nspawn may not raise limits, as crun does, and have no controllers for Podman's limit of processes.
PODMAN = Layer(
    name="podman",
    below=MACHINE,
    packages=("podman", "runc"),
    setup="printf '[containers]\\npids_limit = 0\\n' >/etc/containers/containers.conf\n",
)
# Nothing of it starts with the host: lab/hosts/slurm.py writes what it reads first. All hosts have the same key.
SLURM = Layer(
    name="slurm",
    below=MACHINE,
    packages=("munge", "slurmctld", "slurmd", "slurm-client"),
    setup=shell("slurm"),
)
NEWER_SLURM = replace(SLURM, name="newer-slurm", below=NEWER_MACHINE)
# Of Debian unstable: Slurm with metrics of its own (26.05). Mirrors may be weeks behind, which apt refuses to read.
NEWEST_BASE = replace(
    NEWER_BASE,
    name="newest-base",
    suite="sid",
    setup=NEWER_BASE.setup + """echo 'Acquire::Check-Valid-Until "false";' >/etc/apt/apt.conf.d/lab\n""",
)
NEWEST_MACHINE = replace(MACHINE, name="newest-machine", below=NEWEST_BASE)
NEWEST_SLURM = replace(SLURM, name="newest-slurm", below=NEWEST_MACHINE)
# Slurm's own record of jobs, which sacct reads: lab/hosts/slurm.py starts it on the controller.
SLURM_ACCOUNTING = Layer(
    name="slurm-accounting",
    below=NEWER_SLURM,
    packages=("slurmdbd", "mariadb-server"),
    setup="systemctl disable slurmdbd mariadb >/dev/null 2>&1\n",
)
# Debian's rpm and dnf, set up as they are on RHEL: rpm keeps its database where the system's is.
RPM = Layer(
    name="rpm",
    below=MACHINE,
    packages=("rpm", "dnf", "createrepo-c", "gnupg", "gawk"),
    setup=shell("rpm"),
)
# Of the RHEL family as far as programs can see: what it calls itself, rpm and dnf alone, bash as sh, gawk as awk. No SELinux.
RHEL = Layer(
    name="rhel",
    below=RPM,
    packages=(),
    setup=shell("rhel"),
)
# Not a host's root: the packages that a host without Docker would install, and needrestart, as files in PACKAGE_FILES.
PACKAGE_FILES = "var/packages"
DOCKER_PACKAGES = Layer(
    name="docker-packages",
    below=MACHINE,
    packages=(),
    setup=f"""
apt-get install --yes --no-install-recommends --download-only docker.io needrestart
mkdir -p /{PACKAGE_FILES}
mv /var/cache/apt/archives/*.deb /{PACKAGE_FILES}/
""",
)


def ensure(layer: Layer, progress: Progress) -> list[Path]:
    """The directories of the layer and those below it, uppermost first, built where they are missing. Raises HostsError."""
    for each in reversed(layer.stack()):
        if not _root(each).is_dir():
            with _locked(each):
                if not _root(each).is_dir():  # another process may have built it meanwhile
                    _build(each, progress)
    return [_root(each) for each in layer.stack()]


def package_files(progress: Progress | None = None) -> list[Path]:
    """What apt would download to install Docker, or needrestart, on a host without it. Raises HostsError."""
    [root, *_] = ensure(DOCKER_PACKAGES, progress or Progress())
    return sorted((root / PACKAGE_FILES).glob("*.deb"))


def debian_root() -> Path:
    """A Debian file system with python3, for what is made out of one. Raises HostsError."""
    [root] = ensure(BASE, Progress())
    return root


def directory() -> Path:
    return Cache().root / "hosts"


def _root(layer: Layer) -> Path:
    return directory() / f"{layer.name}-{layer.digest}" / "root"


def _build(layer: Layer, progress: Progress) -> None:
    partial = directory() / f"partial-{layer.name}-{layer.digest}"
    shutil.rmtree(partial, ignore_errors=True)
    for name in ("root", "work", "merged"):
        (partial / name).mkdir(parents=True)
    log = directory() / f"{layer.name}.log"
    title = f"root of hosts: {layer.name}"
    inside = {name: value for name, value in os.environ.items() if name != "TMPDIR"}  # a directory that the root does not have
    with progress.step(title, "installing packages", expected_s=50 if layer.below is None else 7) as step:
        for command in _commands(layer, partial):
            with log.open("a") as output:
                done = subprocess.run(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=inside, check=False)
            if done.returncode != 0:
                last = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
                raise HostsError(f"Building the root {layer.name!r} of the lab's hosts failed; the end of {log}:\n{last}")
    for name in ("work", "merged"):
        shutil.rmtree(partial / name)
    partial.rename(_root(layer).parent)
    progress.line(title, f"built in {step.elapsed_s:.0f} s")


# In a mount namespace of its own, so that nothing stays mounted whatever happens. $1: the root to change; the script is stdin's.
_INSIDE = """
set -eu
mount -t proc proc "$1/proc"
printf '#!/bin/sh\nexit 101\n' >"$1/usr/sbin/policy-rc.d" # no package may start a service
chmod 755 "$1/usr/sbin/policy-rc.d"
cp /etc/resolv.conf "$1/etc/resolv.conf"
DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 chroot "$1" sh -euc "$2"
rm -f "$1/usr/sbin/policy-rc.d" "$1/etc/resolv.conf"
"""


def _commands(layer: Layer, partial: Path) -> list[list[str]]:
    root = str(partial / "root")
    private = ["unshare", "--mount", "--propagation", "private", "sh", "-euc"]
    if layer.below is None:
        include = f"--include={','.join(layer.packages)}"
        fetch = ["debootstrap", "--variant=minbase", include, *_source(layer, root)]
        return [fetch, [*private, _INSIDE, "sh", root, layer.setup + _CLEAN]]
    below = ":".join(str(_root(each)) for each in layer.below.stack())
    overlay = f"lowerdir={below},upperdir={root},workdir={partial / 'work'}"
    mount = f'mount -t overlay overlay -o "{overlay}" "$1"\n'
    install = f"apt-get update\napt-get install --yes --no-install-recommends {' '.join(layer.packages)}\n"
    return [[*private, mount + _INSIDE, "sh", str(partial / "merged"), install + layer.setup + _CLEAN]]


def _source(layer: Layer, root: str) -> list[str]:
    if not layer.name.startswith("ubuntu-"):
        return [layer.suite, root, mirror("debian", layer.suite)]
    try:
        keys = _UBUNTU_KEYS.ensure() / "usr/share/keyrings/ubuntu-archive-keyring.gpg"
    except NoPackages as error:
        raise HostsError(str(error)) from None
    # An older debootstrap than the suite does not know its name; all of Ubuntu's are made in one way.
    script = "/usr/share/debootstrap/scripts/jammy"
    options = ["--components=main,universe", f"--keyring={keys}"]
    return [*options, layer.suite, root, mirror("ubuntu", layer.suite), script]


_CLEAN = "rm -rf /var/cache/apt/* /var/lib/apt/lists/*\n"  # without apt, which a root may have lost by now


@contextlib.contextmanager
def _locked(layer: Layer) -> Iterator[None]:
    directory().mkdir(parents=True, exist_ok=True)
    with (directory() / f"lock-{layer.name}").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
