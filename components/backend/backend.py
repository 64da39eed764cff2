"""The embedded backend: Mimir with ruler and Alertmanager, Loki, an alert receiver and Grafana as processes on this machine.

For the dev stack, and for evaluating the whole product without a monitoring server. Each process is one pulumi-command resource
that runs service.sh; the configuration of Mimir and Loki is that of a monitoring server (gpu_fleet/host/parts/monitoring.py).
Everything listens on 127.0.0.1 and is stored in one directory. Not done here: storage that survives `destroy`, several machines,
users; real fleets push to their own Mimir and Loki.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pulumi
from pulumi_command import local

from gpu_fleet.host.part import ROOTFS
from gpu_fleet.host.parts.monitoring import LOKI_CONFIG_PATH, MIMIR_CONFIG_PATH
from gpu_fleet.stackfile.naming import type_token

MIMIR_CONFIG, LOKI_CONFIG = ROOTFS / MIMIR_CONFIG_PATH[1:], ROOTFS / LOKI_CONFIG_PATH[1:]
HERE = Path(__file__).parent
_CHECKOUT = HERE.parents[1]


@dataclass(frozen=True, kw_only=True)
class BackendArgs:
    """The directory of the processes and their ports, TCP on 127.0.0.1.

    `grafana_password`: of Grafana's `admin`; None keeps Grafana's default and is only for tests.
    """

    directory: str
    mimir_port: int
    mimir_grpc_port: int
    loki_port: int
    loki_grpc_port: int
    receiver_port: int
    grafana_port: int
    grafana_password: pulumi.Input[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Service:
    """One process: `command` is run by sh, `ready`: URL that returns 200 when it works, `listen`: its host:port addresses."""

    name: str
    command: str
    ready: str
    listen: Sequence[str]
    environment: Mapping[str, pulumi.Input[str]]
    config: str = ""  # its configuration file, a change of which restarts the process

    def variables(self, directory: str) -> dict[str, pulumi.Input[str]]:
        digest = hashlib.sha256(Path(self.config).read_bytes()).hexdigest() if self.config else ""
        own = {**self.environment, "CONFIG_SHA256": digest}
        return {
            **own,
            "SERVICE_DIR": directory,
            "SERVICE_COMMAND": self.command,
            "SERVICE_READY": self.ready,
            "SERVICE_LISTEN": " ".join(self.listen),
            "SERVICE_ENV": " ".join(sorted(own)),
        }


def _path(file: Path) -> str:
    """For a command line: relative to Pulumi.yaml, so that the stack's state does not depend on where the checkout is."""
    return shlex.quote(os.path.relpath(file) if file.is_relative_to(_CHECKOUT) else str(file))


def services(args: BackendArgs) -> list[Service]:
    """The processes, in any order: none needs another to start (rulers retry their Alertmanager)."""

    def at(port: int) -> str:
        return f"127.0.0.1:{port}"

    return [
        Service(
            name="mimir",
            command='env MIMIR_DIRECTORY="$SERVICE_DIR/mimir/data" mimir -config.expand-env=true'
            f" -config.file={_path(MIMIR_CONFIG)}",
            ready=f"http://{at(args.mimir_port)}/ready",
            listen=[at(args.mimir_port), at(args.mimir_grpc_port)],
            environment={
                "MIMIR_PORT": str(args.mimir_port),
                "MIMIR_GRPC_PORT": str(args.mimir_grpc_port),
                "EXTERNAL_URL": f"http://{at(args.mimir_port)}",
                "METRICS_LATE": "8h",
                "METRICS_RETENTION": "90d",
            },
            config=str(MIMIR_CONFIG),
        ),
        Service(
            name="loki",
            command='env LOKI_DIRECTORY="$SERVICE_DIR/loki/data" loki -target=all -config.expand-env=true'
            f" -config.file={_path(LOKI_CONFIG)}",
            ready=f"http://{at(args.loki_port)}/ready",
            listen=[at(args.loki_port), at(args.loki_grpc_port)],
            environment={
                "LOKI_PORT": str(args.loki_port),
                "LOKI_GRPC_PORT": str(args.loki_grpc_port),
                "MIMIR_PORT": str(args.mimir_port),
                "LOGS_RETENTION": "30d",
            },
            config=str(LOKI_CONFIG),
        ),
        Service(
            name="receiver",
            command=f"{_path(Path(sys.executable))} {_path(HERE / 'receiver.py')} --listen {at(args.receiver_port)}"
            ' --directory "$SERVICE_DIR/receiver/data"',
            ready=f"http://{at(args.receiver_port)}/healthy",
            listen=[at(args.receiver_port)],
            environment={},
        ),
        Service(
            name="grafana",
            # Real Grafana needs its home path, which is two levels above the program on the PATH.
            command='env GF_PATHS_DATA="$SERVICE_DIR/grafana/data" GF_PATHS_LOGS="$SERVICE_DIR/grafana/data/log"'
            ' grafana server --homepath "$(dirname "$(dirname "$(command -v grafana)")")"',
            ready=f"http://{at(args.grafana_port)}/api/health",
            listen=[at(args.grafana_port)],
            environment={
                "GF_SERVER_HTTP_ADDR": "127.0.0.1",
                "GF_SERVER_HTTP_PORT": str(args.grafana_port),
                "GF_ANALYTICS_REPORTING_ENABLED": "false",
                "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
                # Grafana's own rule evaluation stays on: `alerts.targets: [grafana]` must work here too.
                "GF_LOG_LEVEL": "warn",
                **({"GF_SECURITY_ADMIN_PASSWORD": args.grafana_password} if args.grafana_password is not None else {}),
            },
        ),
    ]


class Backend(pulumi.ComponentResource):
    """The embedded backend, ready to receive data once the component's children are created.

    `urls`: name of a service ("mimir", "loki", "receiver", "grafana") -> its base URL. `ready`: known when all of them respond;
    whatever depends on it waits for them.
    """

    urls: dict[str, str]
    ready: pulumi.Output[list[str]]

    def __init__(self, name: str, args: BackendArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(type_token("backend", "Backend"), name, None, opts)
        script = _path(HERE / "service.sh")
        commands = [
            local.Command(
                f"{name}-{service.name}",
                create=f"sh {script} start {service.name}",
                delete=f"sh {script} stop {service.name}",
                environment=service.variables(args.directory),
                logging=local.Logging.STDERR,
                opts=pulumi.ResourceOptions(parent=self),
            )
            for service in services(args)
        ]
        self.ready = pulumi.Output.all(*(command.id for command in commands))
        self.urls = {service.name: f"http://{service.listen[0]}" for service in services(args)}
        self.register_outputs({"urls": self.urls})
