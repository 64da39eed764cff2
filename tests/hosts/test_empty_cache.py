"""The lab's hosts on a machine that never had any."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.hosts.__main__ import main
from lab.hosts.site import all_sites, reap


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_abandoned_sites_are_looked_for_in_a_cache_that_does_not_exist() -> None:
    reap()
    assert all_sites() == []


@pytest.mark.parametrize("verb", ["list", "down", "clean"])
def test_a_command_about_hosts_finds_none(verb: str, cache: Path) -> None:
    assert main([verb]) == 0
    if verb == "clean":
        assert not (cache / "gpu-fleet/hosts").exists()
