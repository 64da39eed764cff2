"""Hosts that provision themselves: what the stack file must say for what they fetch."""

from __future__ import annotations

from pathlib import Path

from tests.stackfile.stacks import problems, stack

URL = "https://files.example.com/gpu-fleet"


def test_without_hosts_it_needs_their_labels_and_where_they_push(base: Path) -> None:
    errors = problems({"pull": {"url": URL}}, base)
    assert {problem.where for problem in errors.problems} == {"gpu-fleet:datacenter", "gpu-fleet:cluster", "gpu-fleet:metrics"}
    alone = {"datacenter": "us-west", "cluster": "edge", "metrics": {"url": "https://mimir.example.com/api/v1/push"}}
    assert problems({**alone, "pull": {"url": URL}}, base) is None, "hosts that come and go are named nowhere"


def test_an_installer_that_travels_in_clear_needs_a_word(base: Path) -> None:
    assert problems(stack(pull={"url": "http://files.example.com", "insecure": True}), base) is None
