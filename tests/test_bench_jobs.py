"""What bench/jobs.py takes for wrong: another GPU, another owner, another time than sacct has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.jobs import LATE_S, Job, Outcome, Shown

JOB = Job("7", "alice", "vision", "COMPLETED", 100, 160, 2, "a", frozenset({"GPU-1", "GPU-2"}), lost=False)
HELD = frozenset((uuid, "7", "alice", "vision") for uuid in JOB.uuids)
SHOWN = [Shown(at, HELD if 101 <= at < 162 else frozenset()) for at in range(90, 220)]


def outcome(job: Job = JOB) -> Outcome:
    return Outcome([job], {"a": SHOWN})


def test_a_job_that_is_shown_as_sacct_has_it_is_right() -> None:
    assert list(outcome().wrong()) == [] and outcome().unseen() == []
    assert outcome().seconds([JOB]) == ({("alice", "vision"): 120}, {("alice", "vision"): 122})


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, uuids=frozenset({"GPU-1", "GPU-3"})),
        replace(JOB, uuids=frozenset(), gpus=3),
        replace(JOB, user="bob"),
        replace(JOB, account="speech"),
        replace(JOB, began=110),
        replace(JOB, ended=161 - LATE_S - 1),
    ],
    ids=["GPU", "number", "user", "account", "early", "late"],
)
def test_a_difference_is_named(job: Job) -> None:
    assert len(list(outcome(job).wrong())) == 1


def test_a_job_that_was_never_shown_is_named_apart() -> None:
    never = replace(JOB, job_id="8")
    assert outcome(never).unseen() == [never] and list(outcome(never).wrong()) == []


def test_jobs_that_a_lost_hook_or_a_kill_disturbed_are_no_measure_of_gpu_hours() -> None:
    assert not JOB.is_disturbed
    assert replace(JOB, lost=True).is_disturbed and replace(JOB, state="FAILED").is_disturbed
    assert outcome().seconds([]) == ({}, {}), "nor is what is shown of them"
