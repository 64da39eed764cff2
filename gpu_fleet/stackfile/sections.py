"""Sections about where metrics and logs go, what is installed, rulers and Grafana; and the file as a whole."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpu_fleet.host.scrape_interval import DEFAULT_S
from gpu_fleet.stackfile.alerts import Alerts
from gpu_fleet.stackfile.custom import Custom
from gpu_fleet.stackfile.evidence import Evidence
from gpu_fleet.stackfile.hosts import HostEntry, Inventory, Ssh
from gpu_fleet.stackfile.jobs import Jobs
from gpu_fleet.stackfile.kubernetes import Kubernetes
from gpu_fleet.stackfile.monitoring import Monitoring
from gpu_fleet.stackfile.prices import CostPerGpuHour
from gpu_fleet.stackfile.readiness import Readiness
from gpu_fleet.stackfile.rollout import Rollout
from gpu_fleet.stackfile.scrape import Scrape
from gpu_fleet.stackfile.scrape_targets import Targets
from gpu_fleet.stackfile.values import (
    Bandwidth,
    BaseUrl,
    Currency,
    DataSourceUid,
    HeaderName,
    HeaderValue,
    ImageDigest,
    LocalPath,
    LogsUrl,
    MetricsUrl,
    Name,
    Port,
    QueryUrl,
    ScrapeInterval,
    Section,
    Sha256,
    Share,
    SigningPublicKey,
    Tenant,
    Texts,
    Username,
    WebUrl,
    duration,
    duration_s,
)


class Tls(Section):
    """Certificates of a connection, as PEM files of this machine."""

    ca: LocalPath | None = Field(default=None, examples=["certs/ca.pem"])
    """Authorities that sign the server's certificate. Default: those that the client's system trusts."""
    certificate: LocalPath | None = Field(default=None, examples=["certs/gpu-fleet.pem"])
    """Our own certificate, for servers that ask for one (mTLS). Its key is a secret: metricsClientKey, logsClientKey or
    rulersClientKey."""


class Server(Section):
    """How a store is reached."""

    url: WebUrl
    """Its URL."""
    tenant: Tenant | None = None
    """Tenant, sent as X-Scope-OrgID. Default: no header."""
    username: Username | None = None
    """User of basic authentication; its password is a secret: metricsPassword, logsPassword or rulersPassword."""
    bearer_token: bool = False
    """Send a bearer token, a secret: metricsBearerToken, logsBearerToken or rulersBearerToken."""
    headers: dict[HeaderName, HeaderValue] = Field(default={}, examples=[{"X-Gateway-Team": "gpu"}])
    """More headers, such as a gateway or proxy needs. They are no secrets."""
    tls: Tls = Tls()
    """A private authority, a certificate of our own."""


class Metrics(Server):
    """Where Alloy pushes metrics (Prometheus remote write)."""

    url: MetricsUrl
    """Push URL of Mimir, Grafana Cloud, Prometheus, VictoriaMetrics or Thanos."""
    query_url: QueryUrl | None = None
    """Where the same store answers queries: below it is /api/v1/query. Default: from `url`; Thanos, and VictoriaMetrics as a
    cluster, answer elsewhere."""
    outage: Annotated[str, *duration("5m", "72h", "6h")] = "6h"
    """Longest outage of the store that loses no sample: for so long Alloy keeps them on the host's disk."""

    @property
    def outage_s(self) -> int:
        return int(duration_s(self.outage) or 0)

    @property
    def queries(self) -> str | None:
        """`query_url`, or what follows from `url`; None: the store answers elsewhere, and only `query_url` could say where."""
        if self.query_url or "/insert/" in self.url:
            return self.query_url
        for end, path in {"/api/v1/push": "/prometheus", "/api/prom/push": "/api/prom", "/api/v1/write": ""}.items():
            if self.url.endswith(end):
                return self.url.removesuffix(end) + path
        return None


class Logs(Server):
    """Where Alloy pushes kernel lines (XID), and container logs when asked."""

    url: LogsUrl
    """Push URL of Loki."""
    docker: bool = False
    """Push the logs of Docker containers too."""


class Artifacts(Section):
    """Where hosts get exporters and Alloy from; every file is verified by sha256 whatever the source."""

    source: Literal["upstream", "mirror", "controller"] = "upstream"
    """`upstream`: the upstream releases; `mirror`: a file server of yours; `controller`: sent by this machine over SSH."""
    url: BaseUrl | None = None
    """Mirror only: its URL, under which the releases keep their upstream path."""
    directory: LocalPath | None = None
    """Controller only: directory of the files, each named by its sha256; `make artifacts` fills build/artifacts."""


class PackageRepository(Section):
    """A copy of NVIDIA's repository of distribution packages, below the same paths."""

    url: BaseUrl
    """URL that replaces https://nvidia.github.io/libnvidia-container."""
    key_sha256: Sha256 | None = None
    """sha256 of the file `gpgkey` below it, where a key of yours signs the copy. Default: that of NVIDIA's key."""


class Pull(Section):
    """Hosts that provision themselves: they fetch what `make pull-bundle` publishes."""

    url: WebUrl
    """Where the hosts find the published directory: a file server, an object store."""
    insecure: bool = False
    """Allow http:// in `url`: anyone on the path can replace the installer, which runs as root. Later updates are signed."""
    spare_key: SigningPublicKey | None = None
    """Public key that the hosts trust beside the one that signs, kept offline for the day when that one is lost or stolen."""
    valid_for: Annotated[str, *duration("1h", "8760h", "720h")] = "720h"
    """How long after signing hosts accept a publication: publish again before it ends. Default: 30 days."""
    waves: Annotated[tuple[Share, ...], Texts] = ("100%",)
    """Share of the hosts that have a new bundle after each wave, such as [1%, 10%, 100%]. Default: all at once."""
    pause: Annotated[str, *duration("0s", "168h", "2h")] = "1h"
    """Time between two waves. `make pull-bundle STOP=1` stops a rollout between them."""
    hosts: int | None = Field(default=None, ge=1, examples=[10000])
    """How many hosts pull, where `bandwidth` is set. Default: those of the stack file with `connection: pull`."""
    bandwidth: Bandwidth | None = None
    """What all hosts together may take from the server, such as 1Gbit/s: their downloads are spread over the time that needs."""

    @property
    def shares(self) -> tuple[float, ...]:
        return tuple(float(share[:-1]) / 100 for share in self.waves)

    @property
    def valid_s(self) -> int:
        return round(duration_s(self.valid_for) or 0)

    @property
    def pause_s(self) -> int:
        return round(duration_s(self.pause) or 0)

    @property
    def bytes_per_s(self) -> float:
        if self.bandwidth is None:
            return 0.0
        number, unit = self.bandwidth.removesuffix("bit/s")[:-1], self.bandwidth.removesuffix("bit/s")[-1]
        return float(number) * {"k": 1e3, "M": 1e6, "G": 1e9}[unit] / 8


class Dcgm(Section):
    """dcgm-exporter on the hosts that get it: what it collects, and how it is run."""

    counters: LocalPath = Field(default="standard", examples=["standard", "profiling", "counters.csv"])
    """`standard`, `profiling` (needs SYS_ADMIN) or the path of a .csv list of counters."""
    source: Literal["image", "packages"] = "image"
    """`image`: NVIDIA's container image; `packages`: DCGM's packages, from a repository that the hosts have."""
    image: ImageDigest | None = None
    """The image in a registry of yours, with its digest. Default: NVIDIA's, pinned in gpu_fleet/toolchain/versions.yaml."""
    runtime: Literal["auto", "docker", "podman"] = "auto"
    """What runs the image; `auto` takes what the host has."""
    install: bool = False
    """Install Docker or Podman, and NVIDIA's Container Toolkit, where missing; else such hosts get nvidia_gpu_exporter. Never
    beside another container runtime, Kubernetes or virtual machines."""
    toolkit_repository: PackageRepository | None = None
    """Where the Container Toolkit is installed from. Default: NVIDIA's repository, or the mirror of gpu-fleet:artifacts."""


class FolderPermission(Section):
    """What a role, a team or a user may do in our folders: one of the three, and the permission."""

    permission: Literal["View", "Edit", "Admin"]
    """Grafana's permission."""
    role: Literal["Viewer", "Editor"] | None = None
    """Basic role; admins may do everything anyway."""
    team_id: Annotated[str, Field(pattern=r"^\d+$", examples=['"3"'])] | None = None
    """Number of a team, from the address of its page in Grafana."""
    user_id: Annotated[str, Field(pattern=r"^\d+$", examples=['"12"'])] | None = None
    """Number of a user or service account."""


class Grafana(Section):
    """The Grafana that gets folders, dashboards, data sources and alert rules; one stack owns it."""

    url: BaseUrl
    """URL of Grafana."""
    folder: str = Field(default="GPU fleet", min_length=1, max_length=100)
    """Title of the folder of the dashboards; that of the alert rules has ` alerts` after it."""
    folder_permissions: Annotated[tuple[FolderPermission, ...], Texts] = ()
    """All permissions on both folders. Default: as Grafana gives them, viewers view and editors edit."""
    cost_per_gpu_hour: CostPerGpuHour | None = None
    """What a GPU costs for an hour, used or not: a price, or one for each model. Each may be a list of prices with their
    first days. For the capacity dashboard and `make usage`. Default: they show no cost."""
    currency: Currency = "USD"
    """Currency of costPerGpuHour, ISO 4217."""
    metrics_data_source: DataSourceUid | None = None
    """uid of an existing data source of metrics. Default: ours, made from gpu-fleet:rulers.mimir, else from gpu-fleet:metrics."""
    logs_data_source: DataSourceUid | None = None
    """uid of an existing data source of logs. Default: ours, made from gpu-fleet:rulers.loki."""
    take_over: bool = False
    """Replace dashboards, contact points, a message template and a notification policy that exist and that this stack did not
    create. Default: `up` refuses them. Remove it after the `up` that took them over."""


class Ruler(Server):
    """One server whose ruler evaluates our rules."""

    url: BaseUrl
    """URL of the server."""


class Rulers(Section):
    """The rulers of Mimir and Loki: recording rules, alerts, and Mimir's Alertmanager."""

    mimir: Ruler | None = None
    """Mimir: metric rules and the Alertmanager configuration."""
    loki: Ruler | None = None
    """Loki: rules over log lines."""
    take_over: bool = False
    """Replace rule groups and an Alertmanager configuration that exist and that this stack did not create. Default: `up` refuses
    them. Remove it after the `up` that took them over."""


class MimirServer(Section):
    port: Port = 9009
    """HTTP port."""
    grpc_port: Port = 9095
    """gRPC port, used by Mimir alone."""


class LokiServer(Section):
    port: Port = 3100
    """HTTP port."""
    grpc_port: Port = 9096
    """gRPC port, used by Loki alone."""


class ReceiverServer(Section):
    port: Port = 9094
    """HTTP port."""


class GrafanaServer(Section):
    port: Port = 3000
    """HTTP port."""


class Backend(Section):
    """Mimir, Loki, Grafana and an alert receiver on this machine, for trying things out (the dev stack)."""

    directory: LocalPath = ".dev/backend"
    """Where they keep their data."""
    mimir: MimirServer = MimirServer()
    """Mimir with ruler and Alertmanager."""
    loki: LokiServer = LokiServer()
    """Loki with ruler."""
    receiver: ReceiverServer = ReceiverServer()
    """A webhook receiver that keeps what the Alertmanager sends."""
    grafana: GrafanaServer = GrafanaServer()
    """Grafana, or the lab's stand-in where it cannot be downloaded."""


class StackFile(Section):
    """Our section of a stack file: every key is written as `gpu-fleet:<key>`. Secrets are keys of their own."""

    datacenter: Name | None = None
    """Label `datacenter` on everything this stack sends."""
    cluster: Name | None = None
    """Label `cluster` on everything this stack sends."""
    ssh: Ssh | None = None
    """How to log in to the hosts."""
    hosts: dict[str, HostEntry | None] | None = None
    """The hosts by name or pattern. Or `inventory`, not both."""
    inventory: Inventory | None = None
    """A file that lists the hosts, ours or Ansible's. Or `hosts`, not both."""
    rollout: Rollout | None = None
    """Which hosts are changed first, and when the others follow. Default: all at once."""
    monitoring: Monitoring | None = None
    """The monitoring server, where a host of the stack is one (`role: monitoring` or `both`)."""
    metrics: Metrics | None = None
    """Where metrics go; needed with hosts. Default: the monitoring server."""
    logs: Logs | None = None
    """Where logs go. Default: the monitoring server. Without either, XIDs are seen only through the exporter."""
    scrape_interval: ScrapeInterval = f"{DEFAULT_S}s"
    """How often exporters are scraped. In a stack with rules or dashboards of several sites: the longest interval of these."""
    scrape: Scrape | None = None
    """Lets a Prometheus of yours fetch the hosts' metrics. Default: exporters answer on loopback only."""
    scrape_targets: Targets | None = None
    """Further exporters on the hosts that Alloy scrapes, by the label `job`: model servers, speech recognition."""
    artifacts: Artifacts = Artifacts()
    """Where hosts get programs from."""
    pull: Pull | None = None
    """Where hosts that provision themselves fetch from; an output has the command that installs them."""
    dcgm: Dcgm = Dcgm()
    """What dcgm-exporter collects, and how it is run."""
    readiness: Readiness | None = None
    """Whether work may start on a host, for people, Slurm and dashboards. Default: nothing of it is installed."""
    jobs: Jobs | None = None
    """Which job has which GPU, from Slurm. Default: nothing of it is installed."""
    evidence: Evidence | None = None
    """What is collected on a broken host before a reset or reboot. Default: nothing of it is installed."""
    kubernetes: Kubernetes | None = None
    """A GPU cluster that gets the same monitoring through Helm."""
    grafana: Grafana | None = None
    """Grafana as code. Default: that of the monitoring server."""
    rulers: Rulers | None = None
    """Servers that evaluate our rules. Default: the monitoring server."""
    alerts: Alerts | None = None
    """Who evaluates the alerts and who is notified."""
    custom: Custom | None = None
    """A directory of yours with rules and dashboards, checked and deployed like ours."""
    backend: Backend | None = None
    """Servers on this machine, for trying things out."""


# Secret keys by what they are for. Receivers name further ones (`urlSecret: slackUrl`).
SECRETS = {
    "sshPrivateKey": "private key for the hosts, where there is neither an agent nor a file (CI)",
    "sudoPassword": "password for sudo on the hosts",
    "sudoPasswords": "passwords for sudo by host or pattern, as YAML (`gpu-[001:016]: …`), where they differ from sudoPassword",
    "metricsPassword": "password of gpu-fleet:metrics.username",
    "metricsBearerToken": "bearer token of gpu-fleet:metrics",
    "metricsClientKey": "key of gpu-fleet:metrics.tls.certificate, as PEM",
    "logsPassword": "password of gpu-fleet:logs.username",
    "logsBearerToken": "bearer token of gpu-fleet:logs",
    "logsClientKey": "key of gpu-fleet:logs.tls.certificate, as PEM",
    "scrapePassword": "password of gpu-fleet:scrape.username",
    "monitoringKey": "private key (PEM) of gpu-fleet:monitoring.certificateFile",
    "rulersPassword": "password of gpu-fleet:rulers.*.username",
    "rulersBearerToken": "bearer token of gpu-fleet:rulers.*",
    "rulersClientKey": "key of gpu-fleet:rulers.*.tls.certificate, as PEM",
    "kubeconfig": "kubeconfig of the Kubernetes cluster, where no file has it (CI)",
    "operatorGrafanaPassword": "password of the user admin of kubernetes.operatorGrafana",
    "grafanaAuth": "service account token of Grafana, or user:password",
}
