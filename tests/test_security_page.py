"""docs/security.md: each statement names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs/security.md"
ROWS = [
    line
    for line in PAGE.read_text().splitlines()
    if line.startswith("|") and not re.fullmatch(r"\|[-|]+\||\| .* \| test \|", line)
]


def test_each_statement_names_a_test_that_exists() -> None:
    assert len(ROWS) > 25
    for row in ROWS:
        named = re.search(r"\| \[`(test_\w+)`\]\(\.\./(tests/[\w/]+\.py)\) \|$", row)
        assert named, f"no test: {row}"
        assert f"\ndef {named[1]}(" in (PAGE.parents[1] / named[2]).read_text(), f"{named[2]} has no {named[1]}"
