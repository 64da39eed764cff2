"""`make destroy`: says what goes and what stays, asks, and runs `pulumi destroy` with the options for many hosts.

    python -m gpu_fleet.operations.destroy --stack us-west-training [--yes]

What goes is read from the state, so the stack file may have errors. A host that does not answer stops nothing and stays
in the stack.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpu_fleet.operations.deploy import FLAGS, SAVED_ONCE, release_locks, run_pulumi
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.interrupted import is_open, settle
from gpu_fleet.operations.output import run
from gpu_fleet.operations.stack import deployed_configuration, enter_project, stack_file
from gpu_fleet.operations.state import HOST, exported, resources_of
from gpu_fleet.stackfile.config import ConfigErrors, HostSpec
from gpu_fleet.stackfile.monitoring import is_server

_MOST = 10  # names in a line
# Where a type of resource is listed, in this order, and what it is called there.
_PLACES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "Kubernetes": (
        ("kubernetes:helm.sh/v3:Release", "Helm release"),
        ("kubernetes:", "object"),
        ("gpu-fleet:kubernetes:NodeMark", "node mark"),
        ("gpu-fleet:kubernetes:Manifest", ""),
        ("gpu-fleet:kubernetes:Cluster", ""),
    ),
    "Grafana": (
        ("grafana:oss/folder:Folder", "folder"),
        ("grafana:oss/dashboard:Dashboard", "dashboard"),
        ("grafana:alerting/ruleGroup:RuleGroup", "rule group"),
        ("grafana:", "other object"),
    ),
    "Rulers": (("gpu-fleet:ruler:RuleGroup", "rule group"), ("gpu-fleet:ruler:AlertmanagerConfig", "Alertmanager configuration")),
    "Processes": (("command:", "command that ends what it started"),),
}


def removed(resources: Iterable[Mapping[str, Any]]) -> list[str]:
    """What `pulumi destroy` deletes, one line for each place. `resources`: those of the state."""
    found = [resource for resource in resources if resource.get("custom") and not resource.get("external")]
    lines = []
    if hosts := hosts_in(found):
        lines.append(f"Hosts: all that gpu-fleet placed on {_some(sorted(hosts))}: services, programs, files, users, packages")
    for place, kinds in _PLACES.items():
        counts: Counter[str] = Counter()
        for resource in found:
            word = next((word for prefix, word in kinds if resource["type"].startswith(prefix)), "")
            counts.update([word] if word else [])
        if counts:
            counted = [_count(counts[word], word) for _, word in kinds if counts[word]]
            lines.append(f"{place}: {', '.join(counted)}")
    return lines


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def hosts_in(resources: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Name -> URN of the hosts in a state."""
    return {str(one["inputs"]["host"]): str(one["urn"]) for one in resources if one["type"] == HOST}


def stays(stack: str, resources: Sequence[Mapping[str, Any]], hosts: Sequence[HostSpec]) -> list[str]:
    """What it leaves. `hosts`: those of the stack file."""
    lines = ["On the hosts: everything that gpu-fleet did not place"] if hosts_in(resources) else []
    lines.append("In Mimir, Loki and Prometheus: what the hosts have sent")
    if monitoring := [host.name for host in hosts if is_server(host)]:
        lines.append(f"On {_some(monitoring)}: the data of Mimir, Loki and Grafana")
    if pulling := [host.name for host in hosts if host.connection == "pull"]:
        lines.append(f"{_some(pulling)}, which provision themselves: run `/opt/gpu-fleet/bin/gpu-fleet-pull --remove` there")
    if any(one["type"] == "grafana:oss/folder:Folder" for one in resources):
        lines.append("In Grafana: a folder in which others have put something")
    lines.append(f"The stack file, and the empty stack with its history: `pulumi stack rm {stack}` deletes both")
    return lines


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _MOST
    return ", ".join(names[:_MOST]) + (f" and {rest} more" if rest > 0 else "")


def environment(resources: Iterable[Mapping[str, Any]], given: Mapping[str, str]) -> dict[str, str]:
    """The variables of pulumi. Removing a host or a rule group twice costs nothing, so the state of these alone is saved once."""
    ours = ("gpu-fleet:", "pulumi:")
    return {**(SAVED_ONCE if all(one["type"].startswith(ours) for one in resources) else {}), **given}


def left(stack: str, resources: Sequence[Mapping[str, Any]]) -> str:
    """What to do about hosts that could not be cleaned; empty when there is none."""
    hosts = hosts_in(resources)
    if not hosts:
        return ""
    some = "\n".join(f"    pulumi state delete --stack {stack} '{urn}'" for urn in list(hosts.values())[:_MOST])
    return (
        f"Not removed: {_some(sorted(hosts))}. Run it again once they answer. A host that no longer exists leaves the stack\n"
        f"without being contacted, in `make shell STACK={stack}`:\n{some}"
    )


def _confirmed(stack: str) -> bool:
    if not sys.stdin.isatty():
        raise OperationError(f"nothing was removed: without a terminal to ask on, use `make destroy STACK={stack} YES=1`")
    try:
        return input(f"Remove all of this? Type the stack's name ({stack}): ").strip() == stack
    except (EOFError, KeyboardInterrupt):
        print()
        return False


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gpu_fleet.operations.destroy", description="Remove a stack.", allow_abbrev=False
    )
    parser.add_argument("--stack", required=True)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    given = parser.parse_args(arguments)
    stack = given.stack
    try:
        enter_project()
        stack_file(stack)
        release_locks(stack)
        resources = resources_of(_settled(stack))
        if not any(one.get("custom") and not one["type"].startswith("pulumi:") for one in resources):
            print(f"The stack {stack} has nothing that could be removed.")
            return 0
        print(f"What goes with the stack {stack}:")
        print("\n".join(f"  {line}" for line in removed(resources)))
        print("What stays:")
        print("\n".join(f"  {line}" for line in stays(stack, resources, _hosts_of(stack))), flush=True)
        if not given.yes and not _confirmed(stack):
            print("Nothing was removed.")
            return 1
    except OperationError as error:
        print(error, file=sys.stderr)
        return 1
    command = ["pulumi", "destroy", "--stack", stack, "--yes", "--skip-preview", *FLAGS]
    status, _ = run_pulumi(stack, command, environment(resources, os.environ), list(hosts_in(resources)))
    if status != 0 and (what := left(stack, resources_of(exported(stack)))):
        print(what, file=sys.stderr)
    return status


def _settled(stack: str) -> dict[str, Any]:
    """The state with what a killed run left open; what only a stack file without errors says how to find is left out. Raises
    OperationError."""
    state = exported(stack)
    if not is_open(state):
        return state
    try:
        return settle(stack, deployed_configuration(stack), removes=True)
    except ConfigErrors as error:
        print(f"A run was killed, and what it was creating cannot be looked for and will stay:\n{error}", file=sys.stderr)
        return exported(stack)


def _hosts_of(stack: str) -> list[HostSpec]:
    """Of the stack file; none where it has errors, which is no reason to keep the stack."""
    try:
        return list(deployed_configuration(stack).hosts().hosts.values())
    except (OperationError, ConfigErrors):
        return []


if __name__ == "__main__":
    run(main)
