"""Counter files: the CSV that says which fields dcgm-exporter serves. Errors end the exporter, with its messages."""

from __future__ import annotations

import csv
from collections.abc import Iterable

EXPORTER_FIELDS = (
    "DCGM_EXP_XID_ERRORS_COUNT",
    "DCGM_EXP_CLOCK_EVENTS_COUNT",
    "DCGM_EXP_GPU_HEALTH_STATUS",
    "DCGM_EXP_P2P_STATUS",
)
EXPORTER_FIELDS_SINCE_4_8_3 = ("DCGM_EXP_XID_ERRORS_TOTAL", "DCGM_EXP_CLOCK_EVENTS_TOTAL")
_TYPES = ("gauge", "counter", "histogram", "summary", "label")


class BadCounters(ValueError):
    """The exporter's log message before it exits."""


class Counter:
    def __init__(self, name: str, kind: str, help_: str) -> None:
        self.name = name
        self.kind = kind
        self.help = help_


def parse(lines: Iterable[str], fields: Iterable[str], generation: tuple[int, ...]) -> list[Counter]:
    known = {*fields, *EXPORTER_FIELDS, *(EXPORTER_FIELDS_SINCE_4_8_3 if generation >= (4, 8, 3) else ())}
    counters = []
    for number, record in enumerate(csv.reader(line for line in lines if line.strip() and not line.startswith("#"))):
        cells = [cell.strip(" ") for cell in record]
        if len(cells) != 3:
            raise BadCounters(
                f"malformed CSV record; err: failed to parse line {number} (`[{' '.join(cells)}]`), expected 3 fields"
            )
        name, kind, help_ = cells
        if name not in known:
            raise BadCounters(f"could not find DCGM field; err: unknown ExporterCounter field '{name}'")
        if kind not in _TYPES:
            raise BadCounters(f"could not find Prometheus metric type '{kind}'")
        counters.append(Counter(name, kind, help_))
    return counters
