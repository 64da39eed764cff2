"""`make check`: how every host and Helm release of a stack differs from what was applied last, as one table. It changes nothing.

    python -m operations.check --stack us-west-training

It is `pulumi refresh --preview-only`, which asks all hosts at once through the engine and writes no state: logins and secrets
take the same way as in every other run. What it knows of a host, or of the objects of a Helm release, is what the provider's Read
tells. Rules, dashboards and everything else of a stack are left to `pulumi refresh`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from operations.stack_file import OperationError, stack_file
from operations.table import table
from stackfile.config import ConfigErrors, hosts_named_in

_LOOKED_AT = ("**gpu-fleet:host:Host::**", "**gpu-fleet:kubernetes:Manifest::**")  # of resource URNs
_AT_ONCE = "200"
_LINES = 5  # of a host's differences; the rest is counted
_ENGINE_PREFIX = "warning: Refreshed resource is in an unhealthy state:\n* "
_FINE = ("ok", "lost")


@dataclass(frozen=True, kw_only=True)
class HostState:
    """`host`: its name, or `release NAME`.

    `state`: ok, drift, unreachable, failed (it could not be checked, or a check on it failed), not installed, lost.
    """

    host: str
    state: str
    lines: tuple[str, ...] = ()


def states(refresh: Mapping[str, Any], listed: Mapping[str, bool]) -> list[HostState]:
    """One per host and release, by name.

    `refresh`: what `pulumi refresh --json` printed. `listed`: host of the stack file -> is it lost.
    """
    told: dict[str, str] = {}
    for diagnostic in refresh.get("diagnostics", ()):
        told[diagnostic.get("urn", "")] = told.get(diagnostic.get("urn", ""), "") + diagnostic["message"]
    found = {}
    for step in refresh.get("steps", ()):
        inputs = step["oldState"]["inputs"]
        host = inputs.get("host") or f"release {inputs['release']}"
        found[host] = _state(host, step, told.get(step["urn"], ""))
    for host, is_lost in listed.items():
        if is_lost and host in found:
            found[host] = HostState(host=host, state="lost", lines=("the next `up` takes it out of the stack",))
        elif not is_lost and host not in found:
            found[host] = HostState(host=host, state="not installed", lines=("no `up` has reached it yet",))
    return [found[host] for host in sorted(found)]


def _state(host: str, step: Mapping[str, Any], told: str) -> HostState:
    if step["op"] == "delete":
        return HostState(host=host, state="not installed", lines=("nothing of gpu-fleet is there any more",))
    if _ENGINE_PREFIX in told:
        cause, *log = told.partition(_ENGINE_PREFIX)[2].strip().removeprefix(f"{host.removeprefix('release ')}: ").splitlines()
        if cause.startswith("unreachable: "):
            return HostState(host=host, state="unreachable", lines=(cause.removeprefix("unreachable: "), *log))
        return HostState(host=host, state="failed", lines=(cause, *log))
    drift = tuple(step["newState"]["outputs"].get("drift") or ())
    return HostState(host=host, state="drift" if drift else "ok", lines=drift)


def report(found: list[HostState], stack: str) -> str:
    """The table, worst hosts last where a terminal ends, a count, and what mends it."""
    if not found:
        return f"The stack {stack} has neither hosts nor Helm releases."
    order = ("ok", "lost", "drift", "failed", "not installed", "unreachable")
    rows = [
        (one.host, f"drift {len(one.lines)}" if one.state == "drift" else one.state, "\n".join(_first(one.lines)))
        for one in sorted(found, key=lambda one: order.index(one.state))
    ]
    count = Counter(one.state for one in found)
    summary = ", ".join(f"{count[state]} {state}" for state in order if count[state])
    paragraphs = [table(("HOST", "STATE", "DIFFERENCES"), rows), f"{_counted(found)}: {summary}."]
    if count.keys() & {"drift", "not installed"}:
        paragraphs.append(f"This shows what it takes to mend that, asks, and does it:\n    pulumi up --refresh --stack {stack}")
    if count.keys() & {"failed", "unreachable"}:
        paragraphs.append("docs/when-up-fails.md says what to do about each cause.")
    return "\n\n".join(paragraphs)


def _counted(found: list[HostState]) -> str:
    releases = sum(one.host.startswith("release ") for one in found)
    counts = {"host": len(found) - releases, "release": releases}
    return " and ".join(f"{count} {noun}{'s' if count > 1 else ''}" for noun, count in counts.items() if count)


def _first(lines: tuple[str, ...]) -> tuple[str, ...]:
    return lines if len(lines) <= _LINES else (*lines[:_LINES], f"and {len(lines) - _LINES} more")


def refresh_preview(stack: str) -> dict[str, Any]:
    """Raises OperationError with what pulumi said."""
    options = ["--preview-only", "--json", *(f"--target={urns}" for urns in _LOOKED_AT), "--parallel", _AT_ONCE, "--stack", stack]
    try:
        done = subprocess.run(["pulumi", "--non-interactive", "refresh", *options], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise OperationError("pulumi is not on the PATH: `make check` brings its own") from None
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        document = {}
    if done.returncode != 0 or not document:
        said = [entry["message"] for entry in document.get("diagnostics", ()) if entry.get("severity") == "error"]
        raise OperationError("\n".join([*said, done.stderr or done.stdout]).strip())
    return document


def main(arguments: list[str]) -> int:
    """Exit status: 0 when every host is as it was left, 1 when one is not."""
    parser = argparse.ArgumentParser(prog="python -m operations.check", description="Look for drift on every host.")
    parser.add_argument("--stack", required=True)
    stack = parser.parse_args(arguments).stack
    try:
        hosts = hosts_named_in(stack_file(stack)).hosts
        found = states(refresh_preview(stack), {name: spec.lost for name, spec in hosts.items() if spec.connection != "pull"})
    except (OperationError, ConfigErrors) as error:
        print(error, file=sys.stderr)
        return 1
    print(report(found, stack))
    return int(any(one.state not in _FINE for one in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
