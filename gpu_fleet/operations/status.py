"""`make status`: every host of a stack in one table: how it is deployed, what it reports and what is wrong with it.

    python -m gpu_fleet.operations.status --stack us-west-training

What was deployed is read from the stack's state, the rest from the metrics store; no host is contacted (`make check` does that).
Which nodes a Kubernetes cluster has is asked of its API server.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_fleet.operations.arrivals import Arrivals, arrivals, is_silent, missing, missing_of_node
from gpu_fleet.operations.cluster import monitored_nodes
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.mimir import LATE_S, Mimir, when
from gpu_fleet.operations.output import run
from gpu_fleet.operations.stack import deployed_configuration, enter_project
from gpu_fleet.operations.state import exported, resources_of
from gpu_fleet.operations.table import table
from gpu_fleet.provider.resources.cluster import Node
from gpu_fleet.stackfile.config import ConfigErrors, StackConfig

_HOST = "gpu-fleet:host:Host"
_MOST_NODES = 10  # that are named
_NOT_THERE = ("lost", "not yet")  # states of hosts that report nothing


@dataclass(frozen=True, kw_only=True)
class Reported:
    """By host, from the metrics store. `seen`: time of the last sample, s since 1970; `firing`: names of alerts; `lacking`: what
    does not arrive of a host that sends something."""

    seen: Mapping[str, float]
    drift: Mapping[str, float]
    firing: Mapping[str, tuple[str, ...]]
    lacking: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def rows(
    config: StackConfig, facts: Mapping[str, Mapping[str, str]], reported: Reported | None, now: float
) -> list[tuple[str, ...]]:
    """`facts`: of the hosts in the stack's state. `reported`: None when the metrics store did not answer. `?`: not known."""
    found: list[tuple[str, ...]] = []
    for name, host in config.hosts.items():
        of_host = facts.get(name)
        known = of_host or {}
        state = "lost" if host.lost else "pull" if host.connection == "pull" else "deployed" if of_host is not None else "not yet"
        is_current = reported is not None and now - reported.seen.get(name, 0) <= LATE_S
        drift = reported.drift.get(name) if reported else None
        firing = reported.firing.get(name, ()) if reported else ()
        unknown = ("?",) if not is_current and state not in _NOT_THERE and not firing else ()
        found.append(
            (
                name,
                state,
                known.get("GPU_MODELS", "-"),
                known.get("GPU_DRIVER_VERSION", "-"),
                known.get("GPU_FLEET_EXPORTER_MODE", "-"),
                _seen(name, reported, now),
                f"{drift:.0f}" if drift is not None else "-" if reported and state in _NOT_THERE else "?",
                "\n".join((*firing, *unknown, *(reported.lacking.get(name, ()) if reported else ()), *_notes(known))),
            )
        )
    return found


def _seen(name: str, reported: Reported | None, now: float) -> str:
    if reported is None:
        return "?"
    at = reported.seen.get(name)
    return when(at, now) + (" (late)" if at is not None and now - at > LATE_S else "")


def _notes(facts: Mapping[str, str]) -> Iterator[str]:
    if reason := facts.get("GPU_FLEET_EXPORTER_REASON"):
        yield f"exporter: {reason}"
    if "GPU_MODELS" in facts and facts.get("GPU_FLEET_KERNEL_LOG_SOURCE", "none") == "none":
        yield "no kernel log here: XIDs are not seen; kernelLog names a file"


def summary(config: StackConfig, found: Sequence[tuple[str, ...]], reported: Reported | None) -> str:
    deployed = sum(row[1] == "deployed" for row in found)
    words = [f"{len(found)} host{'' if len(found) == 1 else 's'}, {deployed} deployed"]
    if reported:
        late = sum("late" in row[5] or row[5].startswith("not in") for row in found)
        alerting = sum(name in reported.firing for name in config.hosts)
        drifting = sum(value > 0 for name, value in reported.drift.items() if name in config.hosts)
        words += [f"{late} without current data", f"{alerting} with firing alerts", f"{drifting} with drift"]
    return ", ".join(words) + "."


def state_of(stack: str) -> tuple[dict[str, Mapping[str, str]], Mapping[str, Any]]:
    """The facts of each host, and the stack's outputs, as the last run left them. Raises OperationError."""
    resources = resources_of(exported(stack))
    facts = {
        one["inputs"]["host"]: one.get("outputs", {}).get("facts") or {}
        for one in resources
        if one["type"] == _HOST and not one.get("delete")
    }
    outputs = next((one.get("outputs") or {} for one in resources if one["type"] == "pulumi:pulumi:Stack"), {})
    return facts, outputs


def reported_of(config: StackConfig, store: Mimir, arrived: Arrivals) -> Reported:
    """Raises OperationError."""
    which, now = f'datacenter="{config.datacenter}",cluster="{config.cluster}"', time.time()
    lacking = {name: missing(host, arrived, now) for name, host in config.hosts.items() if not is_silent(name, arrived, now)}
    drift = store.by_label(f"sum by (instance) (gpu_fleet_drift_items{{{which}}})", "instance")
    firing: dict[str, list[str]] = {}
    for labels, _ in store.vector(f'group by (instance, alertname, severity) (ALERTS{{alertstate="firing",{which}}})'):
        firing.setdefault(labels.get("instance", ""), []).append(f"{labels['alertname']} ({labels.get('severity', '-')})")
    return Reported(
        seen=arrived.newest, lacking=lacking, drift=drift, firing={host: tuple(sorted(names)) for host, names in firing.items()}
    )


def of_nodes(config: StackConfig, arrived: Arrivals, nodes: Mapping[str, Node], now: float) -> str:
    """Of how many nodes of the cluster everything arrives, and what does not of which others; empty without a node."""
    if config.kubernetes is None or not nodes:
        return ""
    found = {
        name: lines
        for name, node in sorted(nodes.items())
        if (lines := missing_of_node(name, config.kubernetes, arrived, now, with_gpus=node.gpus > 0))
    }
    first = [f"  {name}: {'; '.join(lines)}" for name, lines in list(found.items())[:_MOST_NODES]]
    rest = [f"  and {len(found) - _MOST_NODES} more"] if len(found) > _MOST_NODES else []
    some = f"samples of {len(nodes) - len(found)} of {len(nodes)} nodes arrive in full"
    return "\n".join([f"Kubernetes: {some}{':' if found else '.'}", *first, *rest])


def main(arguments: list[str]) -> int:
    """Exit status: 0, and 1 when the table could not be made or the metrics store did not answer."""
    parser = argparse.ArgumentParser(prog="make status", description="The hosts of a stack in one table.")
    parser.add_argument("--stack", required=True)
    stack = parser.parse_args(arguments).stack
    reported, silent, nodes = None, "", ""
    try:
        enter_project()
        configuration = deployed_configuration(stack)
        config = configuration.load()
        facts, outputs = state_of(stack)
        try:
            if config.metrics:
                store = Mimir.of(config, stack)
                arrived = arrivals(config, store)
                reported = reported_of(config, store, arrived)
                nodes = of_nodes(config, arrived, monitored_nodes(config, stack, configuration), time.time())
            else:
                silent = "The stack has no gpu-fleet:metrics, so nothing is known of what its hosts report."
        except OperationError as error:
            silent = f"What the hosts{' or the nodes' if reported else ''} report is not known: {error}"
    except (OperationError, ConfigErrors) as error:
        print(error, file=sys.stderr)
        return 1
    found = rows(config, facts, reported, time.time())
    if found:
        print(table(("HOST", "STATE", "GPUS", "DRIVER", "EXPORTER", "DATA", "DRIFT", "ALERTS, NOTES"), found))
        print(f"\n{summary(config, found, reported)}")
    if cluster := outputs.get("cluster"):
        print("Kubernetes: " + ", ".join(f"{key} {value}" for key, value in cluster.items() if value is not None))
    if nodes:
        print(nodes)
    if reported and (others := reported.firing.get("")):
        print("Firing for the cluster: " + ", ".join(others))
    if silent:
        print(silent, file=sys.stderr)
    return int(bool(silent))


if __name__ == "__main__":
    run(main)
