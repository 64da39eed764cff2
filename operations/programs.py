"""The programs that work on a stack needs on this machine: what `make preview`, `up` and `check` get before they begin.

    python -m operations.programs --stack us-west-training

Only real ones. The lab's stand-ins, for the stack `dev` and for trying out, are installed by `python -m lab.standins`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from operations.stack_file import OperationError, stack_file
from stackfile.config import sections_of
from stackfile.stand_ins import TRIAL
from toolchain import Installer, ToolchainError

_ALWAYS = ("pulumi", "pulumi-language-python")
_OF_SECTION = {
    "kubernetes": ("pulumi-resource-kubernetes", "helm"),
    "grafana": ("pulumi-resource-grafana",),
    "backend": ("pulumi-resource-command", "mimir", "loki", "grafana"),
}


def needed_for(file: Path) -> list[str]:
    """The names of the programs for the stack of this file, in no order."""
    sections = sections_of(file)
    return [*_ALWAYS, *(name for section, names in _OF_SECTION.items() if section in sections for name in names)]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m operations.programs", description="Install what work on a stack needs.")
    parser.add_argument("--stack", required=True)
    stack = parser.parse_args(arguments).stack
    try:
        Installer().install(needed_for(stack_file(stack)))
    except OperationError as error:
        print(error, file=sys.stderr)
        return 1
    except ToolchainError as error:
        print(
            f"\nThe stack {stack} needs programs that could not be installed:\n\n{str(error).strip()}\n\n"
            f"To try it out with the lab's stand-ins of them, without any host over SSH or real cluster: set {TRIAL}=1.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
