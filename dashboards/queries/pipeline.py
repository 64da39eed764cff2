"""The agents, their delivery to Mimir and Loki, and drift reported by the hosts."""

from __future__ import annotations

from dashboards.queries.common import ONE_HOST, or_zero


def agents(selector: str) -> str:
    return or_zero(f'count(up{{{selector}, job="alloy"}})', f"inventory:host:expected{{{selector}}}")


def targets_down(selector: str) -> str:
    return or_zero(f"count(up{{{selector}}} == 0)", f"up{{{selector}}}")


def hosts_with_unreadable_gpus(selector: str) -> str:
    """Hosts whose exporter runs but cannot read the GPUs."""
    answers = f"instance:gpu_collection_ok:bool{{{selector}}}"
    return or_zero(f"count({answers} == 0)", answers)


def drifted_hosts(selector: str) -> str:
    checked = f"gpu_fleet_drift_items{{{selector}}}"
    return or_zero(f"count(sum by ({ONE_HOST}) ({checked}) > 0)", checked)


def drift(selector: str) -> str:
    """Number of differences from the last deployment, by part; the highest."""
    return f"topk(50, max by ({ONE_HOST}, part) (gpu_fleet_drift_items{{{selector}}}) > 0)"


def worst_hosts(record: str, selector: str) -> str:
    """The ten highest, of a record that has the ten highest of each cluster: group `agents` of alerts/rules/pipeline.yaml."""
    return f"topk(10, {record}{{{selector}}})"


def by_cluster(record: str, selector: str) -> str:
    return f"sum by (cluster) ({record}{{{selector}}})"


# --- Mimir, if its metrics are scraped -----------------------------------------------------------------------------------


def rule_failures() -> str:
    return "sum by (rule_group) (increase(cortex_prometheus_rule_evaluation_failures_total[$__rate_interval]))"


def series_in_memory() -> str:
    return "sum(cortex_ingester_memory_series)"
