"""A checkout in a place of its own, and a stack whose two hosts report success and do nothing: for what is around it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml

from gpu_fleet import toolchain
from gpu_fleet.host.artifacts import DCGM_IMAGE, INDEX
from gpu_fleet.host.parts import PROGRAMS
from gpu_fleet.toolchain.cache import Cache
from gpu_fleet.toolchain.versions import ARCHITECTURES, image, release
from lab.standins import programs
from tests.checkout import copy_to
from tests.provider.ssh_server import SshServer, SshServers

# What the provider starts on a host reports success and touches nothing: the arguments are those of
# gpu_fleet/provider/bootstrap.sh.
OBEDIENT = """
eval "set -- $SSH_ORIGINAL_COMMAND"
echo '{"event":"ready"}'
head -c "$(($9 + ${11}))" >/dev/null
[ "$5" = needs ] || echo '{"event":"facts","facts":{"GPU_COUNT":"8"}}'
printf '{"event":"result","verb":"%s","ok":true,"changed":0,"failed":0,"drift":0}\\n' "$5"
"""


class Place:
    """A checkout, a home and the directory of the stack `training`. The state is everybody's."""

    def __init__(self, directory: Path, state: Path, servers: SshServers, hosts: list[SshServer]) -> None:
        self.servers, self.hosts = servers, hosts
        self.checkout, self.home = directory / "checkout", directory / "home"
        self.project = self.checkout
        copy_to(self.checkout)
        self.furnish_home()
        self.environment = {
            **os.environ,
            **programs.environment("training"),
            "HOME": str(self.home),
            "PULUMI_BACKEND_URL": f"file://{state}",
            "PULUMI_CONFIG_PASSPHRASE": "a passphrase",
            "PULUMI_STACK": "training",
        }

    def furnish_home(self) -> None:
        """With the key of the hosts, and the programs of this machine."""
        key, cache = self.home / ".ssh/fleet", self.home / ".cache/gpu-fleet"
        key.parent.mkdir(parents=True)
        shutil.copy(self.servers.key_file(), key)
        cache.mkdir(parents=True)
        (cache / "tools").symlink_to(Cache().tools.resolve())  # each program that is on the PATH alone prints its version first

    def write_stack(self) -> None:
        """The stack file in the project's directory, and every file that it names."""
        (self.project / "keys").mkdir()
        shutil.copy(self.servers.key_file(), self.project / "keys/gpu-2")
        (self.project / "inventory").mkdir()
        shutil.copy(self.servers.known_hosts(*self.hosts), self.project / "inventory/known_hosts")
        artifacts_of_nothing(self.project / "artifacts")
        config = {
            "datacenter": "us-west",
            "cluster": "training",
            "ssh": {
                "user": "ops",
                "sudo": False,
                "knownHostsFile": "inventory/known_hosts",
                "privateKeyFile": "~/.ssh/fleet",
            },
            "hosts": {
                "gpu-1": {"address": "127.0.0.1", "port": self.hosts[0].port},
                "gpu-2": {"address": "127.0.0.1", "port": self.hosts[1].port, "privateKeyFile": "keys/gpu-2"},
            },
            "artifacts": {"source": "controller", "directory": "artifacts"},
            "metrics": {"url": "http://127.0.0.1:1/api/v1/push"},
        }
        stack = {"config": {f"gpu-fleet:{key}": value for key, value in config.items()}}
        (self.project / "Pulumi.training.yaml").write_text(yaml.safe_dump(stack))

    def pulumi(self, *arguments: str) -> str:
        return self.run(str(toolchain.find("pulumi")), "--non-interactive", *arguments)

    def run(self, *command: str, environment: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            command,
            cwd=self.project,
            env={**self.environment, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)} exited {done.returncode}:\n{done.stdout}"
        return done.stdout


def artifacts_of_nothing(directory: Path) -> None:
    """Lists every program; such hosts ask for none."""
    directory.mkdir()
    files = [*(f"{name}-{release(name).version}" for name in PROGRAMS), f"{DCGM_IMAGE}-{image(DCGM_IMAGE).tag}"]
    index = "".join(f"{'0' * 64}  {file}.linux-{arch}\n" for file in files for arch in ARCHITECTURES)
    (directory / INDEX).write_text(index)


@contextmanager
def two_hosts(directory: Path) -> Iterator[Place]:
    """The first place below `directory`, without a stack."""
    (directory / "state").mkdir()
    servers = SshServers(directory)
    hosts = [servers.ssh(), servers.ssh()]
    for host in hosts:
        host.forced = OBEDIENT
    yield Place(directory / "first", directory / "state", servers, hosts)
    servers.close()
