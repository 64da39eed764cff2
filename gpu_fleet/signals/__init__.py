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
from alerts.customization import NO_CUSTOMIZATION, Customization
from gpu_fleet.signals import catalogue
from gpu_fleet.signals.overrides import check_overrides
from gpu_fleet.signals.panels import check_dashboards
from gpu_fleet.signals.rules import RuleFile, check_rules, read_rules, with_records
from gpu_fleet.stackfile.problems import ConfigErrors, Problem

ROOT: Final = Path(alerts.__file__).parents[1]
_LANGUAGES: Final[Mapping[alerts.Backend, str]] = {"mimir": "promql", "loki": "logql", "grafana": "promql"}
_CUSTOM: Final[Mapping[alerts.Backend, str]] = {"mimir": "rules", "loki": "loki"}  # directories of a stack's own rules
# Written per stack from its hosts, not by a rule file.
_HOST: Final = frozenset({"datacenter", "cluster", "instance"})
_INVENTORY: Final = {
    inventory.HOST: _HOST,
    inventory.GPUS: _HOST,
    inventory.MAINTENANCE: _HOST | {"reason"},
    inventory.COUNTERS: frozenset({"datacenter", "cluster", "exporter_mode", "series"}),
}


class SignalErrors(ConfigErrors):
    """All errors in rules and dashboards at once."""

    SUBJECT = "rules and dashboards"


def rule_files() -> list[RuleFile]:
    """Every rule file of the checkout."""
    return [
        RuleFile(path, ROOT, backend, language) for backend, language in _LANGUAGES.items() for path in alerts.rule_files(backend)
    ]


def custom_rule_files(custom: Customization, root: Path) -> list[RuleFile]:
    """Those of a stack. `root`: the directory of Pulumi.yaml."""
    return [
        RuleFile(path, root, backend, _LANGUAGES[backend])
        for backend, directory in _CUSTOM.items()
        for path in custom.files.get(directory, ())
    ]


def check_signals(
    files: Sequence[RuleFile],
    dashboards: Sequence[Mapping[str, Any]],
    custom: Customization = NO_CUSTOMIZATION,
    *,
    metrics: Path | None = None,
    found: Sequence[Problem] = (),
) -> None:
    """Checks rule files, the JSON models of dashboards, and overrides. Raises SignalErrors.

    `metrics`: a file of the catalogue beside ours. `found`: problems to report with these.
    """
    rules, problems = read_rules(files)
    problems += found
    try:
        known = with_records(catalogue.read(more=metrics), rules, _INVENTORY)
    except catalogue.CatalogueError as error:
        raise SignalErrors(
            [*problems, Problem(str(error), "is no line of the catalogue", "a name, and its labels: my_metric {label, label}")]
        ) from None
    problems += check_rules(rules, known)
    problems += check_dashboards(dashboards, known)
    problems += check_overrides(custom, known)
    if not problems:  # a malformed file cannot be compared
        problems += [
            Problem(
                path.relative_to(ROOT).as_posix(),
                f"does not match alerts/{source}",
                fix="run .venv/bin/python -m alerts.generate, and review the diff",
            )
            for path, source in generate.outdated().items()
        ]
    if problems:
        raise SignalErrors(problems)
