from __future__ import annotations

import pytest

from lab.gpu.load import PATTERNS, PERIODS_S, activity, busy_seconds, noise, pattern


@pytest.mark.parametrize("name", PATTERNS)
def test_activity_is_a_share_and_the_same_for_the_same_moment(name: str) -> None:
    for at_s in range(0, 2000, 7):
        value = activity(name, seed=5, gpu=2, at_s=float(at_s))
        assert 0.0 <= value <= 1.0
        assert value == activity(name, seed=5, gpu=2, at_s=float(at_s))


@pytest.mark.parametrize("name", PATTERNS)
def test_a_counter_never_runs_backwards_and_keeps_the_pace_of_its_pattern(name: str) -> None:
    seen = [busy_seconds(name, float(at_s)) for at_s in range(0, 4000, 11)]
    assert seen == sorted(seen)
    period = PERIODS_S[name]
    mean = sum(pattern(name, step * period / 1000) for step in range(1000)) / 1000
    assert busy_seconds(name, 100 * period) == pytest.approx(mean * 100 * period, rel=0.02, abs=1e-9)


def test_gpus_of_one_job_differ_a_little_and_dip_together_at_a_checkpoint() -> None:
    busy = [activity("training", seed=1, gpu=gpu, at_s=60.0) for gpu in range(6)]
    dip = [activity("training", seed=1, gpu=gpu, at_s=230.0) for gpu in range(6)]
    assert len(set(busy)) == 6
    assert max(dip) < 0.35 < 0.8 < min(busy)


def test_noise_covers_its_range() -> None:
    values = [noise(7, gpu, tick) for gpu in range(8) for tick in range(50)]
    assert min(values) < 0.05
    assert max(values) > 0.95
