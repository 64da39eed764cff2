"""The tapes, and the page that is made from them."""

from __future__ import annotations

import re

import pytest

from lab.gpu import setup
from lab.scorecard import fuzz, table, tape
from lab.scorecard.exporters import GpuExporter

TAPES = tape.read()


def test_every_mode_has_its_own_tapes_and_a_third_of_all_is_generated():
    every = table.every_tape()
    for mode in tape.MODES:
        assert sum(mode in each.modes for each in every) >= 10, mode
    assert sum(each.kind == "fuzz" for each in every) == len(every) // 3


def test_a_generated_tape_expects_what_its_written_one_expects_about_the_gpu_that_its_lines_name():
    written = {each.name: each for each in TAPES}
    generated = fuzz.generated(TAPES)
    assert generated == fuzz.generated(TAPES), "the seed is fixed"
    for each in generated:
        origin = written[each.name.removeprefix("fuzz-").rpartition("-")[0]]
        before, after = origin.expected, each.expected
        assert (after.severity, after.actions, after.count) == (before.severity, before.actions, before.count)
        if isinstance(after.gpu, int):
            named = "".join(str(step["kernel"]) for step in each.steps).lower()
            assert f"{{pci{after.gpu}}}" in named, each.name


def test_the_page_is_made_from_the_results():
    assert table.PAGE.read_text() == table.page(), "write it again: python -m lab.scorecard.table"


VALUES = [
    (each, mode, pattern)
    for each in TAPES
    for step in each.steps
    for mode, values in step.get("value", {}).items()
    for pattern in values
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[tuple[str, str], str]:
    """What the exporters of these tapes' machines serve."""
    found = {}
    for each, mode, _ in VALUES:
        if (mode, each.scenario) not in found:
            state = tmp_path_factory.mktemp(mode) / "machine"
            setup.init(state=state, scenario=each.scenario, hostname="a")
            found[mode, each.scenario] = GpuExporter(mode, state).body()
    return found


@pytest.mark.parametrize(("each", "mode", "pattern"), VALUES, ids=lambda value: getattr(value, "name", None))
def test_a_tape_changes_series_that_the_exporter_has(pages, each, mode, pattern):
    if "XID" not in pattern:  # no series before the first event
        filled = pattern.replace("{uuid1}", "[0-9a-f-]{36}")  # of the host
        assert re.search(rf"^{filled}", pages[mode, each.scenario], re.MULTILINE)
