"""Checks dashboards as Grafana gets them: the queries of panels, variables and annotations, and their uids."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpu_fleet.signals import logql, promql
from gpu_fleet.signals.catalogue import Catalogue
from gpu_fleet.stackfile.problems import Problem, nearest

Dashboard = Mapping[str, Any]

_INTERVALS: Final = re.compile(
    r"\$(?:__rate_interval|__interval|__range|__auto)\b|\$\{(?:__rate_interval|__interval|__range|__auto)(?::\w+)?\}"
)
_VARIABLE: Final = re.compile(r"\$(?:\{(?P<braced>\w+)(?:[.:][^}]*)?\}|(?P<bare>[a-zA-Z_]\w*))")
_OWN_VARIABLES: Final = re.compile(r"__\w+|timeFilter|timezone")  # Grafana's
_LABEL_VALUES: Final = re.compile(r"label_values\(\s*(?:(?P<query>.+?)\s*,\s*)?(?P<label>\w+)\s*\)", re.DOTALL)
_QUERY_RESULT: Final = re.compile(r"query_result\((?P<query>.+)\)", re.DOTALL)
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|`[^`]*`')


def check_dashboards(dashboards: Sequence[Dashboard], catalogue: Catalogue) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for board in dashboards:
        where = f'dashboard {board.get("uid")} ("{board.get("title")}")'
        if not board.get("uid"):
            yield Problem(where, "has no uid", fix="give it a fixed one: links and a renaming rely on it")
        elif (uid := str(board["uid"])) in seen:
            yield Problem(where, f"the dashboard {seen[uid]!r} has this uid too", fix="give one of them another uid")
        else:
            seen[uid] = str(board.get("title"))
        yield from _check_dashboard(where, board, catalogue)


def _check_dashboard(where: str, board: Dashboard, catalogue: Catalogue) -> Iterator[Problem]:
    variables = {str(variable.get("name")): variable for variable in board.get("templating", {}).get("list", ())}
    for panel in _panels(board):
        for target in panel.get("targets", ()):
            source = (target.get("datasource") or panel.get("datasource") or {}).get("type")
            place = f'{where}, panel "{panel.get("title")}", query {target.get("refId", "A")}'
            yield from _check_query(place, str(target.get("expr", "")), source, variables, catalogue)
    for name, variable in variables.items():
        yield from _check_variable(f"{where}, variable ${name}", variable, variables, catalogue)
    for annotation in board.get("annotations", {}).get("list", ()):
        expression = annotation.get("expr") or annotation.get("target", {}).get("expr")
        if expression:
            source = (annotation.get("datasource") or {}).get("type")
            place = f'{where}, annotation "{annotation.get("name")}"'
            yield from _check_query(place, expression, source, variables, catalogue)


def _panels(board: Dashboard) -> Iterator[Mapping[str, Any]]:
    for panel in board.get("panels", ()):
        yield panel
        yield from _panels(panel)  # a folded row holds its panels


def _check_query(
    where: str, expression: str, source: object, variables: Mapping[str, Any], catalogue: Catalogue
) -> Iterator[Problem]:
    language = {"prometheus": promql, "loki": logql}.get(str(source))
    if language is None:
        return
    if not expression:
        yield Problem(where, "has no query", fix="write it as `expr`, or remove the target")
        return
    for name in dict.fromkeys(found["braced"] or found["bare"] for found in _VARIABLE.finditer(expression)):
        if name not in variables and not _OWN_VARIABLES.fullmatch(name):
            meant = nearest(name, variables)
            known = f"known: {', '.join('$' + one for one in sorted(variables))}" if variables else "the dashboard has none"
            yield Problem(where, f"there is no variable ${name}", fix=f"did you mean ${meant}? ({known})" if meant else known)
    for finding in language.read(filled_in(expression, variables), catalogue).findings:
        yield Problem(where, f"{finding.what}\nquery:   {' '.join(expression.split())}", fix=finding.fix)


def _check_variable(
    where: str, variable: Mapping[str, Any], variables: Mapping[str, Any], catalogue: Catalogue
) -> Iterator[Problem]:
    query = variable.get("query")
    text = str(query.get("query", query.get("expr", "")) if isinstance(query, Mapping) else query or "")
    source = (variable.get("datasource") or {}).get("type")
    if source != "prometheus":
        return
    if found := _QUERY_RESULT.fullmatch(text.strip()):
        yield from _check_query(where, found["query"], source, variables, catalogue)
    elif (found := _LABEL_VALUES.fullmatch(text.strip())) and found["query"]:
        yield from _check_query(where, found["query"], source, variables, catalogue)
        labels = promql.labels_of_result(filled_in(found["query"], variables), catalogue)
        if labels is not None and found["label"] not in labels:
            meant = nearest(found["label"], labels)
            yield Problem(
                where,
                f"uses the label {found['label']!r}, which no series has there",
                fix=f"did you mean {meant!r}?" if meant else "",
            )


def filled_in(expression: str, variables: Mapping[str, Any]) -> str:
    """The query with values in place of variables: in strings they stay, times are 5m, others what they are at first, or 1."""
    expression = _INTERVALS.sub("5m", expression)
    text, position = "", 0
    for string in _STRINGS.finditer(expression):
        text += _filled(expression[position : string.start()], variables) + string[0]
        position = string.end()
    return text + _filled(expression[position:], variables)


def _filled(text: str, variables: Mapping[str, Any]) -> str:
    return _VARIABLE.sub(lambda found: _first_value(variables.get(found["braced"] or found["bare"], {})), text)


def _first_value(variable: Mapping[str, Any]) -> str:
    value = (variable.get("current") or {}).get("value")
    if not value and variable.get("options"):
        value = variable["options"][0].get("value")
    if not value and variable.get("type") in ("custom", "textbox", "constant", "interval"):
        value = str(variable.get("query") or "").split(",")[0]
    return str(value) if isinstance(value, str) and value and not value.startswith("$") else "1"
