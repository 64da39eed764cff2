"""Panel builders: title, description, unit, legend and thresholds are arguments without a default.

Color is never the only signal: thresholds are drawn as lines, limits are dashed, legends show values, and states have a text.
`if_none` is the text of a panel without data: "none" where that is good, otherwise the source that is missing. A number or state
without data is unknown, and gray: Grafana would give it the color of the lowest threshold, which is that of health.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
# Variables of every dashboard, so that it also works with data sources that are not ours.
MIMIR: Final = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
LOKI: Final = models.DataSourceRef(type_val="loki", uid="${logs_datasource}")

HEIGHT: Final = 8  # in units of Grafana's grid, which is 24 wide
_LEGEND_BESIDE_FROM: Final = 12  # narrower panels have the legend below, and are higher
_EVENTS_EVERY: Final = "1m"  # narrower bars are hard to see

NONE: Final = "none"
UNKNOWN: Final = "unknown"
UNKNOWN_COLOR: Final = "#808080"
NOT_REPORTED: Final = "not reported by this exporter"
NONE_REPORTED: Final = "none, or not reported by this exporter"
NO_GPU_VALUES: Final = "no GPU metrics: see the state of the host above"

# The panels with data from Mimir. The SDK's builders have no common base class.
_Panel = TypeVar("_Panel", bargauge.Panel, gauge.Panel, stat.Panel, statetimeline.Panel, table.Panel, timeseries.Panel)


@dataclass(frozen=True)
class Query:
    """One line of a panel. `legend`: Grafana's template over the labels, or a fixed word."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Limit(Query):
    """A limit to compare with: drawn dashed and red, not filled."""


@dataclass(frozen=True)
class Reference(Query):
    """A harmless value to compare with: drawn dashed and grey, not filled."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table. `words`: value to (text, color). `link`: URL with Grafana's template variables.

    `is_text`: a long text, which is wrapped. `width`: pixels; None shares the remaining width.
    """

    heading: str
    unit: str | None = None
    thresholds: Thresholds | None = None
    words: Mapping[str, tuple[str, str]] | None = None
    link: str | None = None
    is_text: bool = False
    width: int | None = None


# Color from this value on; the first entry is the base color.
Thresholds = Sequence[tuple[float | None, str]]
NO_THRESHOLDS: Final[Thresholds] = ((None, "green"),)
RED_FROM_ONE: Final[Thresholds] = ((None, "green"), (1, "red"))
YELLOW_FROM_ONE: Final[Thresholds] = ((None, "green"), (1, "yellow"))


def time_series(
    title: str,
    queries: Sequence[Query],
    *,
    description: str,
    unit: str,
    thresholds: Thresholds,
    fill: int,
    width: int,
    if_none: str = NOT_REPORTED,
    most: float | None = None,
    usual_most: float | None = None,
    is_stacked: bool = False,
    colors: Mapping[str, str] | None = None,
) -> timeseries.Panel:
    """Lines over time. `fill`: opacity of the area below, percent; use 0 for several unstacked lines.

    `most`: maximum of the axis, if the unit has one. `usual_most`: soft maximum of the axis. `is_stacked`: the lines are stacked,
    so that the uppermost is their sum; Limit and Reference are not stacked. `colors`: of series, by their names in the legend.
    """
    is_wide = width >= _LEGEND_BESIDE_FROM
    panel = (
        timeseries.Panel()
        .fill_opacity(fill)
        .line_width(1)
        .show_points(common_models.VisibilityMode.NEVER)
        .legend(_legend(["lastNotNull", "max"], beside=is_wide))
        .tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI).sort(common_models.SortOrder.DESCENDING))
        .min(0)
        .no_value(if_none)
    )
    if most is not None:
        panel.max(most)
    if usual_most is not None:
        panel.axis_soft_max(usual_most)
    if is_stacked:
        panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL).group("A"))
    if len(thresholds) > 1:
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.DASHED))
    for position, query in enumerate(queries):
        if isinstance(query, (Limit, Reference)):
            panel.override_by_query(_ref_id(position), _dashed("red" if isinstance(query, Limit) else "text"))
    for name, color in (colors or {}).items():
        panel.override_by_name(name, [_fixed(color)])
    return _described(panel, title, queries, description, unit, thresholds, width, HEIGHT if is_wide else HEIGHT + 1)


def one_number(
    title: str,
    query: Query,
    *,
    description: str,
    unit: str,
    thresholds: Thresholds,
    width: int,
    height: int = 4,
    if_none: str = UNKNOWN,
    link: str | None = None,
    has_sparkline: bool = True,
) -> stat.Panel:
    """A number colored by `thresholds`. Without sparkline it reads the last samples alone: for queries over all GPUs or pods."""
    graph = common_models.BigValueGraphMode.AREA if has_sparkline else common_models.BigValueGraphMode.NONE
    panel = _stat(link).graph_mode(graph).no_value(if_none).mappings([_unknown(if_none)])
    panel.color_mode(common_models.BigValueColorMode.BACKGROUND if len(thresholds) > 1 else common_models.BigValueColorMode.NONE)
    return _described(panel, title, [query], description, unit, thresholds, width, height, instant=not has_sparkline)


def count_of(title: str, *, complete: str, short: str, description: str, width: int, link: str | None = None) -> stat.Panel:
    """How many of how many: green with `complete`, red with `short`. Both carry the expected number as label `expected`."""
    panel = (
        _stat(link)
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .color_mode(common_models.BigValueColorMode.BACKGROUND)
        .text_mode(common_models.BigValueTextMode.VALUE_AND_NAME)
        .no_value(UNKNOWN)
        .mappings([_unknown(UNKNOWN)])
    )
    for ref_id, color in (("A", "green"), ("B", "red")):
        panel.override_by_query(ref_id, [_fixed(color)])
    queries = [Query(complete, "of {{expected}}"), Query(short, "of {{expected}}")]
    return _described(panel, title, queries, description, "short", NO_THRESHOLDS, width, 4, instant=True)


def in_words(
    title: str, query: Query, *, description: str, words: Mapping[int, tuple[str, str]], width: int, if_none: str
) -> stat.Panel:
    """The current state of each series as a text. `words`: value to (word, color)."""
    panel = (
        _stat(None)
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .color_mode(common_models.BigValueColorMode.BACKGROUND)
        .text_mode(common_models.BigValueTextMode.VALUE)
        .mappings([_words({str(value): word for value, word in words.items()}), _unknown(if_none)])
        .no_value(if_none)
    )
    return _described(panel, title, [query], description, "short", NO_THRESHOLDS, width, 4, instant=True)


def _stat(link: str | None) -> stat.Panel:
    panel = stat.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    if link:
        panel.links([dashboard.DashboardLink("open").url(link)])
    return panel


def gauges(
    title: str, query: Query, *, description: str, unit: str, thresholds: Thresholds, width: int, if_none: str, most: float
) -> gauge.Panel:
    panel = (
        gauge.Panel()
        .show_threshold_labels(True)
        .show_threshold_markers(True)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .min(0)
        .max(most)
        .no_value(if_none)
        .mappings([_unknown(if_none)])
    )
    return _described(panel, title, [query], description, unit, thresholds, width, HEIGHT, instant=True)


def bars(
    title: str,
    query: Query,
    *,
    description: str,
    unit: str,
    thresholds: Thresholds,
    width: int,
    if_none: str = NOT_REPORTED,
    most: float | None = None,
) -> bargauge.Panel:
    """Current values, longest bar first."""
    panel = (
        bargauge.Panel()
        .orientation(common_models.VizOrientation.HORIZONTAL)
        .display_mode(common_models.BarGaugeDisplayMode.BASIC)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .min(0)
        .no_value(if_none)
        .with_transformation(
            models.DataTransformerConfig(id_val="sortBy", options={"fields": {}, "sort": [{"field": "Value", "desc": True}]})
        )
    )
    if most is not None:
        panel.max(most)
    return _described(panel, title, [query], description, unit, thresholds, width, HEIGHT, instant=True)


def rows(
    title: str,
    queries: Sequence[Query],
    *,
    description: str,
    width: int,
    columns: Mapping[str, Column],
    sort_by: str,
    descending: bool = True,
    if_none: str,
    height: int = HEIGHT,
) -> table.Panel:
    """A table of current values. `columns`: label or value (`Value #A`) to its column, in this order; others are left out."""
    panel = table.Panel().with_transformation(models.DataTransformerConfig(id_val="merge", options={})).no_value(if_none)
    _give_columns(panel, columns, sort_by, descending)
    return _described(panel, title, queries, description, "short", NO_THRESHOLDS, width, height, instant=True)


def log_table(
    title: str,
    query: str,
    *,
    description: str,
    width: int,
    columns: Mapping[str, Column],
    sort_by: str,
    descending: bool = True,
    if_none: str,
) -> table.Panel:
    """Counts of log lines in the time range, one row per label set."""
    panel = table.Panel().no_value(if_none)
    _give_columns(panel, columns, sort_by, descending)
    _placed(panel, title, description, "short", width, HEIGHT + 2)
    return panel.with_target(loki.Dataquery().expr(query).query_type("instant").instant(True).ref_id("A"))


def _give_columns(panel: table.Panel, columns: Mapping[str, Column], sort_by: str, descending: bool) -> None:
    panel.with_transformation(
        models.DataTransformerConfig(
            id_val="organize",
            options={
                "includeByName": {name: True for name in columns},
                "indexByName": {name: index for index, name in enumerate(columns)},
                "renameByName": {name: column.heading for name, column in columns.items()},
            },
        )
    )
    panel.sort_by([common.TableSortByFieldState().display_name(sort_by).desc(descending)])
    # Without this override an empty cell would show the text of an empty panel.
    panel.override_by_regexp(".*", [models.DynamicConfigValue(id_val="noValue", value="")])
    for column in columns.values():
        properties = [models.DynamicConfigValue(id_val=name, value=value) for name, value in _properties(column)]
        if properties:
            panel.override_by_name(column.heading, properties)


def _properties(column: Column) -> Iterator[tuple[str, Any]]:
    if column.unit:
        yield "unit", column.unit
    if column.thresholds:
        steps = [{"value": value, "color": color} for value, color in column.thresholds]
        yield "thresholds", {"mode": "absolute", "steps": steps}
    if column.words:
        yield "mappings", [_words(column.words)]
    if column.thresholds or (column.words and not column.is_text):
        yield "custom.cellOptions", {"type": "color-background", "mode": "basic"}
    if column.is_text:
        yield "custom.cellOptions", {"type": "auto", "wrapText": True}
    if column.width:
        yield "custom.width", column.width
    if column.link:
        yield "links", [{"title": "open", "url": column.link}]


def states(
    title: str, query: Query, *, description: str, words: Mapping[int, tuple[str, str]], width: int, if_none: str
) -> statetimeline.Panel:
    """States over time. `words`: value to (word, color); the word is shown in the bar."""
    panel = (
        statetimeline.Panel()
        .show_value(common_models.VisibilityMode.AUTO)
        .merge_values(True)
        .mappings([_words({str(value): word for value, word in words.items()})])
        .no_value(if_none)
        .legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.LIST)
            .placement(common_models.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )
    height = HEIGHT if width >= _LEGEND_BESIDE_FROM else HEIGHT + 1
    return _described(panel, title, [query], description, "short", NO_THRESHOLDS, width, height)


def log_lines(title: str, query: str, *, description: str, width: int, if_none: str, newest_first: bool = True) -> logs.Panel:
    """Lines as they were logged."""
    order = common_models.LogsSortOrder.DESCENDING if newest_first else common_models.LogsSortOrder.ASCENDING
    panel = logs.Panel().show_time(True).wrap_log_message(True).sort_order(order).enable_log_details(True).no_value(if_none)
    _placed(panel, title, description, "short", width, HEIGHT)
    return panel.with_target(loki.Dataquery().expr(query).query_type("range").ref_id("A"))


def log_counts(title: str, query: Query, *, description: str, width: int, if_none: str) -> timeseries.Panel:
    """Events per interval as stacked bars, from Loki."""
    panel = (
        timeseries.Panel()
        .draw_style(common_models.GraphDrawStyle.BARS)
        .fill_opacity(80)
        .stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
        .interval(_EVENTS_EVERY)
        .min(0)
        .axis_soft_max(5)
        .legend(_legend(["sum"], beside=True))
        .no_value(if_none)
    )
    _placed(panel, title, description, "short", width, HEIGHT)
    return panel.with_target(loki.Dataquery().expr(query.expression).legend_format(query.legend).query_type("range").ref_id("A"))


def log_rates(title: str, query: Query, *, description: str, unit: str, width: int, if_none: str) -> timeseries.Panel:
    """Log lines per second, from Loki."""
    panel = (
        timeseries.Panel()
        .fill_opacity(0)
        .show_points(common_models.VisibilityMode.NEVER)
        .min(0)
        .interval(_EVENTS_EVERY)
        .legend(_legend(["lastNotNull", "max"], beside=True))
        .no_value(if_none)
    )
    _placed(panel, title, description, unit, width, HEIGHT)
    return panel.with_target(loki.Dataquery().expr(query.expression).legend_format(query.legend).query_type("range").ref_id("A"))


def _legend(calcs: list[str], *, beside: bool) -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .display_mode(common_models.LegendDisplayMode.TABLE)
        .placement(common_models.LegendPlacement.RIGHT if beside else common_models.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(calcs)
    )


def _words(texts: Mapping[str, tuple[str, str]]) -> models.ValueMap:
    return models.ValueMap(
        options={
            value: models.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(texts.items())
        }
    )


def _unknown(text: str) -> models.SpecialValueMap:
    return models.SpecialValueMap(
        options=models.DashboardSpecialValueMapOptions(
            match=models.SpecialValueMatch.NULL_AND_NAN, result=models.ValueMappingResult(text=text, color=UNKNOWN_COLOR)
        )
    )


def _placed(
    panel: logs.Panel | table.Panel | timeseries.Panel, title: str, description: str, unit: str, width: int, height: int
) -> None:
    panel.title(title).description(description).unit(unit).datasource(LOKI).span(width).height(height)


def _described(
    panel: _Panel,
    title: str,
    queries: Sequence[Query],
    description: str,
    unit: str,
    thresholds: Thresholds,
    width: int,
    height: int,
    *,
    instant: bool = False,
) -> _Panel:
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
        models.DynamicConfigValue(id_val="custom.stacking", value={"mode": "none"}),
        _fixed(color),
    ]


def _fixed(color: str) -> models.DynamicConfigValue:
    return models.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color})
