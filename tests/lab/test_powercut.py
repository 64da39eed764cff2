"""A handful of power cuts and kills at fixed random instants. `make powercut` does hundreds, at others each time."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.checkout import REPO


def test_after_a_power_cut_or_a_kill_the_next_run_converges_and_nothing_is_lost_or_reported_too_early() -> None:
    command = [sys.executable, "-m", "lab.powercut", "--cuts", "6", "--kills", "4", "--seed", "20261122"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall("a file that was synced is in the copy, one that was not is not", done.stdout)) == 2
    assert "10 trials, 0 wrong" in done.stdout
