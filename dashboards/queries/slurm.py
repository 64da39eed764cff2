"""Slurm's queue, nodes and GPUs, as hosts with `jobs.queueHosts` report them. Two of them may: none counts twice."""

from __future__ import annotations

from typing import Final

from dashboards.queries.common import ONE_CLUSTER, or_zero

_NODE: Final = f"{ONE_CLUSTER}, node"
_OUT: Final = "drained|draining|down|maint|reboot_issued"


def _of(series: str, selector: str, *labels: str) -> str:
    return f"max by ({', '.join((ONE_CLUSTER, *labels))}) ({series}{{{selector}}})"


def by_partition(series: str, selector: str) -> str:
    return _of(series, selector, "partition")


def answers(selector: str) -> str:
    """1 while in each cluster a host has an answer of the last five minutes; 0 also where the hosts no longer ask."""
    here, asked = f"{ONE_CLUSTER}, instance", f"gpu_fleet_slurm_timestamp_seconds{{{selector}}}"
    success = f"gpu_fleet_slurm_success{{{selector}}}"
    return f"min(max by ({ONE_CLUSTER}) ({success} * on ({here}) (timestamp({asked}) - {asked} < bool 300)))"


def answers_take(selector: str) -> str:
    """Seconds."""
    return f"max(gpu_fleet_slurm_duration_seconds{{{selector}}})"


def scheduler_cycle(selector: str) -> str:
    """Seconds."""
    return f"max(slurm_schedule_cycle_last{{{selector}}}) / 1e6"


def total(series: str, selector: str, state: str = "") -> str:
    """Of the clusters, over partitions, accounts or states."""
    chosen = f'{selector}, state="{state}"' if state else selector
    label = {"gpu_fleet_slurm_gpus": "state", "gpu_fleet_slurm_account_jobs": "account"}.get(series, "partition")
    return or_zero(f"sum({_of(series, chosen, label)})", f"gpu_fleet_slurm_success{{{selector}}} == 1")


def longest_wait(selector: str) -> str:
    return f'max(gpu_fleet_slurm_partition_wait_seconds{{{selector}, quantile="1"}})'


def wait(selector: str, quantile: str) -> str:
    return by_partition("gpu_fleet_slurm_partition_wait_seconds", f'{selector}, quantile="{quantile}"')


def start_wait(selector: str, quantile: float) -> str:
    """Of the jobs that began within an hour; of a cluster's hosts that ask, each has counted all of them."""
    buckets = f"increase(gpu_fleet_slurm_start_wait_seconds_bucket{{{selector}}}[1h])"
    return f"histogram_quantile({quantile}, max by ({ONE_CLUSTER}, partition, le) ({buckets}))"


def mean_start_wait(selector: str) -> str:
    """Of the ten accounts whose jobs waited longest, of those that began within an hour."""
    waited = _of_hour("gpu_fleet_slurm_account_start_wait_seconds_total", selector)
    return f"topk(10, {waited} / ({_of_hour('gpu_fleet_slurm_account_starts_total', selector)} > 0))"


def _of_hour(series: str, selector: str) -> str:
    return f"sum by (account) (max by ({ONE_CLUSTER}, account) (increase({series}{{{selector}}}[1h])))"


def gpus_of_partitions(selector: str, state: str) -> str:
    return by_partition("gpu_fleet_slurm_partition_gpus", f'{selector}, state="{state}"')


def gpus_by_state(selector: str) -> str:
    return f"sum by (state) ({_of('gpu_fleet_slurm_gpus', selector, 'state')})"


def nodes_by_state(selector: str) -> str:
    return f"count by (state) ({_of('gpu_fleet_slurm_node_info', selector, 'node', 'state')})"


def jobs_by_reason(selector: str) -> str:
    return f"sum by (reason) ({_of('gpu_fleet_slurm_jobs_pending', selector, 'reason')})"


def of_accounts(series: str, selector: str, state: str) -> str:
    """The ten with the most."""
    chosen = f'{selector}, state="{state}"'
    return f"topk(10, sum by (account) ({_of(series, chosen, 'account')}))"


# --- nodes and what we know of their GPUs: Slurm's name of a node is that of the host, up to the first dot ----------------------


def nodes_out(selector: str) -> str:
    return _of("gpu_fleet_slurm_node_info", f'{selector}, state=~"{_OUT}"', "node", "state", "reason")


def sick_and_schedulable(selector: str) -> str:
    """Nodes to which Slurm gives jobs although they are not ready, or have a critical alert."""
    in_use = _of("gpu_fleet_slurm_node_info", f'{selector}, state!~"{_OUT}|powered_down|powering_up"', "node", "state")
    return f"{in_use} and on ({_NODE}) ({_sick(selector)})"


def healthy_and_drained(selector: str) -> str:
    """Drained nodes whose GPUs are listed, without a critical alert, and ready where that is evaluated."""
    drained = _of("gpu_fleet_slurm_node_info", f'{selector}, state=~"drained|draining"', "node", "state", "reason")
    listed = f"group by ({_NODE}) ({_named(f'gpu:info{{{selector}}}')})"
    return f"({drained} and on ({_NODE}) {listed}) unless on ({_NODE}) ({_sick(selector)})"


def critical_alerts(selector: str, nodes: str) -> str:
    return f"count by ({_NODE}) ({_critical(selector)}) and on ({_NODE}) ({nodes})"


def readiness(selector: str, nodes: str) -> str:
    return f"max by ({_NODE}) ({_named(f'gpu_fleet_ready_state{{{selector}}}')}) and on ({_NODE}) ({nodes})"


def _sick(selector: str) -> str:
    return f"group by ({_NODE}) ({_critical(selector)} or {_named(f'gpu_fleet_ready_state{{{selector}}} == 2')})"


def _critical(selector: str) -> str:
    return _named(f'ALERTS{{{selector}, severity="critical", alertstate="firing", instance!=""}}')


def _named(series: str) -> str:
    return f'label_replace({series}, "node", "$1", "instance", "([^.]+).*")'
