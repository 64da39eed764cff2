"""`make up`: `pulumi up` with what a run over many hosts wants. What this does not know of goes to pulumi as it is.

    python -m operations.up --stack us-west-training [--yes ...]

Pulumi saves the whole state twice per resource: gigabytes with a thousand hosts. That of a stack of hosts and rules is saved
once, at the end: what a run that was killed did without writing it down, the next one finds on the hosts and leaves as it is.
With Kubernetes, Grafana or an embedded backend every step is saved: their objects, made a second time, would be errors.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from operations.stack_file import OperationError, stack_file
from stackfile.config import sections_of

# Pulumi works on 4 resources per processor by default; hosts mostly wait for themselves. One dead host must not stop the others.
FLAGS = ("--parallel", "200", "--continue-on-error")
SAVED_ONCE = {"PULUMI_SKIP_CHECKPOINTS": "true"}
_NOT_MADE_TWICE = {"kubernetes", "grafana", "backend"}


def environment(path: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Of pulumi for the stack of this file; what the person set stays."""
    usual = {} if _NOT_MADE_TWICE & sections_of(path) else SAVED_ONCE
    return {**usual, **given}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m operations.up", description="Bring a stack to its state.")
    parser.add_argument("--stack", required=True)
    given, others = parser.parse_known_args(arguments)
    try:
        told = environment(stack_file(given.stack), os.environ)
        # In our place, so that Ctrl-C is pulumi's alone.
        os.execvpe("pulumi", ["pulumi", "up", "--stack", given.stack, *FLAGS, *others], told)  # noqa: S606
    except OperationError as error:
        print(error, file=sys.stderr)
    except FileNotFoundError:
        print("pulumi is not on the PATH: `make up` brings its own", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
