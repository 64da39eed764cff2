"""A program of somebody else that uses the package: the examples of the documents, run by the real engine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.checkout import REPO
from tests.places import OBEDIENT, artifacts_of_nothing
from tests.provider.ruler_server import RulerServer
from tests.provider.ssh_server import SshServers
from tests.standins.project import Project

EXAMPLES = REPO / "examples/package"
SDKS = REPO / "tests/golden/package"
PASSWORD = "correct-horse-battery"  # planted: must be found nowhere in clear


class Platform(Project):
    """The project of an example with its SDK; stack `platform`."""

    def __init__(self, directory: Path, example: str) -> None:
        super().__init__(directory)
        shutil.copytree(EXAMPLES / example, directory, dirs_exist_ok=True)
        project = yaml.safe_load((directory / "Pulumi.yaml").read_text())
        project["packages"] = {"gpu-fleet": str(REPO / "components")}  # as `pulumi package add` writes it
        if example == "python":
            project["runtime"]["options"]["virtualenv"] = ".venv"
            shutil.copytree(SDKS / "python/pulumi_gpu_fleet", directory / "pulumi_gpu_fleet")
            installed = directory / "pulumi_gpu_fleet-0.1.0.dist-info/METADATA"  # as pip leaves it
            installed.parent.mkdir()
            installed.write_text("Metadata-Version: 2.1\nName: pulumi_gpu_fleet\nVersion: 0.1.0\n")
        (directory / "Pulumi.yaml").write_text(yaml.safe_dump(project))
        self.run("stack", "init", "platform")
        self.environment |= {"PULUMI_STACK": "platform", "GPU_FLEET_STAND_INS_FOR": "platform"}
        self.run("config", "set", "--secret", "metricsPassword", PASSWORD)

    def configure(self, values: Mapping[str, Any]) -> None:
        """Sets keys of the stack's configuration, and keeps the others."""
        file = self.directory / "Pulumi.platform.yaml"
        there = yaml.safe_load(file.read_text())
        there["config"] |= {f"our-platform:{key}": value for key, value in values.items()}
        file.write_text(yaml.safe_dump(there))

    def outputs(self) -> dict[str, Any]:
        return json.loads(self.run("stack", "output", "--json"))


class Simulated(Platform):
    """With two hosts that report success, and a ruler."""

    def __init__(self, directory: Path, example: str) -> None:
        super().__init__(directory, example)
        self.servers = SshServers(directory)
        self.hosts = [self.servers.ssh(), self.servers.ssh()]
        for host in self.hosts:
            host.forced = OBEDIENT
        self.ruler = RulerServer()
        artifacts_of_nothing(directory / "artifacts")
        ssh = {"user": "ops", "sudo": False, "privateKeyFile": self.servers.key_file()}
        self.configure(
            {
                "ssh": {**ssh, "knownHostsFile": self.servers.known_hosts(*self.hosts)},
                "artifacts": {"source": "controller", "directory": "artifacts"},
                "metricsUrl": "http://127.0.0.1:1/api/v1/push",
                "mimirUrl": self.ruler.url,
            }
        )

    def address(self, number: int) -> dict[str, Any]:
        return {"address": "127.0.0.1", "port": self.hosts[number].port}

    def close(self) -> None:
        self.servers.close()
        self.ruler.close()
