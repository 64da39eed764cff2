"""The nightly job's issue, with a `gh` that keeps one in a directory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.checkout import REPO

GH = """#!/bin/sh
echo "$*" >>"$STORE/calls"
case "$1 $2" in
  "issue list") cat "$STORE/open" 2>/dev/null || true ;;
  "issue create") echo 7 >"$STORE/open" ;;
  "issue close") rm "$STORE/open" ;;
esac
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    gh = tmp_path / "bin/gh"
    gh.parent.mkdir()
    gh.write_text(GH)
    gh.chmod(0o755)
    (tmp_path / "drift.md").write_text("# Drift: stacks that differ\n\n| stack | |\n")
    return tmp_path


def run(store: Path, found: str) -> list[str]:
    """What the script called, but for the query."""
    (store / "calls").write_text("")
    variables = {**os.environ, "PATH": f"{store / 'bin'}:{os.environ['PATH']}", "STORE": str(store)}
    subprocess.run(["sh", ".ci/drift-issue", str(store / "drift.md"), found], cwd=REPO, env=variables, check=True)
    return [" ".join(call.split()[:2]) for call in (store / "calls").read_text().splitlines()][1:]


def test_one_issue_is_opened_updated_and_closed(store: Path) -> None:
    assert run(store, "no") == []
    assert run(store, "yes") == ["label create", "issue create"]
    assert "--title Drift: stacks that differ" in (store / "calls").read_text()
    assert run(store, "yes") == ["issue edit"]
    assert run(store, "no") == ["issue close"]
    assert run(store, "no") == []
