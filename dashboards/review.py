"""The differences between two builds of the dashboards, in words: `python -m dashboards.review OLD NEW`, two directories written
by `python -m dashboards`.

Markdown for a pull request, also when there is no difference. Always exits with 0.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from dashboards.changes import INDENT, Model, changes
from gpu_fleet.safetext.markdown import block


def main(old: Path, new: Path) -> None:
    print("\n".join(review(read(old), read(new))))


def read(directory: Path) -> dict[str, Model]:
    """Models by uid."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(directory.glob("*.json"))}


def review(old: dict[str, Model], new: dict[str, Model]) -> Iterator[str]:
    """Lines of Markdown."""
    yield "## Dashboards"
    yield ""
    is_same = True
    for uid in sorted({*old, *new}):
        if uid not in old:
            said = [f"added, {len(new[uid]['panels'])} panels and rows"]
        elif uid not in new:
            said = ["removed"]
        else:
            said = [str(change) for change in changes(old[uid], new[uid])]
        if said:
            is_same = False
            yield f"**{(new.get(uid) or old[uid])['title']}** (`{uid}`)"
            yield ""
            for line in said:
                yield f"- {as_code(line)}"
            yield ""
    if is_same:
        yield "No dashboard changes."


def as_code(line: str) -> str:
    """A changed query or text is shown below its description, as a diff."""
    first, *changed = line.split("\n")
    return "\n".join(
        [first, *([block("\n".join(version.removeprefix(INDENT) for version in changed), "diff", "  ")] if changed else [])]
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m dashboards.review OLD_DIRECTORY NEW_DIRECTORY")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
