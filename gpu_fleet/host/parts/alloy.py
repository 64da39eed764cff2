"""Alloy on one host: static configuration split by verb, the same on every host of a stack.

Values that differ between hosts come from the environment file, secrets from files. A feature is a file that is placed or not;
files that only some hosts need are placed by the parts that they belong to (the scrape of an exporter by that exporter's part).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_fleet.host.part import Directory, Download, File, HttpCheck, Part, Source, Unit, User, secret_group

PROGRAM = "/opt/gpu-fleet/bin/alloy"
START = "/opt/gpu-fleet/libexec/start-alloy"
WATCH = "/opt/gpu-fleet/libexec/watch-alloy"
RELOAD = "/opt/gpu-fleet/libexec/start-reload-alloy"
CONFIG = "/etc/gpu-fleet/alloy"
STATE = "/var/lib/gpu-fleet/alloy"
USER = "gpu-fleet-alloy"
TLS = "/etc/gpu-fleet/tls"
SECRETS = "/etc/gpu-fleet/secrets"


@dataclass(frozen=True, kw_only=True)
class Access:
    """How Alloy reaches one store, besides user name and password. `store`: metrics, logs.

    `bearer_token`: send the secret STORE-bearer-token. `ca`: PEM of the authorities that sign the store's certificate; empty:
    those of the host. `certificate`: PEM of Alloy's own certificate, whose key is the secret STORE-client-key; empty: none.
    """

    store: str
    bearer_token: bool = False
    ca: str = ""
    certificate: str = ""

    def files(self) -> tuple[File, ...]:
        texts = {"ca": self.ca, "certificate": self.certificate}
        return tuple(File(path=f"{TLS}/{self.store}-{name}.pem", content=text.encode()) for name, text in texts.items() if text)

    def secrets(self) -> tuple[str, ...]:
        needed = {"bearer-token": self.bearer_token, "client-key": bool(self.certificate)}
        return tuple(f"{self.store}-{name}" for name, is_needed in needed.items() if is_needed)

    def settings(self) -> dict[str, str]:
        """Paths, as the .alloy files read them; start-alloy prepends the prefix."""
        paths = {
            "BEARER_TOKEN": f"{SECRETS}/{self.store}-bearer-token" if self.bearer_token else "",
            "CA": f"{TLS}/{self.store}-ca.pem" if self.ca else "",
            "CERTIFICATE": f"{TLS}/{self.store}-certificate.pem" if self.certificate else "",
            "CLIENT_KEY": f"{SECRETS}/{self.store}-client-key" if self.certificate else "",
        }
        return {f"GPU_FLEET_{self.store.upper()}_{name}_FILE": path for name, path in paths.items()}


METRICS, LOGS = Access(store="metrics"), Access(store="logs")


def podman_logs() -> Part:
    """Podman logs to the journal; where there is none, to files of its own, which are not read."""
    file = File.from_rootfs(f"{CONFIG}/collect_podman_logs.alloy")
    return Part(name="podman-logs", when={"GPU_FLEET_KERNEL_LOG_SOURCE": ("journal",)}, files=(file,))


@dataclass(frozen=True, kw_only=True)
class Alloy:
    """`optional_config`: files below /etc/gpu-fleet/alloy of other parts; Alloy reloads when one is added or removed."""

    sources: Mapping[str, Source]  # by architecture
    metrics_login: bool  # send GPU_FLEET_METRICS_USERNAME and the secret metrics-password
    logs: bool  # send logs to Loki; the XID counters also work without it
    logs_login: bool  # send GPU_FLEET_LOGS_USERNAME and the secret logs-password
    docker_logs: bool  # those of Podman are a part of their own
    metrics_outage_s: int  # an outage of Mimir of this length loses no samples
    metrics_access: Access = METRICS
    logs_access: Access = LOGS
    optional_config: tuple[str, ...] = ()
    listen: str = "127.0.0.1:12345"  # Alloy's HTTP interface; loopback, because it shows the configuration

    def part(self) -> Part:
        config = tuple(File.from_rootfs(f"{CONFIG}/{name}.alloy") for name in self._config_names())
        certificates = (*self.metrics_access.files(), *(self.logs_access.files() if self.logs else ()))
        return Part(
            name="alloy",
            users=(User(name=USER, groups=self._groups()),),
            directories=(
                Directory(path=CONFIG, contents="placed"),
                *((Directory(path=TLS, contents="placed"),) if certificates else ()),
                Directory(path=STATE, mode=0o750, owner=USER, group=USER, contents="runtime"),
            ),
            files=(File.from_rootfs(START), File.from_rootfs(WATCH), File.from_rootfs(RELOAD), *config, *certificates),
            downloads=(Download(path=PROGRAM, sources=self.sources),),
            settings={
                "GPU_FLEET_ALLOY_LISTEN": self.listen,
                "GPU_FLEET_METRICS_TENANT": "",
                "GPU_FLEET_METRICS_USERNAME": "",
                "GPU_FLEET_METRICS_WAL_KEEP": f"{self._wal_keep_s()}s",
                "GPU_FLEET_LOGS_TENANT": "",
                "GPU_FLEET_LOGS_USERNAME": "",
                "GPU_FLEET_METRICS_HEADERS": "{}",
                "GPU_FLEET_LOGS_HEADERS": "{}",
                **self.metrics_access.settings(),
                **self.logs_access.settings(),
            },
            secrets=self._secrets(),
            units=(
                Unit(
                    name="gpu-fleet-alloy",
                    # Not on secrets and certificates: Alloy reads their files for every request or connection. It reads its
                    # environment only once.
                    restart_on=(PROGRAM, START, WATCH, "settings", "identity"),
                    reload_on=(*(file.path for file in config), *self.optional_config),
                ),
            ),
            # If no name server responds, Alloy spends 10 s on resolving the host's full name for each scrape target.
            checks=(HttpCheck(url="http://${GPU_FLEET_ALLOY_LISTEN}/-/ready", contains="ready", within_s=120),),
        )

    def _config_names(self) -> tuple[str, ...]:
        metrics = "export_metrics_login" if self.metrics_login else "export_metrics"
        logs = "export_no_logs"
        if self.logs:
            logs = "export_logs_login" if self.logs_login else "export_logs"
        docker = ("collect_docker_logs",) if self.docker_logs else ()
        collect = ("collect_metrics", "collect_textfiles", "collect_agent", "collect_test_alert", *docker)
        return ("discover", *collect, "process_kernel", metrics, logs)

    def _groups(self) -> tuple[str, ...]:
        """gpu-fleet: the directory of the secrets; systemd-journal, adm: kernel messages; docker: only if the stack collects
        container logs, because members of this group can become root."""
        secrets = map(secret_group, self._secrets())
        return ("gpu-fleet", *secrets, "systemd-journal", "adm", *(("docker",) if self.docker_logs else ()))

    def _secrets(self) -> tuple[str, ...]:
        metrics = (*(("metrics-password",) if self.metrics_login else ()), *self.metrics_access.secrets())
        if not self.logs:
            return metrics
        return (*metrics, *(("logs-password",) if self.logs_login else ()), *self.logs_access.secrets())

    def _wal_keep_s(self) -> int:
        # Explained where the value is used, in export_metrics.alloy.
        return self.metrics_outage_s * 3 // 2
