"""A few tapes through the real chain in every mode: that the scorecard measures, and that the common cases are right.

`make scorecard` replays all of them, which takes an hour.
"""

from __future__ import annotations

import pytest

from lab.scorecard import tape
from lab.scorecard.replay import Result, replay

TAPES = "xid-79,xid-31,xid-154-none,amd-quiet"
LONGEST_S = 150  # a warning waits for others of its group, and a machine that runs all tests is slow


@pytest.fixture(scope="module")
def results() -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in replay(tape.selected(tape.read(), TAPES, []), longest_s=LONGEST_S):
        found.setdefault(result.tape.name, []).append(result)
    return found


def test_a_gpu_off_the_bus_is_one_page_with_its_action_in_every_mode(results):
    assert {result.mode for result in results["xid-79"]} == {"dcgm", "smi", "textfile"}
    for result in results["xid-79"]:
        score = result.score
        assert score.seconds is not None, result.mode
        assert (score.pages, score.is_severity_right, score.is_action_right) == (1, True, True), result.mode


def test_a_program_s_fault_is_a_warning_in_every_mode(results):
    for result in results["xid-31"]:
        assert (result.score.pages, result.score.warnings, result.score.is_action_right) == (0, 1, True), result.mode


def test_nothing_else_is_notified_about_healthy_hosts_in_every_mode(results):
    assert {result.mode for result in results["amd-quiet"]} == {"amd", "amd-textfile"}
    for result in [*results["amd-quiet"], *results["xid-79"], *results["xid-31"]]:
        assert result.score.too_early == 0, (result.tape.name, result.mode, result.score.names)
    for result in results["amd-quiet"]:
        assert result.score.is_right, result.score.names
