"""How many errors read together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_fleet.stackfile.problems import ConfigErrors, Problem, nearest, shown
from tests.stackfile.stacks import REMOVED, problems, stack

GOLDEN = Path(__file__).parents[1] / "golden" / "config_errors.txt"


def test_many_errors_read_as_one_text(base: Path, request: pytest.FixtureRequest) -> None:
    (base / "hosts.yml").write_text("hosts:\n  spare-[1:2]:\n    address: 10.0.7.[1:3]\n  late: {adress: 10.0.7.9}\n")
    raw = stack(
        datacenter="US West",
        cluter="training",
        cluster=REMOVED,
        hosts=REMOVED,
        inventory="hosts.yml",
        metrics={"url": "https://mimir.example.com", "password": "hunter2", "outage": "1y"},
        metricsPassword="hunter2",
        artifacts={"source": "mirror"},
        kubernetes={"contxt": "gke"},
        alerts={"targets": ["rulr"], "receivers": {"team": {"slak": {}}}},
    )
    errors = problems(raw, base, {"grafanaAuth"})
    assert errors is not None
    text = f"{errors}\n"
    if request.config.getoption("--regen"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), "if the new text is right, run pytest --regen and review the diff"
    assert "hunter2" not in text


def test_errors_are_sorted_as_people_count_and_reported_once() -> None:
    errors = ConfigErrors([Problem("hosts.yml:10", "b"), Problem("hosts.yml:9", "a"), Problem("hosts.yml:10", "b")])
    assert re.findall(r"hosts\.yml:\d+", str(errors)) == ["hosts.yml:9", "hosts.yml:10"]


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("private_key_file", ["privateKeyFile", "user"], "privateKeyFile"),
        ("known-hosts-file", ["privateKeyFile", "knownHostsFile"], "knownHostsFile"),
        ("dcgm", ["auto", "dcgm-exporter", "textfile"], "dcgm-exporter"),
        ("gpu", ["gpus", "ports"], "gpus"),
        ("zzz", ["gpus", "ports"], None),
    ],
)
def test_the_nearest_word_is_found_across_ways_to_write_it(word: str, known: list[str], meant: str | None) -> None:
    assert nearest(word, known) == meant


@pytest.mark.parametrize(
    ("value", "keys"),
    [
        ("hunter2", ("metrics", "password")),
        ("x", ("grafanaAuth",)),
        ("https://user:hunter2@example.com", ("url",)),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", ("user",)),
        ("glsa_0123456789", ("folder",)),
        ("https://hooks.slack.com/services/T/B/x", ("url",)),
        ("d41d8cd98f00b204e9800998ecf8427e", ("tenant",)),
    ],
)
def test_what_may_be_a_secret_is_not_shown(value: str, keys: tuple[str, ...]) -> None:
    assert shown(value, *keys) == "(a value that is not shown, it may be a secret)"


def test_the_path_of_a_key_file_is_shown() -> None:
    assert shown("~/.ssh/id", "ssh", "privateKeyFile") == '"~/.ssh/id"'


def test_a_long_value_is_cut() -> None:
    assert len(shown("x" * 1000)) < 100
