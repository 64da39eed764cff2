"""Samples of the past on their way to Mimir, read by the receiver that Alloy is tested with."""

from __future__ import annotations

import pytest

from lab.showcase.remote_write import STALE, ended, push
from tests.host.parts.receiver import Receiver

UP = (("__name__", "up"), ("instance", "gpu-node-001"))


def test_a_pushed_sample_arrives_with_its_labels_and_time() -> None:
    receiver = Receiver()
    try:
        push(f"{receiver.url}/api/v1/push", {UP: [(1_780_000_000, 0.25), (1_780_000_030, 0.5)], (("__name__", "none"),): []})
    finally:
        receiver.close()
    assert receiver.series == {UP: 0.5}
    assert receiver.times == [1_780_000_000, 1_780_000_030]


def test_a_rejection_is_reported_in_the_server_s_words() -> None:
    receiver = Receiver(is_away=True)
    try:
        with pytest.raises(OSError, match="/api/v1/push"):
            push(f"{receiver.url}/api/v1/push", {UP: [(1_780_000_000, 1.0)]})
    finally:
        receiver.close()


@pytest.mark.parametrize(
    ("samples", "marked"),
    [
        ([(0, 1.0), (30, 1.0), (60, 1.0)], [(0, 1.0), (30, 1.0), (60, 1.0)]),
        ([(0, 1.0)], [(0, 1.0), (30, STALE)]),
        ([(0, 1.0), (60, 1.0)], [(0, 1.0), (30, STALE), (60, 1.0)]),
        ([(30, 1.0), (60, 1.0)], [(30, 1.0), (60, 1.0)]),
        ([], []),
    ],
    ids=["to the end", "ends before", "gap", "begins late", "nothing"],
)
def test_where_a_series_ends_a_mark_says_so(samples, marked) -> None:
    assert list(ended(samples, step_s=30, until_s=60)) == marked
