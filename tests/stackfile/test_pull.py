"""Hosts that provision themselves: what the stack file must say for what they fetch."""

from __future__ import annotations

from pathlib import Path

import pytest

from stackfile.config import StackConfig
from tests.stackfile.stacks import problems, stack

URL = "https://files.example.com/gpu-fleet"


@pytest.mark.parametrize(
    ("section", "where", "words"),
    [
        ({}, "pull.url", "is missing"),
        ({"url": "s3://bucket/gpu-fleet"}, "pull.url", "does not start with http:// or https://"),
        ({"url": "https://reader:planted@files.example.com"}, "pull.url", "a URL without credentials"),
    ],
)
def test_a_mistake_is_told_where_it_is(section: dict, where: str, words: str, base: Path) -> None:
    errors = problems(stack(pull=section), base)
    assert [problem.where for problem in errors.problems] == [f"gpu-fleet:{where}"], str(errors)
    assert words in str(errors) and "planted" not in str(errors)


def test_without_hosts_it_needs_their_labels_and_where_they_push(base: Path) -> None:
    errors = problems({"pull": {"url": URL}}, base)
    assert {problem.where for problem in errors.problems} == {"gpu-fleet:datacenter", "gpu-fleet:cluster", "gpu-fleet:metrics"}
    alone = {"datacenter": "us-west", "cluster": "edge", "metrics": {"url": "https://mimir.example.com/api/v1/push"}}
    assert problems({**alone, "pull": {"url": URL}}, base) is None, "hosts that come and go are named nowhere"


def test_an_installer_that_travels_in_clear_is_warned_about(base: Path) -> None:
    config = StackConfig.load(stack(pull={"url": "http://files.example.com"}), base)
    assert [text for text in config.warnings if "gpu-fleet:pull.url" in text and "in clear" in text]
