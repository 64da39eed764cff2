"""What all dashboards share: uid, variables, links between them, annotations of XIDs, time range."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from dashboards.panels import LOKI, LOKI_UID, MIMIR, MIMIR_UID
from dashboards.queries.common import CLUSTER

TAG: Final = "gpu-fleet"
# Of Grafana's classic model, as supported by the foundation SDK. Newer Grafana versions migrate it to 42, the last one, on
# loading.
# Source: grafana/grafana, DashboardMigrator.ts of 12.3, read 2026-11-21.
SCHEMA_VERSION: Final = 41


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A variable of a dashboard. `query`: returns its values from reporting series, so that a host of a removed stack disappears
    by itself. `has_all`: several or all values may be selected; otherwise the dashboard opens with one, to keep queries small.
    """

    label: str
    query: str
    has_all: bool = True


# Each variable filters the next.
# A silent host is only in the inventory, and people open the dashboard for its last hours.
_KNOWN: Final = '__name__=~"gpu:info|inventory:host:expected"'
_VARIABLES: Final = {
    "datacenter": Variable(label="Datacenter", query=f"label_values({{{_KNOWN}}}, datacenter)"),
    "cluster": Variable(label="Cluster", query=f'label_values({{{_KNOWN}, datacenter=~"$datacenter"}}, cluster)'),
    "exporter_mode": Variable(label="Exporter", query=f"label_values(gpu:info{{{CLUSTER}}}, exporter_mode)"),
    "instance": Variable(label="Host", query=f"label_values({{{_KNOWN}, {CLUSTER}}}, instance)"),
    "gpu": Variable(label="GPU", query=f'label_values(gpu:info{{{CLUSTER}, instance=~"$instance"}}, gpu)'),
    "namespace": Variable(label="Namespace", query=f'label_values(gpu:utilization:ratio{{{CLUSTER}, namespace!=""}}, namespace)'),
}
_SOURCES: Final = ("datasource", "logs_datasource")
ONE_HOST_FIRST: Final = replace(_VARIABLES["instance"], has_all=False)


def uid(name: str) -> str:
    """The uid of a dashboard never changes: links, bookmarks and Pulumi identify it by its uid."""
    return f"gpu-fleet-{name}"


def panel_id(dashboard: str, title: str) -> int:
    """Six digits of the names, so that what is added or removed beside a panel leaves links to it right."""
    digest = hashlib.sha256(f"{dashboard}/{title}".encode()).hexdigest()
    return 100_000 + int(digest[:12], 16) % 900_000


@dataclass(frozen=True)
class Row:
    """A row with its panels. `is_folded`: collapsed; Grafana runs their queries only when somebody expands the row."""

    title: str
    panels: Iterable[Any]
    is_folded: bool = False


def link_to(name: str, *variables: str) -> str:
    """The URL of a dashboard with the current values of `variables` and the current time range."""
    choices = [f"${{{variable}:queryparam}}" for variable in (*_SOURCES, *variables)]
    return f"/d/{uid(name)}?" + "&".join([*choices, "${__url_time_range}"])


def link_to_host(name: str) -> str:
    """From a table's column `Host` to the dashboard of that host."""
    sources = "&".join(f"${{{variable}:queryparam}}" for variable in _SOURCES)
    return f"/d/{uid(name)}?var-instance=${{__value.raw}}&{sources}&${{__url_time_range}}"


def build(
    name: str,
    title: str,
    description: str,
    *,
    variables: Sequence[str],
    rows: Iterable[Row],
    one_host_first: bool = False,
    time_from: str = "now-6h",
    search: str | None = None,
) -> dict[str, Any]:
    """A dashboard as JSON data, the same for the same arguments. `search`: label of a text field `$search`, if it has one."""
    board = (
        dashboard.Dashboard(title)
        .uid(uid(name))
        .description(description)
        .tags([TAG])
        .time(time_from, "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("GPU fleet")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .annotation(_xids(name))
    )
    board.with_variable(_data_source("datasource", "prometheus", "Metrics", MIMIR_UID))
    board.with_variable(_data_source("logs_datasource", "loki", "Logs", LOKI_UID))
    for variable in variables:
        given = ONE_HOST_FIRST if variable == "instance" and one_host_first else _VARIABLES[variable]
        board.with_variable(_variable(variable, given))
    if search is not None:
        board.with_variable(dashboard.TextBoxVariable("search").label(search).default_value(""))
    for row in rows:
        heading = dashboard.Row(row.title)
        if row.is_folded:
            heading.collapsed(True)
            for panel in row.panels:
                heading.with_panel(panel)
        board.with_row(heading)
        if not row.is_folded:
            for panel in row.panels:
                board.with_panel(panel)
    model: dict[str, Any] = json.loads(json.dumps(board.build(), cls=JSONEncoder, sort_keys=True))
    model["schemaVersion"] = SCHEMA_VERSION
    for panel in all_panels(model):
        # Of its title, which no other panel of the dashboard has: links to a panel survive what is added beside it. Without ids
        # Grafana numbers the panels itself, which would show up as a change.
        panel["id"] = panel_id(name, panel["title"])
    return model


def all_panels(model: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows and panels in order, the panels of a collapsed row after it."""
    for panel in model["panels"]:
        yield panel
        yield from panel.get("panels") or ()


def _data_source(name: str, kind: str, label: str, uid_of: str) -> dashboard.DatasourceVariable:
    """Grafana takes the first data source of this kind where the current one does not exist."""
    current = models.VariableOption(text=uid_of, value=uid_of)
    return dashboard.DatasourceVariable(name).label(label).type(kind).current(current).allow_custom_value(False)


def with_sources(model: Mapping[str, Any], sources: Mapping[str, str]) -> dict[str, Any]:
    """The dashboard with other data sources chosen at first. `sources`: name of the variable to uid."""
    templating = model.get("templating") or {}
    variables = [
        {**one, "current": {"text": sources[one["name"]], "value": sources[one["name"]]}} if one["name"] in sources else one
        for one in templating.get("list", ())
    ]
    return {**model, "templating": {**templating, "list": variables}}


def _variable(name: str, variable: Variable) -> dashboard.QueryVariable:
    made = (
        dashboard.QueryVariable(name)
        .label(variable.label)
        .datasource(MIMIR)
        .query(variable.query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(variable.has_all)
    )
    if variable.has_all:
        # A store may also have series of exporters that something else scrapes: they have no datacenter.
        made.all_value(".+" if name == "datacenter" else ".*").current(models.VariableOption(text="All", value="$__all"))
    return made


def _xids(name: str) -> dashboard.AnnotationQuery:
    """Annotates the time axis with every XID log line of the selected clusters."""
    return (
        dashboard.AnnotationQuery()
        .name("XID")
        .datasource(LOKI)
        .enable(True)
        .icon_color("red")
        .expr(f'{{job="kernel", {CLUSTER}, xid=~".+"}}')
    )
