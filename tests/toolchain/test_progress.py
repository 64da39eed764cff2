"""The progress shown during an installation of half an hour."""

from __future__ import annotations

import io
import re

import pytest

from gpu_fleet.toolchain.progress import Pace, Progress, Step, duration, size
from tests.toolchain.fakes import until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_step_shows_its_time_what_is_expected_and_where_it_is() -> None:
    out = io.StringIO()
    progress = Progress(out)
    progress.every_s = 0.001
    with progress.step("alloy 1.11.0", "building with Go", 710) as step:
        step.detail = "compiling net/http"
        until(lambda: "compiling" in out.getvalue())
    line = next(line for line in out.getvalue().splitlines() if "compiling" in line)
    assert re.fullmatch(rf"{'alloy 1.11.0':<31} building with Go, \d+ s of about 11 min 50 s: compiling net/http", line)


def test_a_step_that_takes_longer_than_expected_says_so() -> None:
    step = Step("building with Go", 0.001)
    until(lambda: step.elapsed_s > 0.001)
    assert str(step) == "building with Go, 0 s, expected 0 s"


def test_what_is_left_is_expected_as_slow_as_what_is_built() -> None:
    pace = Pace([100, 200, 300, 400])
    assert (pace.left_s, pace.expected_s(100)) == (1000, 100)
    pace.done(100, took_s=200)
    assert (pace.left_s, pace.expected_s(200)) == (1800, 400)
    pace.skip(200)
    pace.done(300, took_s=200)
    assert pace.left_s == 400, "100 + 300 took 400 s"


def test_a_terminal_gets_one_line_that_is_rewritten() -> None:
    out = Terminal()
    progress = Progress(out)
    progress.every_s = 0.001
    with progress.step("alloy", "building"):
        until(lambda: out.getvalue().count("building") > 1)
    progress.line("alloy", "done")
    assert out.getvalue().count("\n") == 1 and out.getvalue().endswith(f"\r\033[K{'alloy':<31} done\n")


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 00 s"), (707, "11 min 47 s")])
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(900, "1 kB"), (17_000_000, "17 MB"), (23_400_000_000, "23.4 GB")])
def test_sizes_read_well(count: int, text: str) -> None:
    assert size(count) == text


def test_a_quiet_run_prints_what_is_installed_only_together_with_news() -> None:
    out = io.StringIO()
    progress = Progress(out, quiet=True)
    progress.installed("Toolchain: 2 programs")
    progress.line("pulumi 3.259.0", "in the cache", is_installed=True)
    assert out.getvalue() == ""
    progress.line("alloy 1.18.1", "upstream release")
    progress.line("helm 3.22.0", "in the cache", is_installed=True)
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["Toolchain:", "pulumi", "alloy", "helm"]
