"""A handful of power cuts and kills at fixed random instants. `make powercut` does hundreds, at others each time."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from lab.powercut.__main__ import plan
from lab.powercut.trial import KILLS, POWER, SCENARIOS
from tests.checkout import REPO

SEED = 20261122


def test_after_a_power_cut_or_a_kill_the_next_run_converges_and_nothing_is_lost_or_reported_too_early() -> None:
    command = [sys.executable, "-m", "lab.powercut", "--cuts", "3", "--kills", "2", "--seed", str(SEED)]
    try:
        done = subprocess.run(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3600)
    except subprocess.TimeoutExpired as late:
        pytest.fail(f"{late}; it had printed: {late.stdout!r}")
    assert done.returncode == 0, done.stdout
    assert len(re.findall("a file that was synced is in the copy, one that was not is not", done.stdout)) == 2
    assert "5 trials, 0 wrong" in done.stdout


def test_the_handful_has_every_scenario_both_file_systems_and_a_cut_a_killed_engine_and_a_lost_connection() -> None:
    jobs = plan(SCENARIOS, cuts=3, kills=2, seed=SEED)
    assert {job.scenario for job in jobs} == set(SCENARIOS)
    assert {job.kind for job in jobs} == {"ext4", "xfs"}
    assert [job.cause for job in jobs] == [POWER, POWER, POWER, "connection", "engine"]


def test_hundreds_of_trials_cut_and_kill_each_scenario_on_both_file_systems_in_every_way() -> None:
    jobs = plan(SCENARIOS, cuts=200, kills=200, seed=SEED)
    assert sum(job.cuts for job in jobs) == 200
    assert sum(job.cause != POWER for job in jobs) == 200
    for scenario in SCENARIOS:
        for kind in ("ext4", "xfs"):
            own = [job for job in jobs if (job.scenario, job.kind) == (scenario, kind)]
            assert sum(job.cuts for job in own) >= 20, f"few cuts of {scenario.name} on {kind}"
            causes = {job.cause for job in own} - {POWER}
            assert causes == ({"host program"} if scenario.name == "pull" else set(KILLS)), f"{scenario.name} on {kind}"
