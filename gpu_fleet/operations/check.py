"""`make check`: how every host, Helm release, object of a cluster, rule group and Grafana resource of a stack differs from what
was last deployed, as one table. It changes nothing.

    python -m gpu_fleet.operations.check --stack us-west-training

It runs `pulumi refresh --preview-only`, which reads all hosts at once and writes no state: logins and secrets are those of every
other run. A store that lost its disk has lost rules and dashboards, and no host looks different for it.

A host counts as fine only when the engine reported its state, and when the metrics store has recent samples of it, of each kind:
what failed, was interrupted, was never reported or arrives nowhere is an error. Hosts in pull mode are read there alone. So are
the nodes of a Kubernetes cluster; which there are is asked of its API server.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpu_fleet.operations.arrivals import Arrivals, arrivals, is_silent, missing, missing_of_node
from gpu_fleet.operations.cluster import monitored_nodes
from gpu_fleet.operations.engine import OperationError, error_of, pulumi
from gpu_fleet.operations.mimir import Mimir
from gpu_fleet.operations.output import run
from gpu_fleet.operations.stack import Configuration, deployed_configuration, enter_project
from gpu_fleet.operations.state import exported, resources_of
from gpu_fleet.operations.table import table
from gpu_fleet.provider.resources.cluster import Node
from gpu_fleet.stackfile.config import ConfigErrors, HostSpec
from gpu_fleet.stackfile.kubernetes import Kubernetes
from gpu_fleet.stackfile.problems import listed

_HOST, _RELEASE = "gpu-fleet:host:Host", "gpu-fleet:kubernetes:Manifest"
_RULES, _ALERTMANAGER, _GRAFANA = "gpu-fleet:ruler:RuleGroup", "gpu-fleet:ruler:AlertmanagerConfig", "grafana:"
_OBJECT, _HELM = "kubernetes:", "kubernetes:helm.sh/"  # what a Helm release placed is checked as its Manifest
_TARGETS = (*(f"**{type_}::**" for type_ in (_HOST, _RELEASE, _RULES, _ALERTMANAGER)), f"**${_GRAFANA}**::**")
_PARALLEL = "200"
_MOST_LINES = 5  # of a host's differences; the rest is counted
_FINE = ("ok", "lost")
# pulumi 3.259.0: --event-log exists only with this variable. The Automation API reads the same log, so its form is stable.
_WITH_EVENT_LOG = {"PULUMI_DEBUG_COMMANDS": "true"}


@dataclass(frozen=True, kw_only=True)
class HostState:
    """`host`: its name; `release NAME`, `node NAME` or `object KIND NAME` of a cluster; in a store `rules NAMESPACE/NAME`,
    `alertmanager TENANT` or `grafana NAME`.

    `state`: ok, drift, silent (nothing of it arrives), partial (something of it does not), unreachable, failed (it could not be
    checked, or a check on it failed), not installed, lost, unknown.
    """

    host: str
    state: str
    lines: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        word, has_name, _ = self.host.partition(" ")
        return word if has_name else "host"


@dataclass(frozen=True, kw_only=True)
class Refresh:
    """`events`: of the engine, in order. `errors`: why the run as a whole failed; empty when it succeeded."""

    events: Sequence[Mapping[str, Any]]
    errors: tuple[str, ...] = ()


@dataclass
class _Outcome:
    """What the engine reported of one resource."""

    step: Mapping[str, Any] | None = None
    has_failed: bool = False
    errors: list[str] = field(default_factory=list)


def states(deployed: Mapping[str, str], refresh: Refresh, listed: Mapping[str, bool]) -> list[HostState]:
    """One per host and release, by name.

    `deployed`: URN of each resource in the stack's state -> its host or release. `listed`: host of the stack file -> is it lost.
    """
    outcomes = _outcomes(refresh.events)
    found = {name: _state(name, outcomes.get(urn, _Outcome())) for urn, name in deployed.items()}
    for name, one in found.items():
        if one.kind == "host" and name not in listed:
            note = "not in the stack file any more: the next `up` removes it, or renames its machine"
            found[name] = replace(one, lines=(*one.lines, note))
    for host, is_lost in listed.items():
        if is_lost and host in found:
            found[host] = HostState(host=host, state="lost", lines=("the next `up` removes it from the stack",))
        elif not is_lost and host not in found:
            found[host] = HostState(host=host, state="not installed", lines=("not deployed yet",))
    return [found[host] for host in sorted(found)]


def _outcomes(events: Iterable[Mapping[str, Any]]) -> dict[str, _Outcome]:
    found: dict[str, _Outcome] = {}
    for event in events:
        if done := event.get("resOutputsEvent"):
            found.setdefault(done["metadata"]["urn"], _Outcome()).step = done["metadata"]
        elif failed := event.get("resOpFailedEvent"):
            found.setdefault(failed["metadata"]["urn"], _Outcome()).has_failed = True
        elif (message := event.get("diagnosticEvent")) and message.get("severity") == "error":
            found.setdefault(message.get("urn", ""), _Outcome()).errors.append(message["message"].strip())
    return found


def _state(name: str, outcome: _Outcome) -> HostState:
    if outcome.has_failed or outcome.errors:
        return _failed(name, outcome.errors or ["pulumi could not read it and gave no reason"])
    step = outcome.step
    if step is None:
        return HostState(host=name, state="unknown", lines=("pulumi reported nothing about it",))
    if step["op"] == "delete":
        gone = "the server does not have it any more" if _is_stored(name) else "gpu-fleet is not installed on it any more"
        return HostState(host=name, state="not installed", lines=(gone,))
    if step["op"] not in ("same", "update", "refresh") or not step.get("new"):
        return HostState(host=name, state="unknown", lines=(f"pulumi reported an unexpected operation: {step['op']}",))
    if errors := step["new"].get("initErrors"):
        return _failed(name, errors)
    drift = tuple(step["new"]["outputs"].get("drift") or ())
    if _is_stored(name) and step["op"] == "update":
        differing = sorted(step.get("diffs") or step.get("detailedDiff") or ())
        drift = (f"changed on the server: {', '.join(_first(differing)) or 'its content'}",)
    return HostState(host=name, state="drift" if drift else "ok", lines=drift)


def _is_stored(name: str) -> bool:
    return HostState(host=name, state="").kind in ("rules", "alertmanager", "grafana", "object")


def _failed(name: str, errors: Iterable[str]) -> HostState:
    lines = "\n".join(errors).removeprefix(f"{name.removeprefix('release ')}: ").splitlines()
    cause, *log = lines or [""]
    if cause.startswith("unreachable: "):  # the provider's own code, gpu_fleet/provider/host.py
        return HostState(host=name, state="unreachable", lines=(cause.removeprefix("unreachable: "), *log))
    return HostState(host=name, state="failed", lines=(cause, *log))


def with_arrivals(found: list[HostState], hosts: Mapping[str, HostSpec], arrived: Arrivals, now: float) -> list[HostState]:
    """Hosts that are as deployed and of which something, or nothing, arrives become `partial` or `silent`. Those in pull mode are
    added: what they report is all that is known of them."""
    every = [*found, *(HostState(host=name, state="ok") for name in _in_pull_mode(hosts))]
    return sorted((_with_arrivals(one, hosts, arrived, now) for one in every), key=lambda one: one.host)


def states_of_nodes(nodes: Mapping[str, Node], section: Kubernetes, arrived: Arrivals, now: float) -> list[HostState]:
    """Of a cluster's nodes, by what of them arrives in the metrics store."""
    found = []
    for name, node in sorted(nodes.items()):
        lines = missing_of_node(name, section, arrived, now, with_gpus=node.gpus > 0)
        state = "silent" if is_silent(name, arrived, now) else "partial" if lines else "ok"
        found.append(HostState(host=f"node {name}", state=state, lines=lines))
    return found


def without_arrivals(found: list[HostState], hosts: Mapping[str, HostSpec]) -> list[HostState]:
    """Those in pull mode are unknown when the store cannot be read: nothing else knows of them."""
    line = "in pull mode: only the metrics store knows of it"
    pulling = [HostState(host=name, state="unknown", lines=(line,)) for name in _in_pull_mode(hosts)]
    return sorted([*found, *pulling], key=lambda one: one.host)


def _in_pull_mode(hosts: Mapping[str, HostSpec]) -> list[str]:
    return [host.name for host in hosts.values() if host.connection == "pull" and not host.lost]


def _with_arrivals(one: HostState, hosts: Mapping[str, HostSpec], arrived: Arrivals, now: float) -> HostState:
    if one.kind != "host" or one.state != "ok" or one.host not in hosts:
        return one
    lines = missing(hosts[one.host], arrived, now)
    state = "silent" if is_silent(one.host, arrived, now) else "partial" if lines else "ok"
    return replace(one, state=state, lines=(*lines, *one.lines))


def report(found: list[HostState], stack: str) -> str:
    """The table with the worst hosts last, where a terminal ends; a count; and how to fix it."""
    if not found:
        return f"The stack {stack} has no hosts, nodes, Helm releases, objects, rules or dashboards."
    order = ("ok", "lost", "drift", "partial", "silent", "unknown", "failed", "not installed", "unreachable")
    rows = [
        (one.host, f"drift {len(one.lines)}" if one.state == "drift" else one.state, "\n".join(_first(one.lines)))
        for one in sorted(_folded(found), key=lambda one: order.index(one.state))
        if one.state != "ok" or one.kind in ("host", "release")  # the rest are many, and only counted
    ]
    count = Counter(one.state for one in found)
    summary = ", ".join(f"{count[state]} {state}" for state in order if count[state])
    paragraphs = [*([table(("HOST", "STATE", "DETAILS"), rows)] if rows else []), f"{_counted(found)}: {summary}."]
    if count.keys() & {"drift", "not installed"}:
        paragraphs.append(f"To preview the repair and confirm it:\n    pulumi up --refresh --stack {stack}")
    if count.keys() & {"failed", "partial", "silent", "unreachable", "unknown"}:
        paragraphs.append("docs/when-up-fails.md lists causes and fixes.")
    return "\n\n".join(paragraphs)


def _folded(found: list[HostState]) -> Iterable[HostState]:
    """With one row for objects that have the same to say, such as that the API server does not answer."""
    same = Counter((one.state, one.lines) for one in found if one.kind == "object")
    for one in found:
        if one.kind != "object" or same[one.state, one.lines] <= _MOST_LINES:
            yield one
    for (state, lines), count in same.items():
        if count > _MOST_LINES:
            yield HostState(host=f"{count} objects", state=state, lines=lines)


def _counted(found: list[HostState]) -> str:
    kinds = Counter(one.kind for one in found)
    nouns = {
        "host": "host",
        "node": "Kubernetes node",
        "release": "release",
        "object": "object",
        "rules": "rule group",
        "alertmanager": "Alertmanager configuration",
    }
    nouns["grafana"] = "Grafana resource"
    return listed([f"{kinds[kind]} {noun}{'s' if kinds[kind] > 1 else ''}" for kind, noun in nouns.items() if kinds[kind]], "and")


def _first(lines: Sequence[str]) -> Sequence[str]:
    return lines if len(lines) <= _MOST_LINES else (*lines[:_MOST_LINES], f"and {len(lines) - _MOST_LINES} more")


def deployed_resources(stack: str) -> dict[str, str]:
    """URN -> name as HostState has it, of everything in the stack's state that is checked. Raises OperationError."""
    resources = resources_of(exported(stack))
    return {one["urn"]: name for one in resources if not one.get("delete") and (name := _name(one))}


def _name(resource: Mapping[str, Any]) -> str:
    """Empty for what is not checked."""
    type_, inputs = resource["type"], resource.get("inputs") or {}
    if type_ == _HOST:
        return str(inputs["host"])
    if type_ == _RELEASE:
        return f"release {inputs['release']}"
    if type_ == _RULES:
        return f"rules {inputs['backend']} {inputs['namespace']}/{inputs['name']}"
    if type_ == _ALERTMANAGER:
        return f"alertmanager {inputs.get('tenant') or 'anonymous'}"
    name = resource["urn"].rpartition("::")[2]
    if type_.startswith(_OBJECT) and not type_.startswith(_HELM):
        return f"object {type_.rpartition(':')[2]} {name}"
    return f"grafana {name}" if type_.startswith(_GRAFANA) else ""


def _targets(deployed: Mapping[str, str]) -> list[str]:
    """Patterns of all that is checked: the URNs of 10,000 hosts would not fit on a command line."""
    types = {urn.split("::")[2].rpartition("$")[2] for urn, name in deployed.items() if name.startswith("object ")}
    return [*_TARGETS, *(f"**{type_}::**" for type_ in sorted(types))]


def refresh_preview(stack: str, deployed: Mapping[str, str]) -> Refresh:
    """Raises OperationError when pulumi did not come as far as reading a resource."""
    options = ["--preview-only", *(f"--target={urns}" for urns in _targets(deployed)), "--parallel", _PARALLEL, "--stack", stack]
    with tempfile.TemporaryDirectory() as directory:  # 0700, as the log holds what the hosts report
        log = Path(directory, "events.json")
        done = pulumi("refresh", "--event-log", str(log), *options, **_WITH_EVENT_LOG)
        try:
            events = [json.loads(line) for line in log.read_text().splitlines()]
        except (OSError, ValueError):
            events = []
    summaries = [event["summaryEvent"] for event in events if "summaryEvent" in event]
    if done.returncode == 0 and summaries and summaries[-1].get("result") in ("succeeded", None):
        return Refresh(events=events)
    if not any("resourcePreEvent" in event for event in events):
        raise OperationError(error_of(done) or "pulumi refresh reported nothing")
    said = [one["message"].strip() for event in events if (one := event.get("diagnosticEvent", {})).get("severity") == "error"]
    return Refresh(events=events, errors=tuple(said or [error_of(done) or "pulumi refresh did not finish"]))


def _with_what_arrives(
    found: list[HostState], hosts: Mapping[str, HostSpec], configuration: Configuration, stack: str
) -> tuple[list[HostState], list[str]]:
    """`found` with what arrives of hosts and of a cluster's nodes, and what is not known of that."""
    if "kubernetes" not in configuration.keys and all(spec.lost for spec in hosts.values()):
        return found, []
    try:
        config = configuration.load()
        if config.metrics is None or config.metrics.queries is None:
            return found, []
        arrived = arrivals(config, Mimir.of(config, stack))
    except (OperationError, ConfigErrors) as error:
        return without_arrivals(found, hosts), [f"Whether samples of the hosts arrive is not known: {error}"]
    found = with_arrivals(found, hosts, arrived, time.time())
    try:
        nodes = monitored_nodes(config, stack, configuration)
    except OperationError as error:
        return found, [f"Whether samples of the Kubernetes nodes arrive is not known: {error}"]
    return [*found, *(states_of_nodes(nodes, config.kubernetes, arrived, time.time()) if config.kubernetes else ())], []


def main(arguments: list[str]) -> int:
    """Exit status: 0 when every host is as it was deployed, 1 when one is not, or when that is not known."""
    parser = argparse.ArgumentParser(prog="python -m gpu_fleet.operations.check", description="Look for drift on every host.")
    parser.add_argument("--stack", required=True)
    stack = parser.parse_args(arguments).stack
    try:
        enter_project()
        configuration = deployed_configuration(stack)
        hosts = configuration.hosts().hosts
        deployed = deployed_resources(stack)
        refresh = refresh_preview(stack, deployed) if deployed else Refresh(events=[])
    except (OperationError, ConfigErrors) as error:
        print(error, file=sys.stderr)
        return 1
    found = states(deployed, refresh, {name: spec.lost for name, spec in hosts.items() if spec.connection != "pull"})
    found, unknown = _with_what_arrives(found, hosts, configuration, stack)
    print(report(found, stack))
    for line in unknown:
        print(f"\n{line}", file=sys.stderr)
    if refresh.errors:
        print("\npulumi refresh failed:", *refresh.errors, sep="\n", file=sys.stderr)
    return int(bool(refresh.errors or unknown) or any(one.state not in _FINE for one in found))


if __name__ == "__main__":
    run(main)
