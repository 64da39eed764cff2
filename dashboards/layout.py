"""What all dashboards share: uid, variables, links between them, the marks of XIDs, time range."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from dashboards.panels import LOKI, MIMIR
from dashboards.queries import CLUSTER

TAG: Final = "gpu-fleet"

# Each narrows the next. Values come from what reports, so a host of a removed stack goes away by itself.
VARIABLES: Final = {
    "datacenter": "label_values(gpu:info, datacenter)",
    "cluster": 'label_values(gpu:info{datacenter=~"$datacenter"}, cluster)',
    "exporter_mode": 'label_values(gpu:info{datacenter=~"$datacenter", cluster=~"$cluster"}, exporter_mode)',
    "instance": (
        'label_values(gpu:info{datacenter=~"$datacenter", cluster=~"$cluster", exporter_mode=~"$exporter_mode"}, instance)'
    ),
    "gpu": 'label_values(gpu:info{datacenter=~"$datacenter", cluster=~"$cluster", instance=~"$instance"}, gpu)',
}
LABELS: Final = {
    "datacenter": "Datacenter",
    "cluster": "Cluster",
    "exporter_mode": "Exporter",
    "instance": "Host",
    "gpu": "GPU",
}


def uid(name: str) -> str:
    """The uid of a dashboard is for ever: links, bookmarks and Pulumi know it by that."""
    return f"gpu-fleet-{name}"


def build(
    name: str, title: str, description: str, *, variables: Sequence[str], rows: Iterable[tuple[str, Iterable[Any]]]
) -> dict[str, Any]:
    """A dashboard as JSON data, the same for the same arguments."""
    board = (
        dashboard.Dashboard(title)
        .uid(uid(name))
        .description(description)
        .tags([TAG])
        .time("now-6h", "now")
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
    for variable in variables:
        board.with_variable(_variable(variable))
    for row_title, panels in rows:
        board.with_row(dashboard.Row(row_title))
        for panel in panels:
            board.with_panel(panel)
    model = json.loads(json.dumps(board.build(), cls=JSONEncoder, sort_keys=True))
    for number, panel in enumerate(model["panels"], start=1):
        panel["id"] = number  # Grafana would number them itself, and show that as a change
    return model


def _variable(name: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(LABELS[name])
        .datasource(MIMIR)
        .query(VARIABLES[name])
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(text="All", value="$__all"))
    )


def _xids(name: str) -> dashboard.AnnotationQuery:
    """Marks every XID line of the chosen clusters on the time axis."""
    return (
        dashboard.AnnotationQuery()
        .name("XID")
        .datasource(LOKI)
        .enable(True)
        .icon_color("red")
        .expr(f'{{job="kernel", {CLUSTER}, xid=~".+"}}')
    )
