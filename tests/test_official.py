"""`make test OFFICIAL=1` sets NO_STAND_INS=1: what is installed is used, or the run fails; nothing stands in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from components.kubernetes.charts import ChartError
from gpu_fleet import toolchain
from gpu_fleet.toolchain import ToolchainError, versions
from lab.grafana import process
from lab.kubernetes.chart_packages import package
from lab.standins import programs
from tests.checkout import REPO

PROGRAMS = [path for path in programs.STAND_INS.values() if path.is_relative_to(REPO / "lab/standins") or path.name == "grafana"]
# The modules that play a part of Pulumi's or Grafana's: the others of these packages put programs in place, or drive a browser.
STAND_INS = ("lab.standins.command", "lab.standins.language", "lab.standins.plugin", "lab.grafana.app", "lab.grafana.api")
IMPORTED = f"""
import sys, pytest
code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "tests"])
stand_ins = [name for name in sys.modules if name.startswith({STAND_INS})]
sys.exit(f"imported: {{stand_ins}}" if stand_ins else code)
"""


@pytest.fixture
def official(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(programs.REFUSED, "1")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_no_stand_in_starts(program: Path, official: None) -> None:
    """However it is started: by a test, by Pulumi, by the backend of a stack."""
    done = subprocess.run([program, "127.0.0.1:1"] if program.name != "grafana" else [program, "server"], capture_output=True)
    assert done.returncode == 1 and b"NO_STAND_INS=1 refuses the lab's stand-in" in done.stderr


def test_what_is_not_installed_is_named_with_the_command_that_installs_it(
    official: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(toolchain, "located", lambda name: None)
    for use in (programs.in_use, programs.environment, lambda: process.start(tmp_path, 1, "x")):
        with pytest.raises(
            ToolchainError, match=r"NO_STAND_INS=1 refuses stand-ins.*pulumi-language-python.*\n.*--retry-upstream"
        ):
            use()


def test_a_grafana_that_is_given_is_the_one_that_tests_start(
    official: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = tmp_path / "grafana-12/bin/grafana"
    given.parent.mkdir(parents=True)
    given.write_text('#!/bin/sh\necho "$@" >"$GF_PATHS_DATA/started"\n')
    given.chmod(0o755)
    monkeypatch.setattr(programs, "in_use", dict)
    monkeypatch.setattr(toolchain, "find", lambda name: given)
    with pytest.raises(RuntimeError, match="did not start"):
        process.start(tmp_path, 1, "x")
    assert (tmp_path / "started").read_text() == f"server --homepath {tmp_path}/grafana-12\n"


def test_no_stand_in_is_packed_for_hosts(official: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unavailable(*_: object) -> Path:
        raise ToolchainError("grafana 12 is no release of this machine")

    monkeypatch.setattr(programs, "release_of", unavailable)
    with pytest.raises(ToolchainError, match="no release"):
        programs.gather(tmp_path / "artifacts", ["grafana"])


def test_charts_are_fetched_and_not_made(official: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", f"{toolchain.find('helm').parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    with pytest.raises(ChartError, match=re.escape(versions.chart("alloy").version)):
        package("alloy", tmp_path / "charts")
    assert not list((tmp_path / "charts").iterdir())


def test_no_test_imports_a_stand_in(official: None) -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert "test_in_browser" not in done.stdout and "tests/standins/" not in done.stdout
