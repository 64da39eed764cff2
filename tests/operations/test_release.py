"""A release: which tags are refused, what its notes are, and its job, with a `gh` and a `make` that log their calls."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_fleet.operations.release import errors, notes
from gpu_fleet.version import VERSION
from tests.checkout import REPO

CHANGELOG = """# Changelog

## 0.2.0 - 2026-12-01

### New
- A panel.

## 0.1.0 - 2026-11-22
- The first.
"""


def test_a_tag_that_fits_is_released_with_its_section() -> None:
    assert errors("v0.2.0", "0.2.0", CHANGELOG) == []
    assert notes("0.2.0", CHANGELOG) == "### New\n- A panel."
    assert notes("0.1.0", CHANGELOG) == "- The first."


@pytest.mark.parametrize(
    ("tag", "number", "changelog", "found"),
    [
        (
            "v0.3.0",
            "0.2.0",
            CHANGELOG,
            ["TAG: 'v0.3.0', but the version in gpu_fleet/provider/schema.json is 0.2.0. Expected v0.2.0:"],
        ),
        ("0.2.0", "0.2.0", CHANGELOG, ["TAG: '0.2.0', but"]),
        ("v0.3.0", "0.3.0", CHANGELOG, ["CHANGELOG.md: expected '## 0.3.0 - DATE' as its first version; its first"]),
        ("v0.2.0", "0.2.0", CHANGELOG.replace("2026-12-01", "unreleased"), ["Write the day of the release"]),
        ("v0.2.0", "0.2.0", CHANGELOG.replace("### New\n- A panel.\n", ""), ["'## 0.2.0 - 2026-12-01' has no text."]),
        ("v0.2.0", "0.3.0", "# Changelog\n", ["TAG: 'v0.2.0'", "it has no heading like that"]),
    ],
)
def test_every_error_is_reported_at_once_with_its_fix(tag: str, number: str, changelog: str, found: list[str]) -> None:
    reported = errors(tag, number, changelog)
    assert len(reported) == len(found) and all(text in line for text, line in zip(found, reported, strict=True)), reported


def test_the_changelog_begins_with_the_version_of_the_schema() -> None:
    changelog = (REPO / "CHANGELOG.md").read_text()
    released = changelog.replace(" - unreleased\n", " - 2026-12-01\n", 1)
    assert errors(f"v{VERSION}", VERSION, released) == []


FAKES = {
    "make": 'echo "make $*" >>"$CALLS"; mkdir -p build; echo notes >build/release-notes.md; exit "${NOTES:-0}"',
    "gh": 'echo "gh $*" >>"$CALLS"; [ "$1 $2" != "run list" ] || echo "$PASSED"',
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone whose tag v0.2.0 is on origin/main and is checked out."""
    for name, text in FAKES.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    clone = tmp_path / "clone"
    shutil.copytree(REPO / ".ci", clone / ".ci")
    _git(clone, "init", "--quiet", "--initial-branch", "main")
    _commit(clone, "the release")
    _git(clone, "update-ref", "refs/remotes/origin/main", "HEAD")
    return clone


def _git(clone: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.com", *words], cwd=clone, check=True)


def _commit(clone: Path, message: str) -> None:
    _git(clone, "add", ".")
    _git(clone, "commit", "--quiet", "--allow-empty", "--message", message)


def _release(clone: Path, **variables: str) -> tuple[int, list[str], str]:
    path = f"{clone.parent / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "CALLS": str(clone.parent / "calls"), "PASSED": "1", **variables}
    done = subprocess.run(
        ["sh", ".ci/release", "v0.2.0"], cwd=clone, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, (clone.parent / "calls").read_text().splitlines(), done.stderr


def test_the_job_checks_the_notes_and_the_commits_tests_and_makes_the_release(checkout: Path) -> None:
    code, calls, _ = _release(checkout)
    assert code == 0
    assert calls[0] == "make --silent release-notes TAG=v0.2.0 TO=build/release-notes.md"
    assert calls[1].startswith("gh run list --workflow test.yml --branch main --event push --commit ")
    assert calls[2] == "gh release create v0.2.0 --verify-tag --title v0.2.0 --notes-file build/release-notes.md"


@pytest.mark.parametrize(
    ("variables", "elsewhere", "words"),
    [
        ({"NOTES": "2"}, False, ""),
        ({"PASSED": "0"}, False, "test.yml has not passed for"),
        ({}, True, "is not on main: merge it, and tag the commit there"),
    ],
)
def test_the_job_makes_no_release_of_what_is_not_ready(
    checkout: Path, variables: dict[str, str], elsewhere: bool, words: str
) -> None:
    if elsewhere:
        _commit(checkout, "a branch")
    code, calls, error = _release(checkout, **variables)
    assert code != 0 and words in error
    assert not [call for call in calls if "release create" in call]
