"""Dashboards of a stack's own, as files that Grafana exported: read, and checked for what only they can get wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import dashboards
from gpu_fleet.signals.rules import name_of
from gpu_fleet.stackfile.problems import Problem, why_unreadable

_UID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_OURS: Final = dashboards.uid("")  # with which the uids of our dashboards start
_VARIABLE: Final = re.compile(r"\$(?:\{(?P<braced>\w+)\}|(?P<bare>\w+))")
_GRAFANA: Final = ("-- Grafana --", "-- Mixed --", "-- Dashboard --", "grafana")
_OF_GRAFANA: Final = ("id", "version")  # Grafana numbers dashboards and their versions itself


def read_dashboards(files: Sequence[Path], root: Path) -> tuple[list[dict[str, Any]], list[Problem]]:
    """The models that Grafana can load, and the errors. `root`: the directory that messages name files from."""
    models: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for file in files:
        name = name_of(file, root)
        try:
            model = json.loads(file.read_text())
        except json.JSONDecodeError as error:
            problems.append(
                Problem(f"{name}, line {error.lineno}", f"is not JSON: {error.msg}", fix="export the dashboard again")
            )
            continue
        except (OSError, UnicodeDecodeError) as error:
            problems.append(Problem(name, why_unreadable(error)))
            continue
        found = list(_problems(name, model))
        problems += found
        if not found:
            models.append({key: value for key, value in model.items() if key not in _OF_GRAFANA})
    return models, problems


def _problems(name: str, model: Any) -> Iterator[Problem]:
    export = "export it in Grafana: Export, Export as code, Classic model, without `Share externally`"
    if not isinstance(model, Mapping) or not isinstance(model.get("panels"), list):
        yield Problem(name, "is not a dashboard", "Grafana's classic JSON model with `uid`, `title` and `panels`", export)
        return
    if "__inputs" in model:
        yield Problem(name, "was exported for sharing: its data sources are placeholders (`__inputs`)", fix=export)
        return
    uid = model.get("uid")
    if not isinstance(uid, str) or not _UID.fullmatch(uid):
        yield Problem(name, f"the uid is {uid!r}", "letters, digits, - and _, at most 40 characters", "set `uid` to a fixed one")
    elif uid.startswith(_OURS):
        yield Problem(name, f"the uid {uid} belongs to our dashboards", f"a uid that does not start with {_OURS}", "rename it")
    if not isinstance(model.get("title"), str) or not model["title"]:
        yield Problem(name, "has no title", fix="set `title`")
    variables = [one for one in model.get("templating", {}).get("list", ()) if isinstance(one, Mapping)]
    chosen = {str(one.get("name")) for one in variables if one.get("type") == "datasource"}
    seen: set[str] = set()
    for source in _sources({key: value for key, value in model.items() if key != "__requires"}):
        if source not in seen and source not in _GRAFANA:
            seen.add(source)
            yield from _source(name, source, chosen)


def _sources(node: Any) -> Iterator[str]:
    """Every data source that a panel, query, variable or annotation names."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key == "datasource" and isinstance(value, str):
                yield value
            elif key == "datasource" and isinstance(value, Mapping) and value.get("type") != "__expr__":
                yield str(value.get("uid", ""))
            else:
                yield from _sources(value)
    elif isinstance(node, list):
        for item in node:
            yield from _sources(item)


def _source(name: str, source: str, chosen: set[str]) -> Iterator[Problem]:
    found = _VARIABLE.fullmatch(source)
    if not found:
        what = f"names the data source {source!r}, which only one Grafana has" if source else "has a query without a data source"
        yield Problem(name, what, "a variable of the type `datasource`", "set it to ${datasource} or ${logs_datasource}")
    elif (variable := found["braced"] or found["bare"]) not in chosen:
        fix = f"add it under Settings, Variables: type `Data source`, name `{variable}`"
        yield Problem(name, f"there is no variable ${variable} of the type `datasource`", fix=fix)
