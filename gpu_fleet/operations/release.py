"""`make release-notes`: what .github/workflows/release.yml publishes with a tag.

    python -m gpu_fleet.operations.release --tag v0.1.0 --to build/release-notes.md

The version is in gpu_fleet/provider/schema.json alone. A tag of another version, and a changelog without that version's notes and
date, are refused: users read *Required changes* by version, and `git describe` says which one they have.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpu_fleet.operations.output import run
from gpu_fleet.stackfile.config import ROOT
from gpu_fleet.version import VERSION

_HEADING: Final = re.compile(r"(?m)^## (?P<version>\S+) - (?P<date>\S+)$")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make release-notes", description="Write the notes of a release from CHANGELOG.md.")
    parser.add_argument("--tag", default="", help="the tag to release; without it the version of this checkout, released or not")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE")
    options = parser.parse_args(arguments)
    changelog = (ROOT / "CHANGELOG.md").read_text()
    if options.tag and (found := errors(options.tag, VERSION, changelog)):
        print("\n".join(found), file=sys.stderr)
        return 1
    options.to.parent.mkdir(parents=True, exist_ok=True)
    options.to.write_text(notes(VERSION, changelog) + "\n")
    print(f"wrote {options.to}")
    return 0


def errors(tag: str, version: str, changelog: str) -> list[str]:
    """Everything that stops a release of `tag`, each with its fix; empty: nothing does."""
    found = []
    if tag != f"v{version}":
        found.append(
            f"TAG: {tag!r}, but the version in gpu_fleet/provider/schema.json is {version}. Expected v{version}: "
            "delete the tag, change the version in a commit, and tag that commit."
        )
    heading = _HEADING.search(changelog)
    if heading is None or heading["version"] != version:
        first = f"its first heading is {heading[0]!r}" if heading else "it has no heading like that"
        found.append(f"CHANGELOG.md: expected '## {version} - DATE' as its first version; {first}.")
    elif not _is_date(heading["date"]):
        found.append(
            f"CHANGELOG.md: '{heading[0]}'. Write the day of the release (YYYY-MM-DD) in place of {heading['date']!r}, commit, "
            "and tag that commit."
        )
    elif not notes(version, changelog):
        found.append(f"CHANGELOG.md: '{heading[0]}' has no text. Write what users need to know before updating.")
    return found


def notes(version: str, changelog: str) -> str:
    """The section of a version, without its heading; empty if there is none."""
    parts = re.split(r"(?m)^## ", changelog)[1:]
    return next((text.partition("\n")[2].strip() for text in parts if text.split(maxsplit=1)[:1] == [version]), "")


def _is_date(text: str) -> bool:
    try:
        return bool(datetime.date.fromisoformat(text))
    except ValueError:
        return False


if __name__ == "__main__":
    run(main)
