"""Alloy on one host: static configuration split by verb, the same on every host of a stack.

What differs between hosts comes from the environment file, secrets from files. A feature is a file that is shipped or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from components.host.part import Directory, Download, File, HttpCheck, Part, Source, Unit, User

PROGRAM = "/opt/gpu-fleet/bin/alloy"
START = "/opt/gpu-fleet/libexec/start-alloy"
CONFIG = "/etc/alloy"
USER = "gpu-fleet-alloy"


@dataclass(frozen=True, kw_only=True)
class Alloy:
    sources: Mapping[str, Source]  # by architecture
    metrics_login: bool = False  # ship the export that sends GPU_FLEET_METRICS_USERNAME and the secret metrics-password
    metrics_outage_s: int = 6 * 3600  # an outage of Mimir this long loses no sample
    listen: str = "127.0.0.1:12345"  # Alloy's interface: shows its configuration, so loopback

    def part(self) -> Part:
        config = tuple(File.from_rootfs(f"{CONFIG}/{name}.alloy") for name in self._config_names())
        secrets = ("metrics-password",) if self.metrics_login else ()
        return Part(
            name="alloy",
            users=(User(name=USER, groups=("gpu-fleet", "systemd-journal", "adm")),),
            directories=(
                Directory(path=CONFIG, contents="placed"),
                Directory(path="/var/lib/gpu-fleet/alloy", mode=0o750, owner=USER, group=USER, contents="runtime"),
            ),
            files=(File.from_rootfs(START), *config),
            downloads=(Download(path=PROGRAM, sources=self.sources),),
            settings={
                "GPU_FLEET_ALLOY_LISTEN": self.listen,
                "GPU_FLEET_METRICS_TENANT": "",
                "GPU_FLEET_METRICS_USERNAME": "",
                "GPU_FLEET_METRICS_WAL_KEEP": f"{self._wal_keep_s()}s",
            },
            secrets=secrets,
            units=(
                Unit(
                    name="gpu-fleet-alloy",
                    restart_on=(
                        PROGRAM,
                        START,
                        "settings",
                        *(file.path for file in config),
                        *(f"secrets/{name}" for name in secrets),
                    ),
                ),
            ),
            checks=(HttpCheck(url="http://${GPU_FLEET_ALLOY_LISTEN}/-/ready", contains="ready", within_s=30),),
        )

    def _config_names(self) -> tuple[str, ...]:
        return ("discover", "collect_metrics", "export_metrics_login" if self.metrics_login else "export_metrics")

    def _wal_keep_s(self) -> int:
        # The reasoning is beside the value's use, in export_metrics.alloy.
        return self.metrics_outage_s * 3 // 2
