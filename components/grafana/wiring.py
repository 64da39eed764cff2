"""From the stack's configuration to the arguments of Grafana's provider, of Dashboards and of Alerting."""

from __future__ import annotations

from typing import Any

import dashboards
from alerts import grafana_rules
from alerts.grafana_rules import Source
from components import notifications
from components.backend.backend import Backend
from components.backend.wiring import once_up
from components.grafana.alerting import AlertingArgs
from components.grafana.dashboards import DashboardsArgs, DataSource
from components.stack import LoadedConfig
from stackfile.config import StackConfig
from stackfile.sections import Grafana


def grafana_provider_args(loaded: LoadedConfig, backend: Backend | None) -> dict[str, Any]:
    section = loaded.config.grafana
    assert section is not None
    return {"url": once_up(backend, section.url), "auth": loaded.secrets.get("grafanaAuth")}


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
        dashboards=dashboards.all_dashboards(price(config.grafana)),
    )


def price(grafana: Grafana) -> dashboards.Price | None:
    if grafana.cost_per_gpu_hour is None:
        return None
    return dashboards.Price(per_gpu_hour=grafana.cost_per_gpu_hour, currency=grafana.currency)


def alerting_args(loaded: LoadedConfig) -> AlertingArgs:
    """The alerts that Grafana evaluates, and who is notified; its policy is left alone where the stack names no receiver."""
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
