"""From the stack's configuration to the arguments of Grafana's provider, of Dashboards and of Alerting."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dashboards
from alerts import grafana_rules
from alerts.grafana_rules import Source
from components import notifications
from components.backend.once_up import once_up
from components.custom import all_dashboards, customization
from components.fleet.fleet import Fleet
from components.fleet.monitoring import once_serving
from components.grafana.alerting import AlertingArgs
from components.grafana.dashboards import DashboardsArgs, DataSource
from components.grafana.ownership import Owner
from components.stack import LoadedConfig
from gpu_fleet.host.scrape_interval import DEFAULT_S
from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.sections import Ruler, Rulers, Server

if TYPE_CHECKING:
    from components.backend.backend import Backend


def grafana_provider_args(loaded: LoadedConfig, backend: Backend | None, fleet: Fleet | None = None) -> dict[str, Any]:
    section = loaded.config.grafana
    assert section is not None
    url = once_up(backend, section.url) if backend else once_serving(fleet, loaded.config, section.url)
    ca = loaded.config.monitoring.ca_file if loaded.config.monitoring and _is_of_server(loaded.config) else None
    return {"url": url, "auth": loaded.secrets.get("grafanaAuth"), "ca_cert": loaded.config.pem(ca) or None}


def _is_of_server(config: StackConfig) -> bool:
    """Whether Grafana is the one of the stack's monitoring server."""
    return config.grafana is not None and config.monitoring_host is not None and config.grafana.url == config.monitoring_url


def dashboards_args(loaded: LoadedConfig) -> DashboardsArgs:
    config = loaded.config
    section = config.grafana
    assert section is not None
    return DashboardsArgs(
        folder=section.folder,
        permissions=_folder_permissions(config),
        data_sources=tuple(_data_sources(loaded)),
        dashboards=all_dashboards(config),
        takes_over=section.take_over,
    )


def _data_sources(loaded: LoadedConfig) -> Iterator[DataSource]:
    """Ours; none where the stack file names one that exists."""
    config = loaded.config
    section, rulers, metrics = config.grafana, _rulers_seen_by_grafana(config), config.metrics
    assert section is not None
    if section.metrics_data_source is None:
        if rulers and rulers.mimir:
            url = f"{rulers.mimir.url}/prometheus"
            yield _data_source(loaded, rulers.mimir, "rulers", url, dashboards.MIMIR_UID, "GPU fleet metrics", "prometheus")
        elif metrics and metrics.queries:
            yield _data_source(
                loaded, metrics, "metrics", metrics.queries, dashboards.MIMIR_UID, "GPU fleet metrics", "prometheus"
            )
    if section.logs_data_source is None and rulers and rulers.loki:
        yield _data_source(loaded, rulers.loki, "rulers", rulers.loki.url, dashboards.LOKI_UID, "GPU fleet logs", "loki")


def _rulers_seen_by_grafana(config: StackConfig) -> Rulers | None:
    """The Grafana of a monitoring server reaches Mimir and Loki on loopback, without TLS and login."""
    if config.rulers is None or not _is_of_server(config):
        return config.rulers
    here = {"mimir": "http://127.0.0.1:9009", "loki": "http://127.0.0.1:3100"}
    rulers = {name: getattr(config.rulers, name) for name in here}
    update = {
        name: Ruler(url=here[name], tenant=ruler.tenant)
        for name, ruler in rulers.items()
        if ruler and ruler.url == config.monitoring_url
    }
    return config.rulers.model_copy(update=update)


def _data_source(loaded: LoadedConfig, server: Server, secrets: str, url: str, uid: str, name: str, kind: str) -> DataSource:
    """`secrets`: with what the names of the server's secrets begin."""
    config, tls = loaded.config, server.tls
    return DataSource(
        uid=uid,
        name=name,
        type=kind,
        scrape_interval_s=None if kind == "loki" or config.scrape_interval_s == DEFAULT_S else config.scrape_interval_s,
        url=url,
        headers={**({"X-Scope-OrgID": server.tenant} if server.tenant else {}), **server.headers},
        username=server.username,
        password=loaded.secrets[f"{secrets}Password"] if server.username else None,
        bearer_token=loaded.secrets[f"{secrets}BearerToken"] if server.bearer_token else None,
        ca=config.pem(tls.ca),
        certificate=config.pem(tls.certificate),
        client_key=loaded.secrets[f"{secrets}ClientKey"] if tls.certificate else None,
    )


def alerting_args(loaded: LoadedConfig, backend: Backend | None) -> AlertingArgs:
    """The alerts that Grafana evaluates, and who is notified; its policy is left alone where the stack names no receiver."""
    config = loaded.config
    section, rulers = config.alerts, config.rulers
    assert config.grafana is not None and section is not None and rulers is not None
    sources: list[Source] = ["mimir", "loki"] if rulers.loki else ["mimir"]
    return AlertingArgs(
        folder=f"{config.grafana.folder} alerts",
        permissions=_folder_permissions(config),
        data_sources={
            "mimir": config.grafana.metrics_data_source or dashboards.MIMIR_UID,
            "loki": config.grafana.logs_data_source or dashboards.LOKI_UID,
        },
        groups=grafana_rules.rule_groups(sources, notifications.links(config), customization(config)),
        owner=Owner(
            url=once_up(backend, config.grafana.url),
            auth=loaded.secrets.get("grafanaAuth") or os.environ.get("GRAFANA_AUTH"),
            takes_over=config.grafana.take_over,
        ),
        notifications=section if section.receivers else None,
        secrets=loaded.secrets,
    )


def _folder_permissions(config: StackConfig) -> list[dict[str, str]]:
    assert config.grafana is not None
    return [entry.model_dump(exclude_none=True) for entry in config.grafana.folder_permissions]
