"""`make policies`: what a stack would register, checked against the policies of gpu_fleet/policy/, without a login, secrets or
hosts.

    python -m gpu_fleet.operations.policies --stack us-west-training

Exit status: 0, 1 when a policy that is not advisory is violated or a stack cannot be deployed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from typing import Final

from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.output import run
from gpu_fleet.operations.pr_report.pictures import Picture, pictures
from gpu_fleet.operations.stack import enter_project, project, stack_file
from gpu_fleet.policy.checks import Grouped, findings

# The stack of `make dev` consists of what this policy refuses everywhere else.
_SIMULATED: Final = "dev"
_NO_STAND_INS: Final = "no-stand-ins"


def report(stack: str, picture: Picture, found: Grouped) -> Iterator[str]:
    if picture.environments:
        yield (
            f"{stack}: Pulumi ESC environments cannot be opened without a login, so values that come from them were not checked: "
            f"{picture.environments}. `pulumi preview --policy-pack gpu_fleet/policy --stack {stack}` checks them."
        )
    if picture.error:
        verdict = "ends early without these values" if picture.environments else "cannot be deployed"
        yield f"{stack} {verdict}, so only a part of it was checked:\n{picture.error}"
    for (policy, violation), resources in found.items():
        more = f" and {len(resources) - 1} more" if len(resources) > 1 else ""
        yield (
            f"{stack}: {policy.name}{' (advisory)' if policy.is_advisory else ''}: {resources[0]}{more}\n"
            f"  found:    {violation.found}\n  expected: {violation.expected}\n  fix:      {violation.fix}"
        )
    if not found and not picture.error:
        yield f"{stack}: no violation in {len(picture.resources)} resources"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make policies", description="Check what stacks would register against the policies.")
    parser.add_argument("--stack", default="", help="default: every stack file but dev, or the examples where there is no other")
    given = parser.parse_args(arguments)
    try:
        directory = enter_project()
        files = {given.stack: os.path.relpath(stack_file(given.stack), directory)} if given.stack else None
        checked = pictures(project(), files)
    except OperationError as error:
        print(error, file=sys.stderr)
        return 1
    has_failed = False
    for stack, picture in checked.items():
        found = findings((one.type, one.name, one.inputs) for one in picture.resources)
        if stack == _SIMULATED:
            found = {key: resources for key, resources in found.items() if key[0].name != _NO_STAND_INS}
        print("\n\n".join(report(stack, picture, found)) + "\n")
        has_failed |= (picture.error is not None and not picture.environments) or any(
            not policy.is_advisory for policy, _ in found
        )
    return 1 if has_failed else 0


if __name__ == "__main__":
    run(main)
