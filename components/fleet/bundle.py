"""From the stack's configuration to the bundle of its hosts. Pure but for the files that the stack file names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from alerts import readiness
from components.fleet.scrape import listen
from gpu_fleet.host import part
from gpu_fleet.host.artifacts import image_archives, image_reference, mirrored, program_sources
from gpu_fleet.host.bundle import Bundle
from gpu_fleet.host.parts import PROGRAMS, HostOptions, standard_parts
from gpu_fleet.host.parts.alloy import Access
from gpu_fleet.host.parts.container_runtime import ContainerRuntime
from gpu_fleet.host.parts.dcgm_exporter import DcgmExporter
from gpu_fleet.host.parts.evidence import Evidence
from gpu_fleet.host.parts.jobs import Jobs
from gpu_fleet.host.parts.monitoring import GRAFANA, SERVERS, Monitoring
from gpu_fleet.host.parts.readiness import Readiness
from gpu_fleet.host.parts.scrape import Scrape
from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.counters import counters
from gpu_fleet.stackfile.sections import Dcgm, Server
from gpu_fleet.stackfile.settings import shared_settings
from gpu_fleet.toolchain.versions import Repository, repository


def bundle(config: StackConfig) -> Bundle:
    """Raises ArtifactsError."""
    source, url = config.artifacts.source, config.artifacts.url
    directory = config.local_path(config.artifacts.directory) if config.artifacts.directory else None
    options = HostOptions(
        programs=program_sources(source, PROGRAMS, url=url, directory=directory),
        metrics_login=bool(config.metrics and config.metrics.username),
        **({"metrics_outage_s": config.metrics.outage_s} if config.metrics else {}),
        logs=config.logs is not None,
        logs_login=bool(config.logs and config.logs.username),
        docker_logs=bool(config.logs and config.logs.docker),
        metrics_access=_access(config, "metrics", config.metrics),
        logs_access=_access(config, "logs", config.logs),
        dcgm=_dcgm(config.dcgm, image_archives(source, directory=directory), config.base),
        dcgm_source=config.dcgm.source,
        dcgm_runtime=config.dcgm.runtime,
        scrape=_scrape(config),
        scrape_targets=bool(config.scrape_targets),
        scrape_interval_s=config.scrape_interval_s,
        monitoring=_monitoring(config, source, url=url, directory=directory),
        readiness=_readiness(config),
        jobs=Jobs() if config.jobs else None,
        evidence=Evidence(keep=config.evidence.keep) if config.evidence else None,
        containers=ContainerRuntime(toolkit=_toolkit(config), may_install=config.dcgm.install),
    )
    return Bundle.of(standard_parts(options), settings=shared_settings(config))


def _readiness(config: StackConfig) -> Readiness | None:
    section = config.readiness
    if section is None:
        return None
    return Readiness(table=readiness.table(), slurm=section.slurm, most_drained=section.most_drained)


def _access(config: StackConfig, store: str, server: Server | None) -> Access:
    if server is None:
        return Access(store=store)
    ca, certificate = config.pem(server.tls.ca), config.pem(server.tls.certificate)
    return Access(store=store, bearer_token=server.bearer_token, ca=ca, certificate=certificate)


def _monitoring(config: StackConfig, source: str, *, url: str | None, directory: Path | None) -> Monitoring | None:
    section = config.monitoring
    if section is None:
        return None
    names = (*SERVERS, GRAFANA) if section.grafana else SERVERS
    return Monitoring(
        programs=program_sources(source, names, url=url, directory=directory),
        certificate=config.pem(section.certificate_file),
    )


def _dcgm(section: Dcgm, archives: Mapping[str, part.Source], base: Path) -> DcgmExporter:
    image = image_reference(section.image, archives) if section.source == "image" else ""
    return DcgmExporter(image=image, archives=archives, counters=counters(section.counters, base).text)


def _scrape(config: StackConfig) -> Scrape | None:
    section = config.scrape
    if section is None:
        return None
    return Scrape(
        node_exporter_listen=listen(section.address, section.node_exporter_port),
        gpu_exporter_listen=listen(section.address, section.gpu_exporter_port),
    )


def _toolkit(config: StackConfig) -> Repository:
    """NVIDIA's repository, the stack's copy of it, or its place on the mirror of everything."""
    nvidia, copy = repository("nvidia-container-toolkit"), config.dcgm.toolkit_repository
    if copy:
        return Repository(url=copy.url, key_sha256=copy.key_sha256 or nvidia.key_sha256)
    return replace(nvidia, url=mirrored(nvidia.url, config.artifacts.url or ""))
