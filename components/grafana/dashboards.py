"""Grafana as code: one folder, the data sources that the dashboards name, and every dashboard of dashboards/.

One stack owns a Grafana's dashboards; datacenters and clusters are variables in them. Not done here: what a dashboard
holds (dashboards/), alert rules and notification policies (alerting.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pulumi
import pulumiverse_grafana as grafana

from dashboards.changes import changes
from gpu_fleet.stackfile.naming import PROJECT, type_token

FOLDER_UID: Final = f"{PROJECT}-dashboards"


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """`uid` is fixed: the dashboards name it. `url`: as Grafana reaches it, for Mimir with /prometheus."""

    uid: str
    name: str
    type: str  # Grafana's plugin id: prometheus, loki
    scrape_interval_s: int | None = None  # None: Grafana's own default, 15 s
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    username: str | None = None
    password: pulumi.Output[str] | None = None  # of username
    bearer_token: pulumi.Output[str] | None = None
    ca: str = ""  # PEM; empty: the authorities of Grafana's system
    certificate: str = ""  # PEM of our own
    client_key: pulumi.Output[str] | None = None  # of certificate


@dataclass(frozen=True, kw_only=True)
class DashboardsArgs:
    """`dashboards`: uid to the dashboard's JSON model (schema of Grafana's legacy dashboard API).

    `permissions`: all that the folder has, as FolderPermission takes them; empty leaves Grafana's own. `takes_over`: replace
    dashboards that exist under our uids and that this stack did not create.
    """

    folder: str
    permissions: Sequence[Mapping[str, str]] = ()
    data_sources: tuple[DataSource, ...]
    dashboards: Mapping[str, Mapping[str, Any]]
    takes_over: bool = False


class Dashboards(pulumi.ComponentResource):
    """A folder with data sources and dashboards. `urls`: uid of a dashboard to its address in Grafana."""

    urls: dict[str, pulumi.Output[str]]

    def __init__(self, name: str, args: DashboardsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(type_token("grafana", "Dashboards"), name, None, opts)
        child = pulumi.ResourceOptions(parent=self)  # the provider is inherited
        folder = grafana.oss.Folder(
            f"{name}-folder",
            title=args.folder,
            uid=FOLDER_UID,
            prevent_destroy_if_not_empty=True,
            # A folder with another uid is replaced, and Grafana deletes what others keep in the old one. Its uid was made of its
            # title until November 2026.
            opts=child.merge(pulumi.ResourceOptions(ignore_changes=["uid"])),
        )
        if args.permissions:
            permissions = [grafana.oss.FolderPermissionPermissionArgs(**entry) for entry in args.permissions]
            grafana.oss.FolderPermission(f"{name}-folder-permissions", folder_uid=folder.uid, permissions=permissions, opts=child)
        sources = [
            grafana.oss.DataSource(
                f"{name}-{source.uid}",
                uid=source.uid,
                name=source.name,
                type=source.type,
                url=source.url,
                http_headers=_headers(source),
                json_data_encoded=_settings(source),
                basic_auth_enabled=True if source.username else None,
                basic_auth_username=source.username,
                secure_json_data_encoded=_secrets(source),
                opts=child,
            )
            for source in args.data_sources
        ]
        # Grafana refuses data sources that another stack has made: then this one must not overwrite the other's dashboards.
        owned = pulumi.ResourceOptions(
            parent=self,
            depends_on=sources,
            # A replacement has the same uid (`pulumi up --replace`), so deleting the old one after it is made would delete both.
            delete_before_replace=True,
            # Of a changed JSON text pulumi shows all that did not change too: 1,500 lines for one word on a dashboard. The change
            # is reported in words instead. Source: pulumi 3.259.0, object_diff.go (printEncodedValueDiff), read 2026-11-22.
            hide_diffs=["configJson"],
            hooks=pulumi.ResourceHookBinding(before_update=[_reporting(name)]),
            # An update in which the JSON stays the same writes what the plugin keeps of it in the state, where panels have no
            # ids: links to panels would break, and nothing would show it (plugin 2.44.0, seen 2026-11-24).
            ignore_changes=["overwrite"],
        )
        self.urls = {}
        for uid, model in sorted(args.dashboards.items()):
            # Sorted keys: Grafana gives them back in its own order, and a diff should be of what changed.
            text = json.dumps(model, sort_keys=True)
            dashboard = grafana.oss.Dashboard(
                f"{name}-{uid}",
                folder=folder.uid,
                config_json=text,
                # Of creation only: Grafana refuses to replace a dashboard of somebody else. An update always overwrites (the
                # plugin's resource_dashboard.go): the code is authoritative, and `message` gives an editor the reason.
                # It changes with the JSON, as pulumi prints all of a resource whose every change is hidden (diff.go, renderDiff).
                overwrite=args.takes_over,
                message=f"written by the gpu-fleet Pulumi program (version {_version(text)}); edit it in dashboards/",
                opts=owned,
            )
            self.urls[uid] = dashboard.url
        self.register_outputs({"urls": self.urls})


def _version(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _reporting(name: str) -> pulumi.ResourceHook:
    """Reports what an update changes, in the words of `make dashboards-diff`; a failure to do so stops no update."""
    options = pulumi.ResourceHookOptions(on_dry_run=True, ignore_errors=True)
    return pulumi.ResourceHook(f"{name}-changes", _report, options)


def _report(update: pulumi.ResourceHookArgs) -> None:
    assert update.old_inputs and update.old_outputs and update.new_inputs
    written, kept, wanted = (json.loads(of["configJson"]) for of in (update.old_inputs, update.old_outputs, update.new_inputs))
    # What a refresh found in Grafana, or else what was written: the plugin keeps no ids of panels, which identify a renamed one.
    old = written if _without_panel_ids(written) == kept else kept
    found = [f"  {change}" for change in changes(old, wanted)] or ["  nothing visible"]
    pulumi.log.info("\n".join([f"{wanted['title']} ({wanted['uid']}):", *found]))


def _without_panel_ids(model: Mapping[str, Any]) -> dict[str, Any]:
    """The model as the plugin keeps it in the state: panels inside folded rows have their ids, the others have none."""
    return {**model, "panels": [{key: value for key, value in panel.items() if key != "id"} for panel in model["panels"]]}


def _headers(source: DataSource) -> dict[str, pulumi.Input[str]] | None:
    headers: dict[str, pulumi.Input[str]] = dict(source.headers)
    if source.bearer_token is not None:
        headers["Authorization"] = source.bearer_token.apply(lambda token: f"Bearer {token.strip()}")
    return headers or None


def _settings(source: DataSource) -> str | None:
    """Grafana's names: https://grafana.com/docs/grafana/latest/administration/provisioning/#json-data, read 2026-11-22."""
    settings = {"tlsAuthWithCACert": bool(source.ca), "tlsAuth": bool(source.certificate)}
    used: dict[str, bool | str] = {name: True for name, is_used in settings.items() if is_used}
    if source.scrape_interval_s is not None:
        used["timeInterval"] = f"{source.scrape_interval_s}s"
    return json.dumps(used) if used else None


def _secrets(source: DataSource) -> pulumi.Output[str] | None:
    secrets = {
        "basicAuthPassword": source.password,
        "tlsCACert": source.ca or None,
        "tlsClientCert": source.certificate or None,
        "tlsClientKey": source.client_key,
    }
    given = {name: value for name, value in secrets.items() if value is not None}
    return pulumi.Output.secret(pulumi.Output.json_dumps(given)) if given else None
