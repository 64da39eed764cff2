"""Everything that is placed on a host of the fleet, as parts in the order in which they are applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpu_fleet.host.part import Part, Source
from gpu_fleet.host.parts.adoption import Adoption
from gpu_fleet.host.parts.alloy import CONFIG, LOGS, METRICS, Access, Alloy, podman_logs
from gpu_fleet.host.parts.container_runtime import ContainerRuntime
from gpu_fleet.host.parts.dcgm_exporter import DcgmExporter
from gpu_fleet.host.parts.drift import Drift
from gpu_fleet.host.parts.driver_check import DriverCheck
from gpu_fleet.host.parts.evidence import Evidence
from gpu_fleet.host.parts.exporter_choice import DcgmRuntime, DcgmSource, ExporterChoice
from gpu_fleet.host.parts.jobs import Jobs
from gpu_fleet.host.parts.kernel_log import KernelLog
from gpu_fleet.host.parts.launch import Launch
from gpu_fleet.host.parts.monitoring import Monitoring
from gpu_fleet.host.parts.node_exporter import NodeExporter
from gpu_fleet.host.parts.nvidia_gpu_exporter import NvidiaGpuExporter
from gpu_fleet.host.parts.old_collector import OldCollector
from gpu_fleet.host.parts.pull import Pull
from gpu_fleet.host.parts.python import Python
from gpu_fleet.host.parts.readiness import Readiness
from gpu_fleet.host.parts.scrape import Scrape
from gpu_fleet.host.parts.scrape_targets import scrape_targets
from gpu_fleet.host.parts.textfile import Textfile
from gpu_fleet.host.scrape_interval import DEFAULT_S, scraped_every

PROGRAMS = ("node_exporter", "nvidia_gpu_exporter", "alloy")


@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """What the stack decides for all its hosts; whatever differs between hosts is a setting.

    `programs`: name in PROGRAMS -> architecture -> where it comes from. `docker_logs` needs `logs`. `dcgm_source` and
    `dcgm_runtime`: how dcgm-exporter is run; `containers`: what is installed for that. `scrape`: None: nothing listens beyond
    loopback. `scrape_targets`: whether hosts have further exporters. `scrape_interval_s`: how often Alloy scrapes.
    `monitoring`: what the host with that role runs.
    `readiness`: None: it is not evaluated. `jobs`: None: they are not recorded. `evidence`: None: it is not collected.
    """

    programs: Mapping[str, Mapping[str, Source]]
    metrics_login: bool = False
    metrics_outage_s: int = 6 * 3600
    logs: bool = True
    logs_login: bool = False
    docker_logs: bool = False
    metrics_access: Access = METRICS
    logs_access: Access = LOGS
    dcgm: DcgmExporter = field(default_factory=DcgmExporter)
    dcgm_source: DcgmSource = "image"
    dcgm_runtime: DcgmRuntime = "auto"
    containers: ContainerRuntime = field(default_factory=ContainerRuntime)
    scrape: Scrape | None = None
    scrape_targets: bool = False
    scrape_interval_s: int = DEFAULT_S
    monitoring: Monitoring | None = None
    readiness: Readiness | None = None
    jobs: Jobs | None = None
    evidence: Evidence | None = None


def standard_parts(options: HostOptions) -> list[Part]:
    """Probes first: their facts decide which of the later parts a host needs. A reader is placed after what it reads."""
    programs = options.programs
    before_alloy = [
        Launch().part(),
        Python().part(),
        DriverCheck().part(),
        *Adoption().parts(),
        *OldCollector().parts(),
        *ExporterChoice(
            dcgm_source=options.dcgm_source,
            dcgm_runtime=options.dcgm_runtime,
            needs={**options.dcgm.settings(), **options.containers.settings()},
        ).parts(),
        *options.containers.parts(),
        *options.dcgm.parts(),
        NvidiaGpuExporter(sources=programs["nvidia_gpu_exporter"]).part(),
        *Textfile().parts(),
        NodeExporter(sources=programs["node_exporter"]).part(),
        *KernelLog().parts(),
        *((podman_logs(),) if options.docker_logs and options.logs else ()),
        *((scrape_targets(),) if options.scrape_targets else ()),
    ]
    alloy = Alloy(
        sources=programs["alloy"],
        metrics_login=options.metrics_login,
        metrics_outage_s=options.metrics_outage_s,
        logs=options.logs,
        logs_login=options.logs_login,
        docker_logs=options.docker_logs and options.logs,
        metrics_access=options.metrics_access,
        logs_access=options.logs_access,
        optional_config=tuple(file.path for part in before_alloy for file in part.files if file.path.startswith(f"{CONFIG}/")),
    )
    scrape = options.scrape.parts() if options.scrape else ()
    monitoring = options.monitoring.parts() if options.monitoring else ()
    readiness = (options.readiness.part(),) if options.readiness else ()
    jobs = options.jobs.parts() if options.jobs else ()
    evidence = (options.evidence.part(),) if options.evidence else ()
    parts = [
        _scraped_every(part, options.scrape_interval_s)
        for part in (*before_alloy, *monitoring, alloy.part(), *readiness, *jobs, *evidence, *scrape)
    ]
    pull = Pull().part()
    return [*parts, Drift(others=[*parts, pull]).part(), pull]


def _scraped_every(part: Part, interval_s: int) -> Part:
    config = {file.path: scraped_every(file.content.decode(), interval_s) for file in part.files if file.path.endswith(".alloy")}
    return replace(
        part,
        files=tuple(replace(file, content=config[file.path].encode()) if file.path in config else file for file in part.files),
    )
