"""What all tests share."""

from __future__ import annotations

import os
import signal

import pytest

from lab.standins import programs
from tests.samples.conftest import SAMPLES

# What make, a hook of git, a terminal and some shells hand to every program, and what would change those that tests start: a
# `make` below `make test` prints more, `git` in a test's own repository works on another, and HOST is a host of `make up`.
OF_THE_CALLER = (
    *("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "STACK", "STACKS", "HOST", "PLAN"),
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX"),
    *("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "PYTHON_COLORS"),
    "PYTHONDONTWRITEBYTECODE",  # the tests start Python a thousand times: without bytecode each start takes twice as long
)

# What is about stand-ins themselves, and the page that one of them draws: with `make test OFFICIAL=1` there is none.
collect_ignore = ["standins", "dashboards/test_in_browser.py"] if os.environ.get(programs.REFUSED) == "1" else []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regen", action="store_true", help="rewrite the golden files; review their diff")


def pytest_configure(config: pytest.Config) -> None:
    for name in OF_THE_CALLER:
        os.environ.pop(name, None)
    os.environ["LC_ALL"] = "C.UTF-8"  # tests compare what programs print
    # As on a machine on which git has no identity: a test that commits sets one itself.
    os.environ.update(GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="user.name", GIT_CONFIG_VALUE_0="")
    # A shell that starts the tests in the background has SIGINT ignored, and so has every program below it: Ctrl-C would be
    # tested on programs that cannot see it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not SAMPLES.is_dir():
        terminalreporter.write_line(f"tests/samples was left out: there are no recordings of other projects in {SAMPLES}.")
