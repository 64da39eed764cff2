"""The metrics of known exporters with their labels, and the kinds of log lines with theirs: alerts/catalogue.

One file per exporter, one metric per line, `name {label, label}`; a line `* {...}` has the labels of all metrics of the file. The
labels that the scrape adds are in no file. Recorded metrics come from the rules (signals.rules.with_records).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import alerts
from alerts import texts
from gpu_fleet.host.dcgm.fields import known_fields

DIRECTORY: Final = Path(alerts.__file__).parent / "catalogue"
LOGS: Final = "logs"

Labels = frozenset[str]

# On every series: set by discover.alloy on hosts, by the scrape in clusters.
TARGET_LABELS: Final[Labels] = frozenset({"datacenter", "cluster", "instance", "job", "exporter_mode"})
# Beside them where a target is a pod. The exporter's own labels of these names become exported_... unless they are honoured.
POD_LABELS: Final[Labels] = frozenset({"namespace", "pod", "container", "node", "service", "endpoint"})

_OF_EVERY_SCRAPE: Final = (
    "up",
    "scrape_duration_seconds",
    "scrape_samples_scraped",
    "scrape_samples_post_metric_relabeling",
    "scrape_series_added",
)
_ALERTS: Final = ("ALERTS", "ALERTS_FOR_STATE")

_LINE: Final = re.compile(r"(?P<name>\*|[a-zA-Z_:][\w:]*)(?:\s*\{(?P<labels>[\w\s,]*)\})?")
_PLAIN_NAMES: Final = re.compile(r"[\w:]+(\|[\w:]+)*")


class CatalogueError(ValueError):
    """A file of the catalogue cannot be read; the message names the line."""


@dataclass(frozen=True)
class Catalogue:
    """`metrics`, `logs`: name (job) to labels; None: any label is possible."""

    metrics: Mapping[str, Labels | None]
    logs: Mapping[str, Labels]
    _matches: dict[str, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)

    def matching(self, pattern: str) -> tuple[str, ...]:
        """Metrics whose whole name matches a regular expression. Raises re.error for one that Python cannot read."""
        if pattern not in self._matches:
            expression = re.compile(pattern)
            self._matches[pattern] = tuple(name for name in self.metrics if expression.fullmatch(name))
        return self._matches[pattern]

    def with_metrics(self, more: Mapping[str, Labels | None]) -> Catalogue:
        return Catalogue({**self.metrics, **more}, self.logs)


def read(directory: Path = DIRECTORY, more: Path | None = None) -> Catalogue:
    """The catalogue without what our own rules record. `more`: a file of the stack's own. Raises CatalogueError."""
    metrics: dict[str, Labels | None] = dict.fromkeys(_ALERTS)
    metrics |= dict.fromkeys(_OF_EVERY_SCRAPE, TARGET_LABELS | POD_LABELS)
    logs: dict[str, Labels] = {}
    for file in (*sorted(directory.glob("*.txt")), *((more,) if more else ())):
        entries = dict(_entries(file))
        of_all = entries.pop("*", frozenset())
        if file.stem == LOGS:
            logs = {job: labels | {"job"} for job, labels in entries.items()}
            continue
        if file.stem == "dcgm-exporter":
            entries = dict.fromkeys(known_fields(), frozenset()) | entries
        if file.stem == "amd-device-metrics-exporter":  # the prefix of its documentation
            entries |= {f"amd_{name}": labels for name, labels in entries.items()}
        for name, labels in entries.items():
            metrics[name] = (metrics.get(name) or frozenset()) | labels | of_all | TARGET_LABELS | POD_LABELS
    return Catalogue(metrics, logs)


def _entries(file: Path) -> Iterator[tuple[str, Labels]]:
    for number, line in enumerate(texts.read(file).splitlines(), start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        found = _LINE.fullmatch(text)
        if found is None:
            place = f"alerts/catalogue/{file.name}" if file.parent == DIRECTORY else f"{file.parent.name}/{file.name}"
            raise CatalogueError(f"{place}, line {number}: {text!r}")
        yield found["name"], frozenset(re.findall(r"\w+", found["labels"] or ""))


def plain_names(pattern: str) -> tuple[str, ...] | None:
    """The names that a pattern like `a|b` lists; None for any other pattern."""
    return tuple(pattern.split("|")) if _PLAIN_NAMES.fullmatch(pattern) else None


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name closest to a word."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return found[0] if found else None
