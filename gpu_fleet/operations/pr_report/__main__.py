"""The command: `python -m gpu_fleet.operations.pr_report --base main`."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.output import run
from gpu_fleet.operations.pr_report.pictures import Picture, changed_files, checkout, pictures
from gpu_fleet.operations.pr_report.report import changed, markdown
from gpu_fleet.operations.stack import STACKS, enter_project, project
from gpu_fleet.stackfile.config import ROOT

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

_ALSO = 5  # each takes as long as the report itself: of more, such as while a site is down for weeks, every stack is named


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make pr-report", description="What the branch changes in every stack.")
    parser.add_argument("--base", default="main", help="the branch or commit that is compared with, default %(default)s")
    parser.add_argument("--to", type=Path, metavar="FILE", help="write the whole report there")
    parser.add_argument("--limit", type=int, metavar="CHARACTERS", help="of what is printed; GitHub takes 65,536 in a comment")
    parser.add_argument("--price", type=float, help="of 1,000 active series a month")
    parser.add_argument("--preview", action="store_true", help="add `pulumi preview` of each stack that changes: needs its login")
    parser.add_argument("--stacks", type=Path, metavar="FILE", help="write the names of the stacks that change there, as JSON")
    parser.add_argument(
        "--also", nargs="*", default=[], metavar="COMMIT", help="--stacks names those that differ from one of these, too"
    )
    given = parser.parse_args(arguments)
    try:
        enter_project()
        with checkout(given.base) as base:
            sides = pictures(base), pictures(project())
        also = {*given.also} - {given.base}
        others = set(sides[1]) if len(also) > _ALSO else {one for commit in also for one in _differing(commit, sides[1])}
        files = changed_files(given.base)
    except OperationError as error:
        print(error, file=sys.stderr)
        return 1
    changes = changed(*sides, given.price)
    if given.stacks:
        _write(given.stacks, json.dumps(sorted({one.stack for one in changes if not one.is_removed} | others)))
    deployed = [one.stack for one in changes if given.preview and not one.is_removed and not one.fails]
    previewed = {stack: _preview(stack) for stack in deployed}
    previews = {stack: text for stack, (text, _) in previewed.items()}
    compared = len({*sides[0], *sides[1]})
    if given.to:
        _write(given.to, markdown(changes, base=given.base, compared=compared, previews=previews, files=files))
    print(markdown(changes, base=given.base, compared=compared, limit=given.limit, previews=previews, files=files), end="")
    is_fine = not any(one.fails or one.breaks_policy for one in changes) and all(done for _, done in previewed.values())
    return 0 if is_fine else 1


def _differing(commit: str, new: Mapping[str, Picture]) -> list[str]:
    with checkout(commit) as base:
        return [one.stack for one in changed(pictures(base), new) if not one.is_removed]


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def _preview(stack: str) -> tuple[str, bool]:
    """What it prints, and whether it succeeded. `make` installs the stack's programs first, which a runner of a CI lacks."""
    command = ["make", "--silent", "preview", f"STACK={stack}", f"STACKS={os.environ.get(STACKS, '')}"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return _COLOUR.sub("", done.stdout), done.returncode == 0


if __name__ == "__main__":
    run(main)
