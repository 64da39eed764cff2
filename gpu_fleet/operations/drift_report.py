"""`make drift-report`: `make check` for every stack, as one Markdown text for the issue of a nightly job.

    python -m gpu_fleet.operations.drift_report --to build/drift.md

Exit status: 0 when every stack is as it was deployed, 1 when one is not, 2 when one could not be checked.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.output import run
from gpu_fleet.operations.stack import enter_project, stack_files
from gpu_fleet.safetext.markdown import block, code
from gpu_fleet.stackfile.config import ROOT

TITLE = "Drift: stacks that differ from what was deployed"
_MOST = 12_000  # characters per stack; GitHub takes 65,536 in a comment or an issue


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make drift-report", description="Check every stack for drift.")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE")
    to = parser.parse_args(arguments).to
    try:
        enter_project()
    except OperationError as error:
        print(error, file=sys.stderr)
        return 2
    results = {stack: check(stack) for stack in stack_files() if stack != "dev"}
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(text := markdown(results))
    print(text, end="")
    return max((_status(code, output) for code, output, _ in results.values()), default=0)


def check(stack: str) -> tuple[int, str, str]:
    """Exit status, output and errors of `make check` for the stack."""
    command = [sys.executable, "-m", "gpu_fleet.operations.check", "--stack", stack]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def _status(code: int, output: str) -> int:
    """A check that could not be made prints no table."""
    return 0 if code == 0 else 1 if output else 2


def markdown(results: dict[str, tuple[int, str, str]]) -> str:
    words = {0: "as deployed", 1: "**differs**", 2: "**could not be checked**"}
    lines = [f"# {TITLE}", "", "| stack | |", "|---|---|"]
    lines += [f"| {code(stack)} | {words[_status(status, output)]} |" for stack, (status, output, _) in results.items()]
    for stack, (status, output, error) in results.items():
        if _status(status, output):
            text = "\n\n".join(part for part in (output, error) if part)
            lines += ["", f"## {code(stack)}", "", block(text[:_MOST] + ("\n..." if len(text) > _MOST else ""))]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run(main)
