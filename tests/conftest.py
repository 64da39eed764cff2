"""What all tests share."""

from __future__ import annotations

import signal

import pytest

# Tests that share one costly thing (a running datacenter, a site of hosts) stay in one process of pytest-xdist.
TOGETHER = ("tests/e2e/", "tests/hosts/")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regen", action="store_true", help="write the golden files anew; review their diff")


def pytest_configure() -> None:
    # A shell that starts the tests in the background has SIGINT ignored, and so has every program below it: Ctrl-C would be
    # tested on programs that cannot see it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        file = item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(next((folder for folder in TOGETHER if file.startswith(folder)), file)))
