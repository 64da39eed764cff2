"""Errors in rules and dashboards, found before anything is changed: queries that do not parse, metrics and labels that do
not exist, alerts without what the on-call engineer needs. Pure.

Not done here: whether a query returns data (the panels' tests query the lab's Mimir and Loki).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import alerts
from alerts import generate, inventory
from signals import catalogue
from signals.panels import check_dashboards
from signals.rules import RuleFile, check_rules, read_rules, with_records
from stackfile.problems import ConfigErrors, Problem

ROOT: Final = Path(alerts.__file__).parents[1]
_LANGUAGES: Final[Mapping[alerts.Backend, str]] = {"mimir": "promql", "loki": "logql", "grafana": "promql"}
# Written per stack from its hosts, not by a rule file.
_HOST: Final = frozenset({"datacenter", "cluster", "instance"})
_INVENTORY: Final = {inventory.HOST: _HOST, inventory.GPUS: _HOST, inventory.MAINTENANCE: _HOST | {"reason"}}


class SignalErrors(ConfigErrors):
    """All errors in rules and dashboards at once."""

    SUBJECT = "rules and dashboards"


def rule_files() -> list[RuleFile]:
    """Every rule file of the checkout."""
    return [
        RuleFile(path, ROOT, backend, language) for backend, language in _LANGUAGES.items() for path in alerts.rule_files(backend)
    ]


def check_signals(files: Sequence[RuleFile], dashboards: Sequence[Mapping[str, Any]]) -> None:
    """Checks rule files and the JSON models of dashboards. Raises SignalErrors."""
    rules, problems = read_rules(files)
    try:
        known = with_records(catalogue.read(), rules, _INVENTORY)
    except catalogue.CatalogueError as error:
        raise SignalErrors(
            [*problems, Problem(str(error), "is no line of the catalogue", "a name, and its labels: my_metric {label, label}")]
        ) from None
    problems += check_rules(rules, known)
    problems += check_dashboards(dashboards, known)
    if not problems:  # a malformed file cannot be compared
        problems += [
            Problem(
                path.relative_to(ROOT).as_posix(),
                f"does not match alerts/{source}",
                fix="run python -m alerts.generate, and review the diff",
            )
            for path, source in generate.outdated().items()
        ]
    if problems:
        raise SignalErrors(problems)
