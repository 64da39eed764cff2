"""`python -m gpu_fleet.toolchain` as a person types it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.toolchain.fakes import executable

Command = Callable[..., subprocess.Popen[str]]


def said(process: subprocess.Popen[str], code: int = 0) -> str:
    text = process.communicate()[0]
    assert process.returncode == code, text
    assert "Traceback" not in text, "an error of the user must not look like one of ours"
    return text


def test_install_then_path_list_env_and_run_agree(command: Command, go: Path) -> None:
    said(command("install", "--keep-go-caches", "node_exporter"))
    assert said(command("install", "--quiet", "node_exporter")) == "", "a make target prints only what is new"
    path = said(command("path", "node_exporter")).strip()
    assert Path(path).is_file()
    listed = next(line for line in said(command("list")).splitlines() if line.startswith("node_exporter"))
    assert listed.split()[2:] == ["go", path]
    assert f"export PATH={Path(path).parent}" in said(command("env"))
    assert "version 1.2.3" in said(command("run", "--", "node_exporter", "--version"))


def test_run_hands_on_the_exit_code_and_the_arguments(command: Command) -> None:
    assert said(command("run", "sh", "-c", 'echo "$2"; exit 7', "sh", "a", "b c"), code=7) == "b c\n"


def test_run_shows_a_program_that_is_not_there(command: Command) -> None:
    assert "nosuchprogram: No such file or directory" in said(command("run", "nosuchprogram"), code=1)


def test_path_of_what_is_not_installed_says_how_to_install_it(command: Command) -> None:
    assert "run `.venv/bin/python -m gpu_fleet.toolchain install alloy`" in said(command("path", "alloy"), code=1)


@pytest.mark.parametrize("verb", ["install", "pin"])
def test_an_unknown_name_is_reported_without_a_traceback(verb: str, command: Command) -> None:
    text = said(command(verb, "aloy"), code=1)
    assert "aloy" in text and "alloy" in text


def test_failures_come_last_and_all_at_once(command: Command) -> None:
    text = said(command("install", "node_exporter", "loki", "nvidia_gpu_exporter", "promtool"), code=1)
    assert "node_exporter 1.12.1, loki 3.7.8, promtool 3.15.0: github.com cannot be reached (Connection refused)" in text
    assert text.count("or newer is missing") == 1, "one cause is one message"
    assert text.strip().endswith("Run it again when this is fixed.")


def test_clean_frees_gos_caches(command: Command, go: Path, tmp_path: Path) -> None:
    said(command("install", "--keep-go-caches", "node_exporter"))
    assert (tmp_path / "cache/gpu-fleet/go").exists()
    assert said(command("clean")).startswith("Freed ")
    assert not (tmp_path / "cache/gpu-fleet/go").exists()


def test_system_is_silent_when_the_program_is_there(command: Command, machine: Path) -> None:
    executable(machine / "shellcheck", b"#!/bin/sh\n")
    assert said(command("system", "shellcheck")) == ""
