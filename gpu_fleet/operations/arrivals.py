"""What of a host arrives at the metrics store, by kind of sample: an agent that is ready may send nothing, or not all.

Asked at the store, where alerts and dashboards read, so that it is the same for hosts in push and in pull mode. Log lines are not
asked for: a healthy host may log none for days; what the log store refused is among the agent's own counters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from alerts.vocabulary import SERIES
from gpu_fleet.operations.mimir import LATE_S, Mimir, last_samples, times, when
from gpu_fleet.stackfile.config import HostSpec, StackConfig
from gpu_fleet.stackfile.kubernetes import Kubernetes
from gpu_fleet.stackfile.monitoring import has_gpus

_CHECK_LATE_S = 1800  # of a check that runs every ten minutes; as in the alert HostNotChecked
_FIRST_CHECK = "20m"  # until then a host that is new may not have checked itself
# What every exporter gives of a GPU that works; the alert GpuMetricsMissing looks at the families one by one.
_READINGS = ("gpu:temperature:celsius", "gpu:utilization:ratio", "gpu:memory_used:bytes")
_REFUSED = {"samples": "prometheus_remote_storage_samples_failed_total", "log lines": "loki_write_dropped_entries_total"}


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """By host, from the metrics store. `newest`: time of its agent's newest sample within a day, s since 1970. `failing`: jobs
    whose scrapes fail. `readings`, `system`: hosts of which GPU readings and node_exporter's metrics arrive. `checked`: time of
    the last check; `settled`: hosts that reported 20 minutes ago. `stopped`: collectors that run no more. `refused`: what a store
    did not take in the last five minutes.
    """

    newest: Mapping[str, float] = field(default_factory=dict)
    failing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    readings: frozenset[str] = frozenset()
    system: frozenset[str] = frozenset()
    checked: Mapping[str, float] = field(default_factory=dict)
    settled: frozenset[str] = frozenset()
    stopped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    refused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def arrivals(config: StackConfig, store: Mimir) -> Arrivals:
    """Raises OperationError."""
    which = f'datacenter="{config.datacenter}",cluster="{config.cluster}"'
    names = sorted({name for series in _READINGS for source in SERIES[series].sources for name in source.metrics})
    readings = store.by_label(f'group by (instance) ({{__name__=~"{"|".join(names)}",{which}}})', "instance")
    ran = f"node_gpu_collector_timestamp_seconds{{{which}}}"
    refused: dict[str, tuple[str, ...]] = {}
    for what, counter in _REFUSED.items():
        for host, count in store.by_label(f"sum by (instance) (increase({counter}{{{which}}}[5m])) > 0", "instance").items():
            refused[host] = (*refused.get(host, ()), f"{count:.0f} {what} of the last 5 min were refused by the store")
    return Arrivals(
        newest=last_samples(config, store),
        failing=_by_host(store.vector(f"max by (instance, job) (up{{{which}}}) == 0"), "job"),
        readings=frozenset(readings),
        system=frozenset(store.by_label(f"group by (instance) (node_uname_info{{{which}}})", "instance")),
        checked=times(store, f"max by (instance) (gpu_fleet_check_timestamp_seconds{{{which}}})"),
        settled=frozenset(store.by_label(f"group by (instance) (alloy_build_info{{{which}}} offset {_FIRST_CHECK})", "instance")),
        stopped=_by_host(store.vector(f"max by (instance, collector) (timestamp({ran}) - {ran}) > {LATE_S}"), "collector"),
        refused=refused,
    )


def _by_host(series: Iterable[tuple[Mapping[str, str], float]], label: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = {}
    for labels, _ in series:
        found.setdefault(labels.get("instance", ""), set()).add(labels.get(label, ""))
    return {host: tuple(sorted(values)) for host, values in found.items()}


def is_silent(host: str, found: Arrivals, now: float) -> bool:
    """Nothing of it arrives."""
    return now - found.newest.get(host, 0) > LATE_S


def missing(host: HostSpec, found: Arrivals, now: float) -> tuple[str, ...]:
    """What does not arrive of a host, a line each."""
    name = host.name
    lines = _missing(name, found, now, with_gpus=has_gpus(host), with_system=True)
    if is_silent(name, found, now):
        return lines
    more = [f"the collector {collector} has stopped" for collector in found.stopped.get(name, ())]
    checked = found.checked.get(name)
    if checked is None and name in found.settled:
        more.append("no report of the host's own check for drift")
    elif checked is not None and now - checked > _CHECK_LATE_S:
        more.append(f"the host's own check for drift has stopped: the last one was {when(checked, now)}")
    return (*lines, *more, *found.refused.get(name, ()))


def missing_of_node(name: str, section: Kubernetes, found: Arrivals, now: float, *, with_gpus: bool) -> tuple[str, ...]:
    """The same of a node of the stack's cluster. `with_gpus`: whether it advertises any."""
    lines = _missing(name, found, now, with_gpus=with_gpus, with_system=section.node_exporter != "none")
    return lines if is_silent(name, found, now) else (*lines, *found.refused.get(name, ()))


def _missing(name: str, found: Arrivals, now: float, *, with_gpus: bool, with_system: bool) -> tuple[str, ...]:
    if is_silent(name, found, now):
        return (f"the last sample in the metrics store: {when(found.newest.get(name), now)}",)
    failing = found.failing.get(name, ())
    lines = [f"the scrape of {job} fails" for job in failing]
    if with_gpus and name not in found.readings and not failing:
        lines.append("no GPU readings: the exporter answers without them, or nothing scrapes it")
    if with_system and name not in found.system and not failing:
        lines.append("no metrics of node_exporter")
    return tuple(lines)
