"""The programs that a stack needs on this machine: `make preview`, `up` and `check` install them first.

    python -m gpu_fleet.operations.programs --stack us-west-training

Only real ones. The lab's stand-ins, for the stack `dev` and for trials, are installed by `python -m lab.standins`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection

from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.output import own_lines, run
from gpu_fleet.operations.stack import configuration, enter_project, stack_file
from gpu_fleet.stackfile.config import ConfigErrors
from gpu_fleet.stackfile.stand_ins import TRIAL
from gpu_fleet.toolchain import ToolchainError, environment
from gpu_fleet.toolchain.install import Installer
from gpu_fleet.toolchain.progress import Progress

ALWAYS = ("pulumi", "pulumi-language-python")
_OF_SECTION = {
    "kubernetes": ("pulumi-resource-kubernetes", "helm"),
    "grafana": ("pulumi-resource-grafana",),
    "backend": ("pulumi-resource-command", "mimir", "loki", "grafana"),
}


def needed_for(sections: Collection[str]) -> list[str]:
    """The programs that a stack with these sections needs beyond those that every stack needs."""
    if "monitoring" in sections:  # it has a Grafana and rulers by default
        sections = {*sections, "grafana"}
    return [name for section, names in _OF_SECTION.items() if section in sections for name in names]


def _errors_of_file(stack: str) -> str:
    """No program is needed to find them: whoever has to install some can correct the file meanwhile."""
    try:
        configuration(stack).load()
    except (OperationError, ConfigErrors) as error:
        return f"{error}\n"
    return ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gpu_fleet.operations.programs", description="Install what work on a stack needs."
    )
    parser.add_argument("--stack", required=True)
    stack = parser.parse_args(arguments).stack
    try:
        enter_project()
        stack_file(stack)  # refuses a name without a file before anything is downloaded
        progress = Progress(own_lines(), quiet=True)
        Installer(progress=progress).install(ALWAYS)
        os.environ.update(environment())  # where pulumi has to be asked for the sections
        if names := needed_for(configuration(stack).keys):
            Installer(progress=progress).install(names)
    except OperationError as error:
        print(error, file=sys.stderr)
        return 1
    except ToolchainError as error:
        print(
            f"{_errors_of_file(stack)}\nThe stack {stack} needs programs that could not be installed:\n\n{str(error).strip()}\n\n"
            f"To try it out with the lab's stand-ins of them, without any host over SSH or real cluster: set {TRIAL}=1.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    run(main)
