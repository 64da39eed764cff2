"""From the stack's configuration to the arguments of components: which section becomes what. Makes no resource.

A mistake found here (a directory of artifacts without the program, say) ends the program with its text alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pulumi

import alerts
import dashboards
from alerts import grafana_rules
from alerts.alertmanager import alertmanager_config, templates
from alerts.grafana_rules import Source
from alerts.inventory import inventory_groups, kubernetes_inventory_group
from alerts.model import to_yaml
from components import checks, notifications
from components.backend.backend import Backend, BackendArgs
from components.config import LoadedConfig, StackConfig
from components.dcgm.counters import counters
from components.fleet import FleetArgs
from components.grafana.alerting import AlertingArgs
from components.grafana.dashboards import DashboardsArgs, DataSource
from components.host import part, series
from components.host.artifacts import ArtifactsError, image_archives, image_reference, mirrored, program_sources
from components.host.bundle import Bundle
from components.host.parts import PROGRAMS, HostOptions, standard_parts
from components.host.parts.container_runtime import ContainerRuntime
from components.host.parts.dcgm_exporter import DcgmExporter
from components.host.parts.scrape import WEB_CONFIG, Scrape
from components.host.pull.publish import INSTALLER
from components.host.resources import ProviderArgs
from components.kubernetes.wiring import kubernetes_place
from components.rulers.rulers import RulersArgs, RulerServer
from components.scrape import listen, scrape_config, web_config
from components.stackfile.hostspec import shared_settings
from components.stackfile.sections import Dcgm, Grafana
from components.versions import Repository, repository


def check_signals(config: StackConfig) -> None:
    """Ends the program when a rule or a dashboard that this stack would bring somewhere is wrong, with every mistake at once."""
    if config.alerts is None and config.grafana is None and config.kubernetes is None:
        return
    try:
        checks.check_signals(checks.rule_files(), dashboards.models(_price(config.grafana) if config.grafana else None))
    except checks.SignalErrors as errors:
        raise pulumi.RunError(str(errors)) from None


def provider_args(loaded: LoadedConfig) -> ProviderArgs:
    """Logins and secrets of the stack, stored once: a Host carries none of them."""
    config, secrets = loaded.config, loaded.secrets
    placed = {name: secrets[key] for name, key in PLACED_SECRETS.items() if key in secrets}
    if section := config.scrape:
        stack = f"{config.datacenter}/{config.cluster}"
        placed[WEB_CONFIG] = secrets["scrapePassword"].apply(partial(web_config, section, stack))
    return ProviderArgs(
        ssh=_ssh(config),
        ssh_private_key=secrets.get("sshPrivateKey"),
        sudo_password=secrets.get("sudoPassword"),
        secrets=placed,
        ruler_password=secrets.get("rulersPassword"),
        kubernetes=kubernetes_place(config),
        kubeconfig=secrets.get("kubeconfig"),
        artifact_directory=_artifact_directory(config),
        rollout=_rollout(config),
        lost_hosts=sorted(name for name, host in config.hosts.items() if host.lost),
    )


# Files below /etc/gpu-fleet/secrets on every host, by the key of the stack file that holds them.
PLACED_SECRETS = {"metrics-password": "metricsPassword", "logs-password": "logsPassword"}


def _ssh(config: StackConfig) -> Mapping[str, Any]:
    """Paths as the stack file writes them: the provider resolves them, so that the state is the same from every checkout."""
    return config.ssh.model_dump(by_alias=True, exclude_none=True, mode="json")


def _rollout(config: StackConfig) -> Mapping[str, Any] | None:
    section = config.rollout
    if section is None:
        return None
    names = _pushed_to(config)
    has_canary = not set(names).isdisjoint(section.canaries(names))  # lost ones, and those that pull, go in no wave
    return {"hasCanary": has_canary, "maxFailures": section.max_failures, "pauseSeconds": section.pause_s}


def _artifact_directory(config: StackConfig) -> str | None:
    """As the stack file writes it, like the paths of `_ssh`."""
    return config.artifacts.directory if config.artifacts.source == "controller" else None


def fleet_args(config: StackConfig, backend: Backend | None) -> FleetArgs:
    """The hosts that exist, and the one bundle that brings each of them what it needs.

    With an embedded backend they come after it and go before it, so that an agent which stops can still send what it holds.
    """
    built, names = bundle(config), _pushed_to(config)
    waves = config.rollout.waves(names) if config.rollout else [names]
    # The state of a thousand hosts need not say a thousand times what the bundle says already.
    defaults = built.settings.items()
    settings: dict[str, dict[str, pulumi.Input[str]]] = {
        name: dict(config.hosts[name].settings(config).items() - defaults) for name in names
    }
    if backend and config.metrics:
        for values in settings.values():
            values["GPU_FLEET_METRICS_URL"] = _once_up(backend, config.metrics.url)
    return FleetArgs(
        bundle=built, waves=[[config.hosts[name] for name in wave] for wave in waves], settings=settings, ssh=_ssh(config)
    )


def _pushed_to(config: StackConfig) -> list[str]:
    return [host.name for host in config.hosts.values() if host.connection != "pull" and not host.lost]


def estimated_series(config: StackConfig) -> dict[str, int]:
    """What the stack's hosts will cost in Mimir, as an output; a preview tells it in words."""
    estimate = series.summary(config.hosts.values(), counters(config.dcgm.counters, config.base), config.dcgm.counters)
    if estimate is None:
        return {"sent": 0, "recorded": 0}
    text, total = estimate
    if pulumi.runtime.is_dry_run():
        pulumi.log.info(text)
    return {"sent": total.sent, "recorded": total.recorded}


def bundle(config: StackConfig) -> Bundle:
    source, url = config.artifacts.source, config.artifacts.url
    directory = config.local_path(config.artifacts.directory) if config.artifacts.directory else None
    try:
        programs = program_sources(source, PROGRAMS, url=url, directory=directory)
        dcgm = _dcgm(config.dcgm, image_archives(source, directory=directory), config.base)
    except ArtifactsError as error:
        raise pulumi.RunError(str(error)) from None
    options = HostOptions(
        programs=programs,
        metrics_login=bool(config.metrics and config.metrics.username),
        **({"metrics_outage_s": config.metrics.outage_s} if config.metrics else {}),
        logs=config.logs is not None,
        logs_login=bool(config.logs and config.logs.username),
        docker_logs=bool(config.logs and config.logs.docker),
        dcgm=dcgm,
        dcgm_source=config.dcgm.source,
        dcgm_runtime=config.dcgm.runtime,
        scrape=_scrape(config),
        containers=ContainerRuntime(toolkit=_toolkit(config), may_install=config.dcgm.install),
    )
    return Bundle.of(standard_parts(options), settings=shared_settings(config))


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


def scrape_output(config: StackConfig, facts: Mapping[str, pulumi.Output[Mapping[str, str]]]) -> pulumi.Output[str]:
    """What a Prometheus needs to scrape the hosts, as text; known once the hosts have said which exporter they run. One that
    failed has said nothing, and takes the others' targets not along."""
    if not pulumi.runtime.is_dry_run():
        facts = {
            name: told.apply(lambda known: known if isinstance(known, Mapping) else {}, True) for name, told in facts.items()
        }
    return pulumi.Output.all(**facts).apply(lambda known: scrape_config(config, known))


def pull_output(config: StackConfig) -> dict[str, str]:
    """For hosts that provision themselves. `bundle`: sha256 of what is to be published, and named by `latest` below `url` once it
    is. `install`: what each host runs, once; the password is in a file there."""
    assert config.pull is not None
    url = config.pull.url.rstrip("/")
    login = " --password-file /root/metrics-password" if config.metrics and config.metrics.username else ""
    return {
        "bundle": bundle(config).digest,
        "url": url,
        "install": f"curl -fsSLO {url}/{INSTALLER} && sudo sh {INSTALLER}{login}",
    }


def _toolkit(config: StackConfig) -> Repository:
    """NVIDIA's repository, the stack's copy of it, or its place on the mirror of everything."""
    nvidia, copy = repository("nvidia-container-toolkit"), config.dcgm.toolkit_repository
    if copy:
        return Repository(url=copy.url, key_sha256=copy.key_sha256 or nvidia.key_sha256)
    return replace(nvidia, url=mirrored(nvidia.url, config.artifacts.url or ""))


def backend_args(loaded: LoadedConfig) -> BackendArgs:
    """The embedded backend; Grafana's admin password is that of the secret `grafanaAuth` (user:password)."""
    section = loaded.config.backend
    assert section is not None
    auth = loaded.secrets.get("grafanaAuth")
    return BackendArgs(
        directory=section.directory,
        mimir_port=section.mimir.port,
        mimir_grpc_port=section.mimir.grpc_port,
        loki_port=section.loki.port,
        loki_grpc_port=section.loki.grpc_port,
        receiver_port=section.receiver.port,
        grafana_port=section.grafana.port,
        grafana_password=auth.apply(lambda text: text.partition(":")[2]) if auth else None,
    )


def rulers_args(loaded: LoadedConfig, backend: Backend | None) -> RulersArgs:
    """What this stack gives to the rulers it names.

    The rules and who is told come from the stack that has an `alerts` section, one per ruler and tenant; where only Grafana
    judges, the ruler still records what its rules ask for. Every stack with hosts adds the inventory it expects, under a name of
    its own.
    """
    config = loaded.config
    assert config.rulers is not None
    mimir, loki = config.rulers.mimir, config.rulers.loki
    section = config.alerts
    judges = section is not None and "ruler" in section.targets
    if section is None:
        mimir_groups, loki_groups = [], []
    elif judges:
        mimir_groups, loki_groups = (alerts.rule_groups(of, runbook_url=section.runbook_url) for of in ("mimir", "loki"))
    else:
        mimir_groups, loki_groups = alerts.recording_groups(), []
    gpus = {host.name: host.gpus for host in config.hosts.values() if not host.lost}
    return RulersArgs(
        mimir=RulerServer(url=_once_up(backend, mimir.url), tenant=mimir.tenant, username=mimir.username) if mimir else None,
        mimir_groups=[
            *mimir_groups,
            *inventory_groups(config.datacenter, config.cluster, gpus),
            *([kubernetes_inventory_group(config.datacenter, config.cluster)] if config.kubernetes else ()),
        ],
        loki=RulerServer(url=_once_up(backend, loki.url), tenant=loki.tenant, username=loki.username) if loki else None,
        loki_groups=loki_groups,
        alertmanager=_alertmanager(loaded) if judges else None,
        alertmanager_templates=templates(),
    )


def _alertmanager(loaded: LoadedConfig) -> pulumi.Output[str]:
    """Mimir's Alertmanager configuration, with the secrets of its receivers."""
    section = loaded.config.alerts
    assert section is not None
    secrets = pulumi.Output.all(**{name: loaded.secrets[name] for name in notifications.secret_names(section)})
    return secrets.apply(lambda values: to_yaml(alertmanager_config(notifications.notifications(section, values))))


def grafana_provider_args(loaded: LoadedConfig, backend: Backend | None) -> dict[str, Any]:
    section = loaded.config.grafana
    assert section is not None
    return {"url": _once_up(backend, section.url), "auth": loaded.secrets.get("grafanaAuth")}


def dashboards_args(loaded: LoadedConfig) -> DashboardsArgs:
    config, password = loaded.config, loaded.secrets.get("rulersPassword")
    assert config.grafana is not None
    rulers = config.rulers
    kinds = (
        (rulers and rulers.mimir, dashboards.MIMIR_UID, "GPU fleet metrics", "prometheus", "/prometheus"),
        (rulers and rulers.loki, dashboards.LOKI_UID, "GPU fleet logs", "loki", ""),
    )
    sources = [
        DataSource(
            uid=uid,
            name=name,
            type=kind,
            url=server.url + path,
            tenant=server.tenant,
            username=server.username,
            password=password if server.username else None,
        )
        for server, uid, name, kind, path in kinds
        if server
    ]
    return DashboardsArgs(
        folder=config.grafana.folder,
        permissions=_folder_permissions(config),
        data_sources=tuple(sources),
        dashboards=dashboards.all_dashboards(_price(config.grafana)),
    )


def _price(grafana: Grafana) -> dashboards.Price | None:
    if grafana.cost_per_gpu_hour is None:
        return None
    return dashboards.Price(per_gpu_hour=grafana.cost_per_gpu_hour, currency=grafana.currency)


def alerting_args(loaded: LoadedConfig) -> AlertingArgs:
    """The alerts that Grafana judges, and who is told; its policy is left alone where the stack names no receiver."""
    config = loaded.config
    section, rulers = config.alerts, config.rulers
    assert config.grafana is not None and section is not None and rulers is not None
    sources: list[Source] = ["mimir", "loki"] if rulers.loki else ["mimir"]
    return AlertingArgs(
        folder=f"{config.grafana.folder} alerts",
        permissions=_folder_permissions(config),
        data_sources={"mimir": dashboards.MIMIR_UID, "loki": dashboards.LOKI_UID},
        groups=grafana_rules.rule_groups(sources, section.runbook_url),
        notifications=notifications.notifications(section, loaded.secrets) if section.receivers else None,
    )


def _folder_permissions(config: StackConfig) -> list[dict[str, str]]:
    assert config.grafana is not None
    return [entry.model_dump(exclude_none=True) for entry in config.grafana.folder_permissions]


def _once_up(backend: Backend | None, url: str) -> pulumi.Input[str]:
    """The URL, known only once the embedded backend runs: whatever uses it waits for that, by data flow alone."""
    return backend.ready.apply(lambda _: url) if backend else url
