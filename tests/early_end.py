"""Ends clusters, datacenters and hosts with the group of tests that uses them: idle, each costs a tenth of a core."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

ENDED_EARLY = ("cluster", "datacenter", "showcase", "site")


class EarlyEnd:
    """A plugin: of a conftest.py pytest does not call the hooks for fixtures of the session."""

    def __init__(self, group_of: Callable[[pytest.Item], str]) -> None:
        self._group_of = group_of
        self._running: dict[str, pytest.FixtureDef[object]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> None:
        if fixturedef.argname in ENDED_EARLY:
            self._running[fixturedef.argname] = fixturedef

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Function, nextitem: pytest.Function | None) -> Iterator[None]:
        """After the fixtures of functions and modules. A later group that needs one again starts another."""
        yield
        if nextitem is not None and self._group_of(item) != self._group_of(nextitem):
            for name in set(self._running) - set(nextitem.fixturenames):
                self._running.pop(name).finish(item._request)  # and first what depends on it
