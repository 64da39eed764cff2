"""Our counter lists against the fields that DCGM knows: dcgm-exporter ends itself over one that it does not."""

from __future__ import annotations

import csv
import re

import pytest

from components.host.parts.dcgm_exporter import PROFILING, STANDARD
from components.versions import image
from tests.samples.conftest import SAMPLES

DCGM = SAMPLES / "dcgm-exporter"
SHIPPED = "".join(path.read_text() for path in sorted(DCGM.glob("counters/4.6.1-4.8.4-*.csv")))


def counters(text: str) -> list[list[str]]:
    rows = csv.reader(line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return [[cell.strip() for cell in row] for row in rows]


def known_fields() -> set[str]:
    """Fields of DCGM 4.6.0 with their old names, and what the exporter itself adds."""
    names = set((DCGM / "fields/dcgm-4.6.0-field-ids.csv").read_text().replace(",", "\n").split())
    renames = list(csv.DictReader((DCGM / "fields/dcgm-4.6.0-renames.csv").open(newline="")))
    return names | {row["old_name"] for row in renames} | set(re.findall(r"DCGM_EXP_[A-Z0-9_]+", SHIPPED))


def test_the_recordings_are_of_the_generation_that_is_pinned() -> None:
    assert image("dcgm-exporter").tag.startswith("4.6."), "check the counter lists against the fields of the new generation"


@pytest.mark.parametrize("row", counters(PROFILING), ids=lambda row: row[0])
def test_a_counter_is_a_field_of_the_pinned_dcgm(row: list[str]) -> None:
    assert len(row) == 3, "a comma in the help text ends the exporter"
    assert row[0] in known_fields()
    assert row[1] in ("gauge", "counter", "label")


def test_a_counter_has_the_type_the_exporter_ships_it_with() -> None:
    shipped = dict(re.findall(r"^(?:# )?(DCGM_\w+)\s*,\s*(\w+)\s*,", SHIPPED, re.MULTILINE))
    assert not [row for row in counters(PROFILING) if shipped.get(row[0], row[1]) != row[1]]


def test_only_profiling_needs_sys_admin() -> None:
    assert "DCGM_FI_PROF_" not in STANDARD
    assert len({row[0] for row in counters(PROFILING)}) == len(counters(PROFILING))
