"""A handful of power cuts and kills at fixed random instants. `make powercut` does hundreds, at others each time."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

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
