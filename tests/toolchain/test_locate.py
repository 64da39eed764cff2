"""`find` and `environment`: what the rest of the project sees of the toolchain."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from gpu_fleet import toolchain
from gpu_fleet.toolchain import Cache, NotInstalled, Record, pulumi_home
from gpu_fleet.toolchain.programs import PROGRAMS
from gpu_fleet.toolchain.versions import release
from tests.toolchain.fakes import executable, script, sha256


def put(cache: Cache, name: str) -> Path:
    """An installed program, as the installer leaves it."""
    content = script(PROGRAMS[name].release.version)
    with cache.partial(name) as partial:
        executable(partial / "prepared" / name, content)
        record = Record.now(how="upstream", why="", program=name, sha256={name: sha256(content)})
        cache.place(name, PROGRAMS[name].release.version, partial / "prepared", record)
    return cache.directory(name, PROGRAMS[name].release.version) / name


def test_a_program_that_is_not_installed_is_reported_with_the_command_that_installs_it() -> None:
    wanted = re.escape(release("alloy").version)
    with pytest.raises(
        NotInstalled, match=rf"alloy {wanted} is not installed: run `.venv/bin/\S+ -m gpu_fleet.toolchain install alloy`"
    ):
        toolchain.find("alloy")


def test_an_unknown_name_is_reported_with_the_known_ones() -> None:
    with pytest.raises(NotInstalled, match=r"Unknown program 'aloy'.*alloy"):
        toolchain.find("aloy")


def test_an_installed_program_is_found_before_one_on_the_path(cache: Cache, machine: Path) -> None:
    executable(machine / "loki", script(PROGRAMS["loki"].release.version))
    assert toolchain.find("loki") == machine / "loki"
    installed = put(cache, "loki")
    assert toolchain.find("loki") == installed


def test_a_program_of_another_version_on_the_path_is_not_found(machine: Path) -> None:
    executable(machine / "loki", script("2.9.0"))
    assert toolchain.located("loki") is None


def test_tools_that_are_linked_from_another_cache_are_this_caches(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in CI (.ci/run): what is built lands in the other cache, and no program there is taken for one of the machine."""
    usual = tmp_path / "usual/tools"
    usual.mkdir(parents=True)
    cache.root.mkdir(parents=True)
    cache.tools.symlink_to(usual)
    program = put(cache, "loki")
    assert (usual / "loki" / PROGRAMS["loki"].release.version / "loki").is_file()
    assert toolchain.find("loki") == program
    record = cache.record("loki", PROGRAMS["loki"].release.version)
    assert record and cache.damage("loki", PROGRAMS["loki"].release.version, record) == ""
    monkeypatch.setenv("PATH", str(program.parent))
    (program.parent / "record.json").unlink()
    assert toolchain.located("loki") is None, "taken for a program of this machine"


def test_the_language_host_on_the_path_has_the_version_of_the_pulumi_beside_it(machine: Path) -> None:
    host = executable(machine / "pulumi-language-python", b"#!/bin/sh\n")
    assert toolchain.located("pulumi-language-python") is None
    executable(machine / "pulumi", script(PROGRAMS["pulumi"].release.version))
    assert toolchain.find("pulumi-language-python") == host


def test_an_official_plugin_that_pulumi_installed_is_found(tmp_path: Path) -> None:
    version = PROGRAMS["pulumi-resource-command"].release.version
    plugin = tmp_path / f"home/.pulumi/plugins/resource-command-v{version}/pulumi-resource-command"
    executable(plugin, b"#!/bin/sh\n")
    found = toolchain.located("pulumi-resource-command")
    assert found and found.path == plugin and found.how == "path"


def test_a_plugin_of_unknown_version_on_the_path_is_not_trusted(machine: Path) -> None:
    executable(machine / "pulumi-resource-command", b"#!/bin/sh\n")
    assert toolchain.located("pulumi-resource-command") is None


def test_the_environment_puts_programs_before_the_rest_of_the_path(cache: Cache, machine: Path) -> None:
    pulumi = put(cache, "pulumi")
    assert toolchain.environment()["PATH"].split(os.pathsep) == [str(pulumi.parent), str(machine)]


def test_plugins_are_not_on_the_path_where_pulumi_would_warn_about_them(cache: Cache, machine: Path) -> None:
    put(cache, "pulumi-resource-command")
    assert toolchain.environment()["PATH"] == str(machine)


def test_the_environment_keeps_pulumi_from_fetching_by_itself() -> None:
    assert toolchain.environment()["PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION"] == "true"


def test_the_environment_keeps_a_persons_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "PULUMI_CREDENTIALS_PATH" not in toolchain.environment(), "pulumi would make an empty ~/.pulumi"
    usual = tmp_path / "home/.pulumi"
    usual.mkdir(parents=True)
    environment = toolchain.environment()
    assert environment["PULUMI_CREDENTIALS_PATH"] == str(usual)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert toolchain.environment() == environment, "make within make"


def test_a_pulumi_home_of_the_users_own_is_still_seen_from_within_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make preview` looks for the plugins of a stack after it asked pulumi for its sections, and `make shell` starts make."""
    plugin = PROGRAMS["pulumi-resource-grafana"]
    official = executable(tmp_path / "own/plugins" / plugin.plugin / plugin.name, b"")
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "own"))
    for _ in range(2):
        for name, value in toolchain.environment().items():
            monkeypatch.setenv(name, value)
        assert toolchain.find(plugin.name) == official


@pytest.mark.parametrize("home", ["pulumi-home", "lab-pulumi-home"])
def test_what_a_pulumi_home_of_the_cache_holds_is_not_taken_for_an_official_plugin(
    home: str, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = PROGRAMS["pulumi-resource-command"]
    pulumi_home.place(cache.root / home, {plugin.plugin: (plugin.name, "/bin/true")})
    monkeypatch.setenv("PULUMI_HOME", str(cache.root / home))
    assert toolchain.located(plugin.name) is None


def test_a_plugin_is_offered_as_a_program_that_becomes_it(cache: Cache, tmp_path: Path) -> None:
    plugin = executable(tmp_path / "it's/pulumi-resource-x", b'#!/bin/sh\necho "$0: $1"\n')
    pulumi_home.offer(cache, {"resource-x-v1.0.0": plugin})
    started = [cache.root / "pulumi-home/plugins/resource-x-v1.0.0/pulumi-resource-x", "127.0.0.1:5"]
    said = subprocess.run(started, capture_output=True, text=True, check=True)
    assert said.stdout == f"{plugin}: 127.0.0.1:5\n"
