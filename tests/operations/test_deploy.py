"""What `make up` gives pulumi."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from operations import up

HOSTS = "config:\n  gpu-fleet:hosts: {a: {}}\n"


@pytest.mark.parametrize(
    ("more", "is_saved_once"),
    [
        ("", True),
        ("  gpu-fleet:rulers: {mimir: {url: http://mimir}}\n  gpu-fleet:metricsPassword: {secure: v1:x}\n", True),
        ("  gpu-fleet:grafana: {url: http://grafana}\n", False),
        ("  gpu-fleet:kubernetes: {context: c}\n", False),
        ("  gpu-fleet:backend: {}\n", False),
    ],
)
def test_a_state_whose_objects_cannot_be_made_twice_is_saved_at_every_step(
    tmp_path: Path, more: str, is_saved_once: bool
) -> None:
    file = tmp_path / "Pulumi.s.yaml"
    file.write_text(HOSTS + more)
    assert up.environment(file, {"PATH": "/bin"}) == {"PATH": "/bin", **(up.SAVED_ONCE if is_saved_once else {})}
    said = {"PULUMI_SKIP_CHECKPOINTS": "false"}
    assert up.environment(file, said) == said, "what the person says holds"


def test_pulumi_takes_its_place_with_the_flags_for_many_hosts(tmp_path: Path) -> None:
    file = tmp_path / "Pulumi.s.yaml"
    file.write_text(HOSTS)
    pulumi = tmp_path / "pulumi"
    pulumi.write_text('#!/bin/sh\necho "$@; $PULUMI_SKIP_CHECKPOINTS"\nexit 7\n')
    pulumi.chmod(0o755)
    given = {"PULUMI_OPTION_CONFIG_FILE": str(file), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "operations.up", "--stack", "s", "--yes"]
    done = subprocess.run(command, env={**os.environ, **given}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "up --stack s --parallel 200 --continue-on-error --yes; true\n")


def test_a_stack_that_is_not_there_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert up.main(["--stack", "nowhere"]) == 1
    assert capsys.readouterr().err.startswith("there is no stack file Pulumi.nowhere.yaml: STACK is one of dev")
