"""What README and the operating guide promise is there: commands, pages, and an answer to every cause of a failed host."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_fleet.provider.host import CAUSES

REPO = Path(__file__).resolve().parents[1]
PAGES = [
    REPO / "README.md",
    REPO / "CONTRIBUTING.md",
    *sorted([*(REPO / "docs").rglob("*.md"), *(REPO / "alerts").rglob("*.md")]),
]


def name(page: Path) -> str:
    return str(page.relative_to(REPO))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not target.startswith(("http:", "https:")):
            path, _, anchor = target.partition("#")
            found = (page.parent / path).resolve() if path else page
            assert found.exists(), f"{target} does not exist"
            if anchor:
                assert anchor in anchors(found), f"{target} names no heading"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text())
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_make_target_of_a_sentence_exists(page: Path) -> None:
    """Those of fenced blocks: test_documented_commands.py."""
    targets = set(re.findall(r"(?m)^([a-z-]+):", (REPO / "Makefile").read_text()))
    inline = re.findall(r"`([^`\n]+)`", page.read_text())
    assert {target for text in inline for target in re.findall(r"(?:^|\s)make ([a-z][a-z-]*)", text)} <= targets


def test_every_page_is_in_the_index() -> None:
    index = (REPO / "docs/README.md").read_text()
    assert [
        page.name for page in PAGES if page.parent == REPO / "docs" and page.name != "README.md" and page.name not in index
    ] == []


def test_every_cause_of_a_failed_host_has_an_answer() -> None:
    answered = re.findall(r"(?m)^\| ([^|]+?) \|", (REPO / "docs/when-up-fails.md").read_text())
    assert set(CAUSES.values()) <= set(answered)
