"""What GitHub's workflow deploys: a repository with a fork's history, and a `gh` that knows which runs succeeded."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.checkout import REPO

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # git hash-object -t tree /dev/null
GH = """#!/bin/sh
[ "$*" = "run list --workflow deploy.yml --branch main --status success --limit 1 --json headSha --jq .[0].headSha // empty" ]
cat "$SUCCEEDED"
"""


@pytest.fixture
def commits(tmp_path: Path) -> list[str]:
    """Three merges, oldest first."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/gh").write_text(GH)
    (tmp_path / "bin/gh").chmod(0o755)
    (tmp_path / "succeeded").touch()
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    for number in range(3):
        git(tmp_path, *AUTHOR, "commit", "--quiet", "--allow-empty", f"--message={number}")
    return git(tmp_path, "rev-list", "--reverse", "HEAD").split()


AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@example.com")


def git(directory: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", directory, *arguments], check=True, capture_output=True, text=True).stdout


def run(directory: Path, verb: str, commit: str) -> subprocess.CompletedProcess[str]:
    path = f"{directory / 'bin'}:{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "SUCCEEDED": str(directory / "succeeded"), "GITHUB_SHA": commit}
    command = ["sh", str(REPO / ".ci/deployed"), verb]
    return subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True, check=False)


def test_a_run_that_was_cancelled_rejected_or_failed_is_made_good_by_the_next(tmp_path: Path, commits: list[str]) -> None:
    assert run(tmp_path, "since", commits[0]).stdout.strip() == EMPTY_TREE, "the first run deploys every stack"
    (tmp_path / "succeeded").write_text(commits[0])
    assert run(tmp_path, "since", commits[2]).stdout.strip() == commits[0], "the merge between had no run that succeeded"
    (tmp_path / "succeeded").write_text("f" * 40)
    assert run(tmp_path, "since", commits[2]).stdout.strip() == EMPTY_TREE, "main was rewritten"


def test_an_older_run_that_is_started_again_does_not_roll_stacks_back(tmp_path: Path, commits: list[str]) -> None:
    (tmp_path / "succeeded").write_text(commits[1])
    refused = run(tmp_path, "refuse-older", commits[0])
    assert refused.returncode == 1 and "start the workflow deploy on main instead" in refused.stderr
    assert [run(tmp_path, "refuse-older", commit).returncode for commit in commits[1:]] == [0, 0]
