"""A monitoring server for small sites: Mimir, Loki and Grafana on one host, behind Caddy with TLS and logins.

Mimir and Loki have no users of their own. Client certificates, which both can require, would need a PKI at sites that have none,
and would let every GPU host read and delete everything: neither server restricts what a certificate may do. Caddy restricts each
login to the paths it needs, so that what is stored on a rented GPU host can push and nothing else. It is one static program with
releases for both architectures, so it reaches a host in the same way as the others; nginx would need a repository there.

The servers listen on loopback; only Caddy can be reached. Their data is below /var/lib/gpu-fleet-monitoring, in directories that
systemd creates (StateDirectory) and nothing here records: they stay when the host is removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_fleet.host.part import Directory, Download, File, HttpCheck, Part, Source, Unit, User, secret_group
from gpu_fleet.host.parts.launch import IS_SERVER

DATA = "/var/lib/gpu-fleet-monitoring"

PROXY_LOGINS = "monitoring-logins"  # secret: Caddy's users, with the hashes of their passwords
PROXY_KEY = "monitoring-key"  # secret: the certificate's private key
GRAFANA_PASSWORD = "monitoring-grafana"  # noqa: S105  secret: the first password of Grafana's user admin
SERVER_SECRETS = (PROXY_LOGINS, PROXY_KEY, GRAFANA_PASSWORD)

_CONFIG = "/etc/gpu-fleet/monitoring"
MIMIR_CONFIG_PATH = f"{_CONFIG}/mimir.yaml"
LOKI_CONFIG_PATH = f"{_CONFIG}/loki.yaml"
_CERTIFICATE = f"{_CONFIG}/certificate.pem"
_CADDYFILE = f"{_CONFIG}/Caddyfile"
_BACKUP = "/opt/gpu-fleet/bin/gpu-fleet-monitoring"
_GRAFANA_ARCHIVE = "/opt/gpu-fleet/share/grafana.tar.gz"

# The programs of a monitoring server, beyond those of every host.
SERVERS = ("mimir", "loki", "caddy")
GRAFANA = "grafana"
# On loopback, beside those of exporters and Alloy: HTTP, gRPC, and where converge asks whether Caddy works.
PORTS = {9009: "Mimir", 9095: "Mimir", 3100: "Loki", 9096: "Loki", 3000: "Grafana", 2020: "Caddy"}


@dataclass(frozen=True, kw_only=True)
class Monitoring:
    """`programs`: SERVERS, and GRAFANA where it is to run, with where each comes from by architecture. `certificate`: PEM."""

    programs: Mapping[str, Mapping[str, Source]]
    certificate: str

    def parts(self) -> tuple[Part, ...]:
        grafana = (self._grafana(),) if GRAFANA in self.programs else ()
        return (
            Part(
                name="monitoring",
                when=IS_SERVER,
                probe="monitoring",
                fatal=True,
                files=(File.from_rootfs(_BACKUP), File.python("on_host/monitoring")),
            ),
            self._server("mimir", MIMIR_CONFIG_PATH, "http://127.0.0.1:9009/ready", ("URL", "METRICS_LATE", "METRICS_RETENTION")),
            self._server("loki", LOKI_CONFIG_PATH, "http://127.0.0.1:3100/ready", ("LOGS_RETENTION",)),
            *grafana,
            self._proxy(),
        )

    def _server(self, name: str, config: str, ready: str, settings: tuple[str, ...]) -> Part:
        program, start = f"/opt/gpu-fleet/bin/{name}", f"/opt/gpu-fleet/libexec/start-{name}"
        return Part(
            name=name,
            when=IS_SERVER,
            users=(User(name=f"gpu-fleet-{name}"),),
            files=(File.from_rootfs(start), File.from_rootfs(config)),
            downloads=(Download(path=program, sources=self.programs[name]),),
            units=(_unit(name, settings, program, start, config),),
            # Mimir replays what it had in memory; seen: 12 s when empty, 45 s on a machine that was compiling at the same time.
            checks=(HttpCheck(url=ready, contains="ready", within_s=300),),
        )

    def _grafana(self) -> Part:
        start = "/opt/gpu-fleet/libexec/start-grafana"
        return Part(
            name="grafana",
            when=IS_SERVER,
            users=(User(name="gpu-fleet-grafana", groups=("gpu-fleet", secret_group(GRAFANA_PASSWORD))),),
            files=(File.from_rootfs(start),),
            downloads=(Download(path=_GRAFANA_ARCHIVE, sources=_whole(self.programs[GRAFANA]), mode=0o644),),
            # Not on the password: Grafana reads it only when it creates its database.
            secrets=(GRAFANA_PASSWORD,),
            units=(_unit("grafana", ("URL",), start, _GRAFANA_ARCHIVE),),
            checks=(HttpCheck(url="http://127.0.0.1:3000/api/health", contains="database", within_s=300),),
        )

    def _proxy(self) -> Part:
        """Last: where a server behind it is not ready yet, a client would get errors."""
        program, start = "/opt/gpu-fleet/bin/caddy", "/opt/gpu-fleet/libexec/start-monitoring-proxy"
        secrets = (PROXY_LOGINS, PROXY_KEY)
        return Part(
            name="monitoring-proxy",
            when=IS_SERVER,
            users=(User(name="gpu-fleet-monitoring-proxy", groups=("gpu-fleet", *map(secret_group, secrets))),),
            directories=(Directory(path=_CONFIG, contents="placed"),),
            files=(
                File.from_rootfs(start),
                File.from_rootfs(_CADDYFILE),
                File(path=_CERTIFICATE, content=self.certificate.encode()),
            ),
            downloads=(Download(path=program, sources=self.programs["caddy"]),),
            secrets=secrets,
            units=(
                _unit(
                    "monitoring-proxy",
                    ("PORT",),
                    program,
                    start,
                    _CADDYFILE,
                    _CERTIFICATE,
                    *(f"secrets/{name}" for name in secrets),
                ),
            ),
            checks=(HttpCheck(url="http://127.0.0.1:2020/ready", contains="ready"),),
        )


def _unit(name: str, settings: tuple[str, ...], *causes: str) -> Unit:
    """`settings`: those that it reads, without GPU_FLEET_MONITORING_. On a host that is a GPU host too, the settings of its
    exporters and agent change more often, and Mimir replays for a minute what it had in memory."""
    read = (f"setting/GPU_FLEET_MONITORING_{setting}" for setting in settings)
    return Unit(name=f"gpu-fleet-{name}", restart_on=(*causes, *read), systemd_only=True)


def _whole(sources: Mapping[str, Source]) -> dict[str, Source]:
    """The archive itself: start-grafana unpacks it."""
    return {arch: Source(url=source.url, sha256=source.sha256) for arch, source in sources.items()}
