"""A program of somebody else that uses the package: the example of the documents, run by the real engine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from components.package.schema import package_schema
from gpu_fleet.provider.schema import schema
from gpu_fleet.stackfile.stand_ins import LAB_STACKS
from tests.checkout import REPO
from tests.places import OBEDIENT, artifacts_of_nothing
from tests.provider.ruler_server import RulerServer
from tests.provider.ssh_server import SshServers
from tests.standins.project import Project

EXAMPLES = REPO / "examples/package"
PASSWORD = "correct-horse-battery"  # planted: must be found nowhere in clear


class Platform(Project):
    """The project of the example in Python with what it needs of an SDK; stack `platform`."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.environment[LAB_STACKS] = "platform"
        shutil.copytree(EXAMPLES / "python", directory, dirs_exist_ok=True)
        shutil.copy(REPO / "tests/package/pulumi_gpu_fleet.py", directory)
        (directory / "schema.json").write_text(json.dumps(package_schema(schema())))
        project = yaml.safe_load((directory / "Pulumi.yaml").read_text())
        project["packages"] = {"gpu-fleet": str(REPO / "components")}  # as `pulumi package add` writes it
        project["runtime"]["options"]["virtualenv"] = ".venv"
        (directory / "Pulumi.yaml").write_text(yaml.safe_dump(project))
        self.create("platform")
        self.environment["PULUMI_STACK"] = "platform"
        self.run("config", "set", "--secret", "metricsPassword", PASSWORD)

    def configure(self, values: Mapping[str, Any]) -> None:
        """Sets keys of the stack's configuration, and keeps the others."""
        file = self.directory / "Pulumi.platform.yaml"
        there = yaml.safe_load(file.read_text())
        there["config"] |= {f"our-platform:{key}": value for key, value in values.items()}
        file.write_text(yaml.safe_dump(there))

    def configured(self, key: str) -> Any:
        return yaml.safe_load((self.directory / "Pulumi.platform.yaml").read_text())["config"][f"our-platform:{key}"]

    def outputs(self) -> dict[str, Any]:
        return json.loads(self.run("stack", "output", "--json"))


class Simulated(Platform):
    """With two hosts that report success, and a ruler."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
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
