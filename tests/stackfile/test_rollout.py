"""Which hosts go in which wave."""

from __future__ import annotations

import pytest

from gpu_fleet.stackfile.rollout import Rollout

HOSTS = [f"n{number}" for number in range(1, 8)]


@pytest.mark.parametrize(
    ("section", "waves"),
    [
        ({}, [HOSTS]),
        ({"canary": 2}, [["n1", "n2"], HOSTS[2:]]),
        ({"canary": "n5"}, [["n5"], ["n1", "n2", "n3", "n4", "n6", "n7"]]),
        ({"canary": ["n[3:4]", "n3"], "batch": 3}, [["n3", "n4"], ["n1", "n2", "n5"], ["n6", "n7"]]),
        ({"batch": "50%"}, [HOSTS[:4], HOSTS[4:]]),
        ({"batch": "1%"}, [[name] for name in HOSTS]),
        ({"canary": 100}, [HOSTS]),
    ],
)
def test_every_host_is_in_one_wave_in_the_order_of_the_stack(section: dict, waves: list[list[str]]) -> None:
    assert Rollout.model_validate(section).waves(HOSTS) == waves


def test_a_canary_that_is_lost_leaves_no_empty_wave() -> None:
    """`lost: true` takes a host out of the stack while the section still names it."""
    assert Rollout.model_validate({"canary": "gone"}).waves(HOSTS) == [HOSTS]


def test_a_stack_without_hosts_has_no_waves() -> None:
    assert Rollout.model_validate({"canary": 1, "batch": "10%"}).waves([]) == []
