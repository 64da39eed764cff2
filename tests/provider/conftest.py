"""Plugins and hosts for the tests of the provider."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.provider.plugin import PASSWORD, LocalHost, Plugin


@pytest.fixture(scope="session")
def running_plugin() -> Iterator[Plugin]:
    plugin = Plugin()
    yield plugin
    errors = plugin.close()
    assert errors == "", f"the engine shows what the plugin writes to standard error: {errors}"


@pytest.fixture
def plugin(running_plugin: Plugin) -> Iterator[Plugin]:
    """One process for many tests, configured again for each."""
    running_plugin.configure(secrets={"metrics-password": PASSWORD})
    running_plugin.answers.clear()
    running_plugin.engine.lines.clear()
    yield running_plugin
    for answer in running_plugin.answers:
        assert PASSWORD not in answer, "a secret left the provider in an answer"
    for line in running_plugin.engine.lines:
        assert PASSWORD not in line.message, "a secret left the provider in a log line"


@pytest.fixture
def new_plugin() -> Iterator[Callable[..., Plugin]]:
    """Plugins of the test's own, for what changes the process: Cancel, PLAN=hosts, signals."""
    plugins: list[Plugin] = []

    def start(environment: dict[str, str] | None = None, **config: Any) -> Plugin:
        plugins.append(Plugin(environment))
        plugins[-1].configure(**{"secrets": {"metrics-password": PASSWORD}, **config})
        return plugins[-1]

    yield start
    for plugin in plugins:
        assert plugin.close() == ""


@pytest.fixture
def host(plugin: Plugin, tmp_path: Path) -> LocalHost:
    return LocalHost(tmp_path / "host", plugin.bundle())
