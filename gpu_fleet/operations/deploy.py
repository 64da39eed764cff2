"""`make preview` and `make up`: `pulumi preview` and `pulumi up` with the options for many hosts.

    python -m gpu_fleet.operations.deploy up --stack us-west-training [--host 'gpu-node-*'] [--yes ...]

Options that are not named here are passed to pulumi.

Pulumi saves the whole state twice per resource: gigabytes with a thousand hosts. Where a stack has hosts and rules alone and all
its hosts are in the state, it is saved once, at the end: what a killed run did without recording it, the next one finds on the
hosts and leaves as it is. A host that is new would be forgotten (state.py), and objects in Kubernetes, Grafana or an embedded
backend cannot be created a second time, so with one of these every step is saved.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from gpu_fleet.operations import backend, first_preview
from gpu_fleet.operations.arrivals import arrivals, missing
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.interrupted import settle
from gpu_fleet.operations.leftovers import end_leftovers
from gpu_fleet.operations.leftovers import variables as of_run
from gpu_fleet.operations.mimir import Mimir
from gpu_fleet.operations.output import run
from gpu_fleet.operations.results import results, shown
from gpu_fleet.operations.stack import Configuration, deployed_configuration, enter_project, stack_file
from gpu_fleet.operations.state import has_all
from gpu_fleet.stackfile.config import ConfigErrors, HostSpec
from gpu_fleet.stackfile.naming import resource_name
from gpu_fleet.stackfile.patterns import PatternError, expand
from gpu_fleet.stackfile.problems import listed

# Pulumi's default is 4 resources per processor; deploying a host is mostly waiting. One dead host must not stop the others.
FLAGS = ("--parallel", "200", "--continue-on-error")
_PREVIEW_FLAGS = ("--diff", "--parallel", "200")
SAVED_ONCE = {"PULUMI_SKIP_CHECKPOINTS": "true"}
_CANNOT_BE_CREATED_TWICE = {"kubernetes", "grafana", "backend", "monitoring"}

_DATA_WITHIN_S = 75  # and a scrape: DCGM needs half a minute for its first reading
_DATA_PAUSE_S = 3

# What a host needs, as patterns of resource URNs: its component, the bundle and the provider, which may have to be created first;
# an embedded backend too, whose addresses are among the settings of each host.
_NEEDED_BY_HOSTS = ("**::gpu-fleet:host:Fleet::*", "**gpu-fleet:host:Bundle::*", "**::pulumi:providers:gpu-fleet::*")
_BACKEND = "**gpu-fleet:backend:Backend**"
_HOST = "**gpu-fleet:host:Host::{}"


def environment(sections: Collection[str], given: Mapping[str, str], *, is_new: bool) -> dict[str, str]:
    """The variables of pulumi for a stack with these sections; `given`, those of the user, take precedence. `is_new`: the run
    brings up hosts that are not in the state."""
    usual = {} if is_new or _CANNOT_BE_CREATED_TWICE.intersection(sections) else SAVED_ONCE
    return {**usual, **given}


def matching(pattern: str, hosts: Mapping[str, HostSpec]) -> list[str]:
    """The hosts that a name, a shell pattern (`gpu-*`) or a range of the stack file (`gpu-[001:016]`) names, in the file's order.

    Raises OperationError for a pattern without a host, and when none of its hosts is deployed by `up`.
    """
    try:
        names = expand(pattern)
    except PatternError as error:
        raise OperationError(f"HOST={pattern} {error}: expected a name, gpu-* or gpu-[001:016]") from None
    found = [host for host in hosts.values() if any(fnmatchcase(host.name, name) for name in names)]
    if not found:
        raise OperationError(_no_such_host(pattern, names[0], hosts))
    deployed = [host.name for host in found if not _why_not_deployed(host)]
    if not deployed:
        raise OperationError(f"HOST={pattern}: {found[0].name} {_why_not_deployed(found[0])}")
    return deployed


def _why_not_deployed(host: HostSpec) -> str:
    if host.lost:
        return "is marked as lost; `make up` without HOST removes it from the stack"
    if host.connection == "pull":
        return "provisions itself (`connection: pull`): `make pull-bundle` publishes what it fetches"
    return ""


def _no_such_host(pattern: str, name: str, hosts: Mapping[str, HostSpec]) -> str:
    similar = difflib.get_close_matches(re.sub(r"[*?]", "", name), hosts, n=3)
    if similar:
        return f"HOST={pattern} matches no host of the stack: did you mean {listed(sorted(similar))}?"
    some = ", ".join(list(hosts)[:10]) or "none"
    return f"HOST={pattern} matches no host of the stack. Its hosts: {some}{', ...' if len(hosts) > 10 else ''}"


def targets(names: Iterable[str], sections: Collection[str]) -> list[str]:
    """Options of pulumi for these hosts and what they need."""
    urns = [*_NEEDED_BY_HOSTS, *([_BACKEND] if "backend" in sections else []), *(_HOST.format(resource_name(n)) for n in names)]
    return [f"--target={urn}" for urn in urns]


def left_out(names: Sequence[str], hosts: Mapping[str, HostSpec], sections: Collection[str], stack: str) -> str:
    """What a run for some hosts does not do."""
    others = sum(not _why_not_deployed(host) for host in hosts.values()) - len(names)
    rest = [f"{others} other host{'s' if others > 1 else ''}"] if others else []
    # The rules of a stack with hosts hold the inventory: a host that is new is expected to report from the next full run on.
    rest += [name for name in ("kubernetes", "rulers", "grafana") if name in sections]
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    if not rest:
        return f"Only {shown}, which is every host of the stack."
    return f"Only {shown}. Not included: {', '.join(rest)}. `make up STACK={stack}` deploys everything."


def arguments_of(verb: str, stack: str, host: str, configuration: Configuration) -> list[str]:
    """pulumi's arguments. Raises OperationError and ConfigErrors."""
    options = [*(FLAGS if verb == "up" else _PREVIEW_FLAGS)]
    if host:
        hosts = configuration.hosts().hosts
        names = matching(host, hosts)
        print(left_out(names, hosts, configuration.keys, stack), file=sys.stderr, flush=True)
        options += targets(names, configuration.keys)
    return [verb, "--stack", stack, *options]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gpu_fleet.operations.deploy", description="Preview or deploy a stack.", allow_abbrev=False
    )
    parser.add_argument("verb", choices=("preview", "up"))
    parser.add_argument("--stack", required=True)
    parser.add_argument("--host", default="", metavar="PATTERN", help="a name, gpu-* or gpu-[001:016]; default: everything")
    given, others = parser.parse_known_args(arguments)
    try:
        enter_project()
        configuration = deployed_configuration(given.stack)
        command = ["pulumi", *arguments_of(given.verb, given.stack, given.host, configuration), *others]
        hosts = _deployed(configuration, given.host)
        is_new = given.verb == "up" and _brings_up_new_ones(given.stack, hosts, configuration)
    except (OperationError, ConfigErrors) as error:
        print(error, file=sys.stderr)
        return 1
    variables = environment(configuration.keys, os.environ, is_new=is_new)
    if given.verb == "up":
        began = time.time()
        status, changed = run_pulumi(given.stack, command, variables, list(hosts))
        _await_data(configuration, given.stack, changed, began)
        return status
    return first_preview.run(command, variables, stack_file(given.stack))


def _deployed(configuration: Configuration, pattern: str) -> dict[str, HostSpec]:
    """The hosts that a run should reach; none where the stack file has errors, which the program then reports."""
    try:
        hosts = configuration.hosts().hosts
    except ConfigErrors:
        return {}
    names = matching(pattern, hosts) if pattern else [name for name, host in hosts.items() if not _why_not_deployed(host)]
    return {name: hosts[name] for name in names}


def _brings_up_new_ones(stack: str, hosts: Mapping[str, HostSpec], configuration: Configuration) -> bool:
    """Whether some of the hosts are not in the state. What a killed run left open is settled first. Raises OperationError and
    ConfigErrors."""
    release_locks(stack)
    return not has_all(settle(stack, configuration), hosts.values())


def release_locks(stack: str) -> None:
    """Raises OperationError."""
    for whose in backend.released(stack):
        print(f"A run was killed and left the stack locked ({whose}): released.", file=sys.stderr)
    if whose := backend.holder(stack):
        # Pulumi would refuse too, after what that run has open was settled as if it had been killed.
        raise OperationError(
            f"the stack is currently locked by {whose}: another run is at work on it. Wait for its end. If it was killed, "
            f"`pulumi cancel --stack {stack}` releases the lock"
        )
    _end_leftovers(stack)


def _end_leftovers(stack: str) -> None:
    if count := end_leftovers(stack):
        print(f"A run was killed and left {count} of Pulumi's plugins running: they have ended.", file=sys.stderr)


def _await_data(configuration: Configuration, stack: str, hosts: Sequence[str], since: float) -> None:
    """A host works when its samples arrive: says of which of these hosts something does not. Ctrl-C ends the wait."""
    try:
        config = configuration.load()
        if not hosts or config.metrics is None or config.metrics.queries is None:
            return
        within_s = _DATA_WITHIN_S + config.scrape_interval_s
        store, until = Mimir.of(config, stack), time.monotonic() + within_s
        print("Waiting for the hosts' samples in the metrics store.", file=sys.stderr, flush=True)
        specs = [config.hosts[name] for name in hosts if name in config.hosts]
        while True:
            arrived, now = arrivals(config, store), time.time()
            # What arrived before this run says nothing about it.
            new = replace(arrived, newest={host: at for host, at in arrived.newest.items() if at >= since})
            lacking = {host.name: lines for host in specs if (lines := missing(host, new, now))}
            if not lacking or time.monotonic() > until:
                break
            time.sleep(_DATA_PAUSE_S)
    except KeyboardInterrupt:
        return
    except (OperationError, ConfigErrors) as error:
        print(f"Whether the hosts' samples arrive is not known: {error}")
        return
    if lacking:
        print(f"Of {_hosts(len(lacking))} not everything arrived within {within_s} s; docs/when-up-fails.md lists causes:")
        for name, lines in list(lacking.items())[:10]:
            print(f"  {name}: {'; '.join(lines)}")
        if len(lacking) > 10:
            print(f"  and {len(lacking) - 10} more")
    else:
        print(f"Samples of {'this host' if len(hosts) == 1 else f'all {len(hosts)} hosts'} have arrived.")


def _hosts(count: int) -> str:
    return f"{count} host{'' if count == 1 else 's'}"


def run_pulumi(stack: str, command: Sequence[str], variables: Mapping[str, str], hosts: Sequence[str]) -> tuple[int, list[str]]:
    """Runs pulumi, then prints what it did on each host. Its status, and the hosts that it created or changed."""
    changed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gpu-fleet-up-") as directory:
        events = Path(directory) / "events"
        # Ctrl-C reaches the whole process group: pulumi stops its work in order, and this process waits for it.
        signal.signal(signal.SIGINT, lambda *_: None)
        process = subprocess.Popen(
            [*command, f"--event-log={events}"], env={**variables, **of_run(stack), "PULUMI_DEBUG_COMMANDS": "true"}
        )
        signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
        status = process.wait()
        if status < 0:
            _end_leftovers(stack)
            print(f"pulumi was killed (signal {-status}). `make up STACK={stack}` completes what it was doing.", file=sys.stderr)
        if events.exists():
            with events.open() as lines:
                found = results(lines, hosts)
            if found:
                print(f"\n{shown(found)}", flush=True)
                changed = [name for name, result in found.items() if result.word in ("created", "changed")]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return (status if status >= 0 else 128 - status), changed


if __name__ == "__main__":
    run(main)
