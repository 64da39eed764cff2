"""What GitHub's workflow deploys: a repository with a fork's history, and a `gh` that knows which runs succeeded."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.checkout import REPO

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # git hash-object -t tree /dev/null
GH = """#!/bin/sh
# As GitHub's `gh run list`: of all runs of the file deploy.yml on branches named main, those of one event, newest first.
[ "$1 $2 $3 $4 $5 $6 $7" = "run list --workflow deploy.yml --branch main --event" ] || exit 9
jq --raw-output "[.[] | select(.event == \\"$8\\")] | ${14}" runs.json
"""


@pytest.fixture
def commits(tmp_path: Path) -> list[str]:
    """Three merges, oldest first."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/gh").write_text(GH)
    (tmp_path / "bin/gh").chmod(0o755)
    listed(tmp_path)
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    for number in range(3):
        git(tmp_path, *AUTHOR, "commit", "--quiet", "--allow-empty", f"--message={number}")
    return git(tmp_path, "rev-list", "--reverse", "HEAD").split()


AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@example.com")


def git(directory: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", directory, *arguments], check=True, capture_output=True, text=True).stdout


def run(directory: Path, verb: str, commit: str) -> subprocess.CompletedProcess[str]:
    path = f"{directory / 'bin'}:{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "GITHUB_SHA": commit}
    command = ["sh", str(REPO / ".ci/deployed"), verb]
    return subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True, check=False)


def listed(directory: Path, *runs: tuple[str, str], event: str = "push") -> None:
    """The runs of deploy.yml, oldest first: commit and conclusion."""
    made = [
        {"headSha": commit, "conclusion": conclusion, "createdAt": f"2026-11-{day:02}T08:00:00Z", "event": event}
        for day, (commit, conclusion) in enumerate(runs, 1)
    ]
    (directory / "runs.json").write_text(json.dumps(made[::-1]))


def since(directory: Path, commit: str) -> list[str]:
    done = run(directory, "since", commit)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_run_that_was_cancelled_rejected_or_failed_is_made_good_by_the_next(tmp_path: Path, commits: list[str]) -> None:
    assert since(tmp_path, commits[0]) == [EMPTY_TREE], "the first run deploys every stack"
    listed(tmp_path, (commits[0], "success"))
    assert since(tmp_path, commits[2]) == [commits[0]], "the merge between had no run"
    listed(tmp_path, ("f" * 40, "success"))
    assert since(tmp_path, commits[2]) == [EMPTY_TREE], "main was rewritten"


def test_what_a_run_deployed_before_it_was_cancelled_is_taken_back_with_its_merge(tmp_path: Path, commits: list[str]) -> None:
    """The canary had the second merge when the approval of the others was refused; the third merge takes it back, so that nothing
    differs from the first."""
    listed(tmp_path, (commits[0], "success"), (commits[1], "failure"), (commits[2], ""))
    assert since(tmp_path, commits[2]) == [commits[0], commits[1]]
    listed(tmp_path, (commits[0], "success"), ("f" * 40, "cancelled"))
    assert since(tmp_path, commits[2]) == [commits[0], EMPTY_TREE], "main was rewritten: what was deployed cannot be read"


def test_a_run_of_a_forks_branch_called_main_was_never_deployed(tmp_path: Path, commits: list[str]) -> None:
    """A pull request may bring a deploy.yml that runs on pull requests, and succeeds."""
    for commit in (commits[2], "f" * 40):
        listed(tmp_path, (commit, "success"), event="pull_request")
        assert since(tmp_path, commits[1]) == [EMPTY_TREE]
        assert run(tmp_path, "refuse-older", commits[1]).returncode == 0


def test_an_older_run_that_is_started_again_does_not_roll_stacks_back(tmp_path: Path, commits: list[str]) -> None:
    listed(tmp_path, (commits[1], "success"))
    refused = run(tmp_path, "refuse-older", commits[0])
    assert refused.returncode == 1 and "start the workflow deploy on main instead" in refused.stderr
    assert [run(tmp_path, "refuse-older", commit).returncode for commit in commits[1:]] == [0, 0]
    listed(tmp_path, (commits[1], "success"), (commits[2], "failure"))
    assert since(tmp_path, commits[1]) == [commits[1]], "what a later run began is finished by a later run"
