"""Builders of panels: what every panel says (title, description, unit, legend, thresholds) is an argument without default.

Colours never stand alone: thresholds are drawn as lines, limits are dashed, legends give the values, and states have words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    gauge,
    logs,
    loki,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

MIMIR_UID: Final = "gpu-fleet-mimir"
LOKI_UID: Final = "gpu-fleet-loki"
MIMIR: Final = models.DataSourceRef(type_val="prometheus", uid=MIMIR_UID)
LOKI: Final = models.DataSourceRef(type_val="loki", uid=LOKI_UID)

WIDTH: Final = 24  # of Grafana's grid
HEIGHT: Final = 8

Panel = TypeVar("Panel")


@dataclass(frozen=True)
class Query:
    """One line of a panel. `legend`: Grafana's template over the labels, or a fixed word."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Limit(Query):
    """A line to compare with: drawn dashed and red, not filled."""


@dataclass(frozen=True)
class Reference(Query):
    """A line to compare with that is no danger: drawn dashed and grey, not filled."""


# Colour from this value on; the first is the colour below all of them.
Thresholds = Sequence[tuple[float | None, str]]
NO_THRESHOLDS: Final[Thresholds] = ((None, "green"),)


def time_series(
    title: str,
    queries: Sequence[Query],
    *,
    description: str,
    unit: str,
    thresholds: Thresholds,
    filled: bool,
    width: int,
    most: float | None = None,
) -> timeseries.Panel:
    """Lines over time. `filled`: the area below is drawn. `most`: upper end of the axis, where the unit has one."""
    panel = (
        timeseries.Panel()
        .fill_opacity(25 if filled else 0)
        .line_width(1)
        .show_points(common_models.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.TABLE)
            .placement(common_models.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI).sort(common_models.SortOrder.DESCENDING))
        .min(0)
    )
    if most is not None:
        panel.max(most)
    if len(thresholds) > 1:
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.DASHED))
    for position, query in enumerate(queries):
        if isinstance(query, (Limit, Reference)):
            panel.override_by_query(_ref_id(position), _dashed("red" if isinstance(query, Limit) else "text"))
    return _described(panel, title, queries, description, unit, thresholds, width, HEIGHT)


def one_number(
    title: str, query: Query, *, description: str, unit: str, thresholds: Thresholds, width: int, link: str | None = None
) -> stat.Panel:
    """A number with its course. Green, yellow and red come with `thresholds`; the number says the same."""
    panel = (
        stat.Panel()
        .color_mode(common_models.BigValueColorMode.BACKGROUND if len(thresholds) > 1 else common_models.BigValueColorMode.NONE)
        .graph_mode(common_models.BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    if link:
        panel.links([dashboard.DashboardLink(title).url(link)])
    return _described(panel, title, [query], description, unit, thresholds, width, 4)


def gauges(
    title: str, query: Query, *, description: str, unit: str, thresholds: Thresholds, width: int, most: float
) -> gauge.Panel:
    panel = (
        gauge.Panel()
        .show_threshold_labels(True)
        .show_threshold_markers(True)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .min(0)
        .max(most)
    )
    return _described(panel, title, [query], description, unit, thresholds, width, HEIGHT)


def bars(title: str, query: Query, *, description: str, unit: str, thresholds: Thresholds, width: int) -> bargauge.Panel:
    """The largest now, longest bar first."""
    panel = (
        bargauge.Panel()
        .orientation(common_models.VizOrientation.HORIZONTAL)
        .display_mode(common_models.BarGaugeDisplayMode.BASIC)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .min(0)
        .with_transformation(
            models.DataTransformerConfig(id_val="sortBy", options={"fields": {}, "sort": [{"field": "Value", "desc": True}]})
        )
    )
    return _described(panel, title, [query], description, unit, thresholds, width, HEIGHT, instant=True)


def rows(
    title: str,
    queries: Sequence[Query],
    *,
    description: str,
    unit: str,
    thresholds: Thresholds,
    width: int,
    columns: Mapping[str, str],
    sort_by: str,
    descending: bool = True,
    units: Mapping[str, str] | None = None,
) -> table.Panel:
    """A table of what is now. `columns`: label or value (`Value #A`) to heading, in this order; what is not named is left out."""
    panel = table.Panel().with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    panel.with_transformation(
        models.DataTransformerConfig(
            id_val="organize",
            options={
                "includeByName": {name: True for name in columns},
                "indexByName": {name: index for index, name in enumerate(columns)},
                "renameByName": dict(columns),
            },
        )
    )
    panel.sort_by([common.TableSortByFieldState().display_name(sort_by).desc(descending)])
    for heading, unit_of_column in (units or {}).items():
        panel.override_by_name(heading, [models.DynamicConfigValue(id_val="unit", value=unit_of_column)])
    return _described(panel, title, queries, description, unit, thresholds, width, HEIGHT, instant=True)


def states(
    title: str, query: Query, *, description: str, unit: str, words: Mapping[int, tuple[str, str]], width: int
) -> statetimeline.Panel:
    """What a value of few states was, over time. `words`: value to (word, colour); the word stands in the bar."""
    panel = (
        statetimeline.Panel()
        .show_value(common_models.VisibilityMode.AUTO)
        .merge_values(True)
        .mappings([_words({str(value): word for value, word in words.items()})])
        .legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.LIST)
            .placement(common_models.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )
    return _described(panel, title, [query], description, unit, NO_THRESHOLDS, width, HEIGHT)


def log_table(
    title: str, query: str, *, description: str, width: int, columns: Mapping[str, str], words: Mapping[str, Mapping[str, str]]
) -> table.Panel:
    """Counts of log lines in the time range, a row per set of labels. `words`: heading to what its values mean."""
    panel = table.Panel().with_transformation(
        models.DataTransformerConfig(
            id_val="organize",
            options={
                "includeByName": {name: True for name in columns},
                "indexByName": {name: index for index, name in enumerate(columns)},
                "renameByName": dict(columns),
            },
        )
    )
    for heading, texts in words.items():
        mapping = _words({value: (text, "text") for value, text in texts.items()})
        panel.override_by_name(heading, [models.DynamicConfigValue(id_val="mappings", value=[mapping])])
    return (
        panel.title(title)
        .description(description)
        .unit("short")
        .datasource(LOKI)
        .span(width)
        .height(HEIGHT)
        .with_target(loki.Dataquery().expr(query).query_type("instant").instant(True).ref_id("A"))
    )


def _words(texts: Mapping[str, tuple[str, str]]) -> models.ValueMap:
    return models.ValueMap(
        options={
            value: models.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(texts.items())
        }
    )


def log_lines(title: str, query: str, *, description: str, width: int) -> logs.Panel:
    """Lines as they were logged, newest first."""
    return (
        logs.Panel()
        .title(title)
        .description(description)
        .unit("short")
        .datasource(LOKI)
        .show_time(True)
        .wrap_log_message(True)
        .sort_order(common_models.LogsSortOrder.DESCENDING)
        .enable_log_details(True)
        .span(width)
        .height(HEIGHT)
        .with_target(loki.Dataquery().expr(query).query_type("range").ref_id("A"))
    )


def log_counts(title: str, query: Query, *, description: str, unit: str, width: int) -> timeseries.Panel:
    """Events per interval as stacked bars, from Loki."""
    panel = (
        timeseries.Panel()
        .draw_style(common_models.GraphDrawStyle.BARS)
        .fill_opacity(80)
        .stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
        .legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.TABLE)
            .placement(common_models.LegendPlacement.RIGHT)
            .show_legend(True)
            .calcs(["sum"])
        )
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(LOKI)
        .span(width)
        .height(HEIGHT)
    )
    return panel.with_target(loki.Dataquery().expr(query.expression).legend_format(query.legend).query_type("range").ref_id("A"))


def _described(
    panel: Any,
    title: str,
    queries: Sequence[Query],
    description: str,
    unit: str,
    thresholds: Thresholds,
    width: int,
    height: int,
    *,
    instant: bool = False,
) -> Any:
    panel.title(title).description(description).unit(unit).datasource(MIMIR).span(width).height(height)
    panel.thresholds(
        dashboard.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=value, color=color) for value, color in thresholds])
    )
    for position, query in enumerate(queries):
        target = prometheus.Dataquery().expr(query.expression).legend_format(query.legend).ref_id(_ref_id(position))
        if instant:
            target.instant().format(PromQueryFormat.TABLE if isinstance(panel, table.Panel) else PromQueryFormat.TIME_SERIES)
        else:
            target.range()
        panel.with_target(target)
    return panel


def _ref_id(position: int) -> str:
    return chr(ord("A") + position)


def _dashed(color: str) -> list[models.DynamicConfigValue]:
    return [
        models.DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [10, 10]}),
        models.DynamicConfigValue(id_val="custom.fillOpacity", value=0),
        models.DynamicConfigValue(id_val="custom.lineWidth", value=2),
        models.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color}),
    ]
