"""The differences between two versions of a dashboard, in words. Pure.

Panels are matched by title, and the remaining ones by id: those were renamed. What Grafana itself adds when a dashboard is saved
(its version, defaults that the code leaves out) is not a difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpu_fleet.safetext.differences import around, diff

Model = Mapping[str, Any]

# Fields that Grafana adds to a model or numbers itself.
_OF_GRAFANA: Final = frozenset({"id", "version", "iteration", "pluginVersion", "editorMode", "exemplar", "definition"})
# Defaults that Grafana 12 adds to a panel on saving. Source: grafana/grafana, defaults of the panel types
# (public/app/plugins/panel/*/panelcfg.cue) and packages/grafana-schema, read 2026-11-21.
_DEFAULTS: Final[Mapping[str, Any]] = {
    "type": "panel",
    "transparent": False,
    "hideTimeOverride": False,
    "transformations": [],
    "links": [],
    "mappings": [],
    "overrides": [],
    "decimals": None,
    "color": {"mode": "palette-classic"},
    "axisBorderShow": False,
    "axisCenteredZero": False,
    "axisColorMode": "text",
    "axisLabel": "",
    "axisPlacement": "auto",
    "barAlignment": 0,
    "barWidthFactor": 0.6,
    "drawStyle": "line",
    "fillOpacity": 0,
    "gradientMode": "none",
    "hideFrom": {"legend": False, "tooltip": False, "viz": False},
    "insertNulls": False,
    "lineInterpolation": "linear",
    "lineWidth": 1,
    "pointSize": 5,
    "scaleDistribution": {"type": "linear"},
    "showPoints": "auto",
    "spanNulls": False,
    "stacking": {"group": "A", "mode": "none"},
    "thresholdsStyle": {"mode": "off"},
    "hide": False,
    "builtIn": 1,
    "fiscalYearStartMonth": 0,
    "preload": False,
    "regex": "",
    "skipUrlSync": False,
    "options": [],
    "hideLegend": False,
    "hideMode": "single",
    "percentChangeColorMode": "standard",
    "showPercentChange": False,
    "wideLayout": True,
    "justifyMode": "auto",
    "orientation": "auto",
    "cellHeight": "sm",
    "showHeader": True,
    "minVizHeight": 16,
    "minVizWidth": 8,
    "maxVizHeight": 300,
    "namePlacement": "auto",
    "sizing": "auto",
    "valueMode": "color",
    "showUnfilled": True,
    "dedupStrategy": "none",
    "prettifyLogMessage": False,
    "showCommonLabels": False,
    "showLabels": False,
    "perPage": 20,
    "alignValue": "left",
    "rowHeight": 0.9,
    "fields": "",
    "values": False,
    "graphMode": "area",
    "maxHeight": 600,
}
_WORDS: Final = {
    "fieldConfig.defaults.unit": "unit",
    "fieldConfig.defaults.min": "minimum of the axis",
    "fieldConfig.defaults.max": "maximum of the axis",
    "fieldConfig.defaults.noValue": "text without data",
    "fieldConfig.defaults.thresholds.steps": "thresholds",
    "fieldConfig.defaults.custom.axisSoftMax": "soft maximum of the axis",
    "fieldConfig.defaults.custom.fillOpacity": "fill opacity",
    "fieldConfig.overrides": "overrides",
    "transformations": "transformations",
    "options.legend.placement": "legend placement",
    "options.sortBy": "sort order of the rows",
}
_LONGEST: Final = 120
INDENT: Final = "    "  # of what is shown below a change


@dataclass(frozen=True)
class Change:
    """`what`: the panel or variable, or "" for the dashboard itself. `says`: a description without a full stop."""

    what: str
    says: str

    def __str__(self) -> str:
        return f"{self.what}: {self.says}" if self.what else self.says


def changes(old: Model, new: Model) -> list[Change]:
    """The changes that a user or an editor of the dashboard would notice."""
    return [*_of_board(old, new), *_of_variables(old, new), *_of_panels(old, new)]


def _of_board(old: Model, new: Model) -> Iterator[Change]:
    for key in ("title", "description", "tags", "time", "refresh", "timezone", "links"):
        if key in old and not _alike(old.get(key), new.get(key)):
            yield Change("", _arrow(key, old.get(key), new.get(key)))
    marks = {one["name"]: one for one in old.get("annotations", {}).get("list", ())}
    for one in new.get("annotations", {}).get("list", ()):
        if one["name"] not in marks and not one.get("builtIn"):
            yield Change(f'annotation "{one["name"]}"', "added")
    now = {one["name"]: one for one in new.get("annotations", {}).get("list", ())}
    for name, one in marks.items():
        if name not in now:
            yield Change(f'annotation "{name}"', "removed")
        else:
            yield from _fields(f'annotation "{name}"', one, now[name])


def _of_variables(old: Model, new: Model) -> Iterator[Change]:
    before, after = ({one["name"]: one for one in model.get("templating", {}).get("list", ())} for model in (old, new))
    for name in [*before, *(name for name in after if name not in before)]:
        what = f"variable ${name}"
        if name not in after:
            yield Change(what, "removed")
        elif name not in before:
            yield Change(what, f"added ({_shown(after[name].get('query'))})")
        else:
            chosen = {"current", "options"}  # the selection of the person who saved it
            yield from _fields(what, _plain(_without(before[name], chosen)), _plain(_without(after[name], chosen)))


def _plain(variable: Model) -> Model:
    """Grafana's editor replaces the text of a query by an object."""
    query = variable.get("query")
    return {**variable, "query": query["query"]} if isinstance(query, Mapping) and "query" in query else variable


def _without(model: Model, keys: set[str]) -> Model:
    return {key: value for key, value in model.items() if key not in keys}


def _of_panels(old: Model, new: Model) -> Iterator[Change]:
    before, after = _panels(old), _panels(new)
    pairs = {title: title for title in before if title in after}
    by_number = {panel.get("id"): title for title, panel in after.items() if title not in pairs}
    for title, panel in before.items():
        if title not in pairs and panel.get("id") in by_number and after[by_number[panel["id"]]]["type"] == panel["type"]:
            pairs[title] = by_number.pop(panel["id"])
    pairs |= _renamed_in_code(
        {title: panel for title, panel in before.items() if title not in pairs},
        {title: panel for title, panel in after.items() if title not in pairs.values()},
    )
    for title, panel in before.items():
        if title not in pairs:
            yield Change(_name(panel), "removed")
    for title, panel in after.items():
        if title not in pairs.values():
            queries = "".join(f"; query {target['refId']}: {target.get('expr', '')}" for target in panel.get("targets") or ())
            yield Change(_name(panel), f"added{queries}")
    for title, other in pairs.items():
        if title != other:
            yield Change(_name(before[title]), f'renamed to "{other}"')
        yield from _of_panel(before[title], after[other])


def _renamed_in_code(gone: Mapping[str, Model], come: Mapping[str, Model]) -> dict[str, str]:
    """Old title -> new one of panels that show the same: a panel's id is made of its title (layout.py)."""

    def shows(panel: Model) -> str:
        what = panel.get("targets") or (panel.get("options") or {}).get("content")
        return json.dumps([panel["type"], what], sort_keys=True) if what else ""

    now = {shows(panel): title for title, panel in come.items()}
    return {title: now.pop(key) for title, panel in gone.items() if (key := shows(panel)) and key in now}


def _of_panel(old: Model, new: Model) -> Iterator[Change]:
    what = _name(old)
    if old["type"] == "row":
        if bool(old.get("collapsed")) != bool(new.get("collapsed")):
            yield Change(what, "collapsed" if new.get("collapsed") else "expanded")
        return
    if old["type"] != new["type"]:
        yield Change(what, f"panel type {old['type']} → {new['type']}")
    place, other = old.get("gridPos") or {}, new.get("gridPos") or {}
    if (place.get("w"), place.get("h")) != (other.get("w"), other.get("h")):
        yield Change(what, f"size {place.get('w')} by {place.get('h')} → {other.get('w')} by {other.get('h')}")
    yield from _of_queries(what, old, new)
    left = {"type", "gridPos", "targets", "title", "panels"}
    yield from _fields(what, _without(old, left), _without(new, left))


def _of_queries(what: str, old: Model, new: Model) -> Iterator[Change]:
    before, after = ({one["refId"]: one for one in panel.get("targets") or ()} for panel in (old, new))
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in after:
            yield Change(what, f"query {name} removed: {before[name].get('expr')}")
        elif name not in before:
            yield Change(what, f"query {name} added: {after[name].get('expr')}")
        else:
            if before[name].get("expr") != after[name].get("expr"):
                yield Change(what, _compared(f"query {name}", before[name].get("expr", ""), after[name].get("expr", "")))
            yield from _fields(f"{what}, query {name}", _without(before[name], {"expr"}), _without(after[name], {"expr"}))


def _fields(what: str, old: Model, new: Model, path: str = "") -> Iterator[Change]:
    for key in [*old, *(key for key in new if key not in old)]:
        inner = f"{path}.{key}" if path else key
        before, after = old.get(key), new.get(key)
        if key in _OF_GRAFANA or _alike(before, after) or _is_default(key, before, after):
            continue
        if inner == "fieldConfig.overrides" and (found := list(_of_overrides(what, before or (), after or ()))):
            yield from found
        elif (isinstance(before, Mapping) and isinstance(after, Mapping)) or inner in ("fieldConfig", "options"):
            yield from _fields(what, before or {}, after or {}, inner)
        else:
            yield Change(what, _arrow(_WORDS.get(inner, inner), before, after))


def _of_overrides(what: str, old: Sequence[Model], new: Sequence[Model]) -> Iterator[Change]:
    """By the column or query that an override is of."""
    before, after = (
        {(str(one["matcher"].get("options")), each["id"]): each.get("value") for one in side for each in one["properties"]}
        for side in (old, new)
    )
    for name in [*before, *(name for name in after if name not in before)]:
        if not _alike(before.get(name), after.get(name)):
            yield Change(what, _arrow(f'"{name[0]}" {name[1]}', *map(_steps, (before.get(name), after.get(name)))))


def _steps(value: Any) -> Any:
    """Of thresholds their steps: their mode is always the same."""
    return value["steps"] if isinstance(value, Mapping) and "steps" in value and value.get("mode") == "absolute" else value


def _is_default(key: str, before: Any, after: Any) -> bool:
    """Whether the difference is a default that Grafana added or left out."""
    if before is not None and after is not None:
        return False
    present = before if before is not None else after
    if isinstance(present, Mapping) and key not in _DEFAULTS:
        return all(_is_default(inner, None, value) for inner, value in present.items())
    return key in _DEFAULTS and _alike(_DEFAULTS[key], present)


def _alike(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _panels(model: Model) -> dict[str, Any]:
    """By title, including panels of collapsed rows; a second panel with the same title gets its id appended."""
    found: dict[str, Any] = {}
    for panel in model.get("panels", ()):
        for one in (panel, *(panel.get("panels") or ())):
            title = one.get("title") or f"panel {one.get('id')}"
            found[title if title not in found else f"{title} ({one.get('id')})"] = one
    return found


def _name(panel: Model) -> str:
    return f'{"row" if panel["type"] == "row" else "panel"} "{panel.get("title") or panel.get("id")}"'


def _arrow(what: str, before: Any, after: Any) -> str:
    if isinstance(before, str) and isinstance(after, str) and ("\n" in before or "\n" in after):
        return _compared(what, before, after)
    was, now = around(_text(before), _text(after), _LONGEST)
    return f"{what} {was} → {now}"


def _compared(what: str, before: str, after: str) -> str:
    return "\n".join(
        [f"{what} changed", *(f"{INDENT}{line[:1]} {line[1:]}" for line in diff(before, after) if not line.startswith("@@"))]
    )


def _shown(value: Any) -> str:
    return around(_text(value), "", _LONGEST)[0]


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list) and value and all(isinstance(one, Mapping) and one.keys() == {"color", "value"} for one in value):
        return ", ".join(f"{one['color']}" + (f" from {one['value']}" if one["value"] is not None else "") for one in value)
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, sort_keys=True)
