"""A simulated machine per test, and its tools run inside the test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lab.gpu import setup
from lab.gpu.machine import CLOCK_VARIABLE, STATE_VARIABLE

NOON = 1_780_000_000.0


@pytest.fixture(autouse=True)
def frozen_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Time stands still; calling the fixture moves it to so many seconds later."""
    monkeypatch.setenv(CLOCK_VARIABLE, str(NOON))

    def later(seconds: float) -> None:
        monkeypatch.setenv(CLOCK_VARIABLE, str(NOON + seconds))

    return later


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes the machine of a scenario and points the tools at it."""

    def make(scenario: str = "h100x8") -> Path:
        state = tmp_path / scenario
        setup.init(state=state, scenario=scenario)
        monkeypatch.setenv(STATE_VARIABLE, str(state))
        return state

    return make


@pytest.fixture
def smi(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, int]]:
    """nvidia-smi: what it prints on stdout, and its exit code."""
    from lab.gpu.nvidia.cli import main

    def run(*arguments: str) -> tuple[str, int]:
        capsys.readouterr()
        code = main(list(arguments))
        return capsys.readouterr().out, code

    return run


@pytest.fixture
def query(smi: Callable[..., tuple[str, int]]) -> Callable[..., list[list[str]]]:
    """The cells of `--query-gpu`, one list per GPU."""

    def run(*names: str) -> list[list[str]]:
        text, code = smi(f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits")
        assert code == 0, text
        return [line.split(", ") for line in text.splitlines()]

    return run
