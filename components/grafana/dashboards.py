"""Grafana as code: one folder, the data sources that the dashboards name, and every dashboard of dashboards/.

One stack owns a Grafana's dashboards; datacenters and clusters are variables in them. Not done here: what a dashboard
holds (dashboards/), alert rules and notification policies (alerting.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumiverse_grafana as grafana

from components.naming import grafana_uid, type_token


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """`uid` is fixed: the dashboards name it. `url`: as Grafana reaches it, for Mimir with /prometheus."""

    uid: str
    name: str
    type: str  # Grafana's plugin id: prometheus, loki
    url: str
    tenant: str | None = None
    username: str | None = None
    password: pulumi.Output[str] | None = None  # of username


@dataclass(frozen=True, kw_only=True)
class DashboardsArgs:
    """`dashboards`: uid to the dashboard's JSON model (schema of Grafana's legacy dashboard API).

    `permissions`: all that the folder has, as FolderPermission takes them; empty leaves Grafana's own.
    """

    folder: str
    permissions: Sequence[Mapping[str, str]] = ()
    data_sources: tuple[DataSource, ...]
    dashboards: Mapping[str, Mapping[str, Any]]


class Dashboards(pulumi.ComponentResource):
    """A folder with data sources and dashboards. `urls`: uid of a dashboard to its address in Grafana."""

    urls: dict[str, pulumi.Output[str]]

    def __init__(self, name: str, args: DashboardsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(type_token("grafana", "Dashboards"), name, None, opts)
        child = pulumi.ResourceOptions(parent=self)  # the provider is inherited
        folder = grafana.oss.Folder(f"{name}-folder", title=args.folder, uid=grafana_uid("folder", args.folder), opts=child)
        if args.permissions:
            grafana.oss.FolderPermission(
                f"{name}-folder-permissions", folder_uid=folder.uid, permissions=list(args.permissions), opts=child
            )
        sources = [
            grafana.oss.DataSource(
                f"{name}-{source.uid}",
                uid=source.uid,
                name=source.name,
                type=source.type,
                url=source.url,
                http_headers={"X-Scope-OrgID": source.tenant} if source.tenant else None,
                basic_auth_enabled=True if source.username else None,
                basic_auth_username=source.username,
                secure_json_data_encoded=_secrets(source),
                opts=child,
            )
            for source in args.data_sources
        ]
        # Grafana refuses data sources that another stack has made: then this one must not overwrite the other's dashboards.
        after_sources = pulumi.ResourceOptions.merge(child, pulumi.ResourceOptions(depends_on=sources))
        self.urls = {}
        for uid, model in sorted(args.dashboards.items()):
            dashboard = grafana.oss.Dashboard(
                f"{name}-{uid}",
                folder=folder.uid,
                # Sorted keys: Grafana gives them back in its own order, and a diff should be of what changed.
                config_json=json.dumps(model, sort_keys=True),
                # A dashboard edited by hand is overwritten: the code is the truth, `message` tells the editor why.
                overwrite=True,
                message="written by the gpu-fleet Pulumi program; edit it in dashboards/",
                opts=after_sources,
            )
            self.urls[uid] = dashboard.url
        self.register_outputs({"urls": self.urls})


def _secrets(source: DataSource) -> pulumi.Output[str] | None:
    return pulumi.Output.json_dumps({"basicAuthPassword": source.password}) if source.password is not None else None
