"""Our table of fields and our counter lists against NVIDIA's own."""

from __future__ import annotations

import csv
import re

import pytest

from gpu_fleet.host.dcgm.fields import known_fields
from gpu_fleet.stackfile.counters import Counters, counters
from tests.samples.conftest import SAMPLES

DCGM = SAMPLES / "dcgm-exporter"
SHIPPED = "".join(path.read_text() for path in sorted(DCGM.glob("counters/4.6.1-4.8.4-*.csv")))
MARKS = re.compile(r"_(FIRST|LAST|MAX)_\w*(FIELD_ID|FIELDS)$|INTERNAL_FIELDS|UNKNOWN$")


def test_the_table_has_every_field_of_dcgm_4_6_under_both_names() -> None:
    new = {row["name"]: int(row["id"]) for row in csv.DictReader((DCGM / "fields/dcgm-4.6.0-field-ids.csv").open(newline=""))}
    old = {row["old_name"]: int(row["id"]) for row in csv.DictReader((DCGM / "fields/dcgm-4.6.0-renames.csv").open(newline=""))}
    ours = {name: number for name, number in known_fields().items() if number > 0}
    assert ours == {name: number for name, number in (new | old).items() if not MARKS.search(name)}


def test_a_counter_has_the_type_the_exporter_ships_it_with() -> None:
    shipped = dict(re.findall(r"^(?:# )?(DCGM_\w+)\s*,\s*(\w+)\s*,", SHIPPED, re.MULTILINE))
    assert not [row for row in counters("profiling").rows if shipped.get(row.name, row.kind) != row.kind]


@pytest.mark.parametrize("path", sorted(DCGM.glob("counters/4.*-default-counters.csv")), ids=lambda path: path.stem)
def test_nvidia_s_own_lists_have_no_error(path) -> None:  # type: ignore[no-untyped-def]
    assert not list(Counters(path.read_text()).find_errors())
    commented_out = re.findall(r"^# (DCGM_\w+) *,", path.read_text(), re.MULTILINE)
    assert commented_out and set(commented_out) <= set(known_fields())
