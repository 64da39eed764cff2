"""Hosts that provision themselves: what the stack file must say for what they fetch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stackfile.stacks import problems, stack

URL = "https://files.example.com/gpu-fleet"


@pytest.mark.parametrize(
    ("section", "where", "words"),
    [
        ({}, "pull.url", "is missing"),
        ({"url": "s3://bucket/gpu-fleet"}, "pull.url", "does not start with http:// or https://"),
        ({"url": "https://reader:planted@files.example.com"}, "pull.url", "a URL without credentials"),
        ({"url": "http://files.example.com"}, "pull.url", "anyone on the path can replace the installer, which runs as root"),
        ({"url": URL, "waves": ["10%", "5%", "100%"]}, "pull.waves", "rising shares, the last one 100%"),
        ({"url": URL, "waves": ["1%", "10%"]}, "pull.waves", "rising shares, the last one 100%"),
        ({"url": URL, "bandwidth": "1Gbit/s"}, "pull.bandwidth", "it is not known how many hosts share it"),
        ({"url": URL, "bandwidth": "fast", "hosts": 9}, "pull.bandwidth", "a bandwidth in kbit/s, Mbit/s or Gbit/s"),
    ],
)
def test_an_error_is_reported_where_it_is(section: dict, where: str, words: str, base: Path) -> None:
    errors = problems(stack(pull=section), base)
    assert [problem.where for problem in errors.problems] == [f"gpu-fleet:{where}"], str(errors)
    assert words in str(errors) and "planted" not in str(errors)


def test_without_hosts_it_needs_their_labels_and_where_they_push(base: Path) -> None:
    errors = problems({"pull": {"url": URL}}, base)
    assert {problem.where for problem in errors.problems} == {"gpu-fleet:datacenter", "gpu-fleet:cluster", "gpu-fleet:metrics"}
    alone = {"datacenter": "us-west", "cluster": "edge", "metrics": {"url": "https://mimir.example.com/api/v1/push"}}
    assert problems({**alone, "pull": {"url": URL}}, base) is None, "hosts that come and go are named nowhere"


def test_an_installer_that_travels_in_clear_needs_a_word(base: Path) -> None:
    assert problems(stack(pull={"url": "http://files.example.com", "insecure": True}), base) is None
