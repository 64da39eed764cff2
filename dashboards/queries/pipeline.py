"""The agents, their way to Mimir and Loki, and the hosts' own look for drift."""

from __future__ import annotations

from dashboards.queries.common import ONE_HOST, or_zero


def agents(selector: str) -> str:
    return or_zero(f'count(up{{{selector}, job="alloy"}})')


def targets_down(selector: str) -> str:
    return or_zero(f"count(up{{{selector}}} == 0)")


def gpus_not_read(selector: str) -> str:
    """Hosts whose exporter runs and cannot read the GPUs."""
    return or_zero(f"count(instance:gpu_collection_ok:bool{{{selector}}} == 0)")


def drifted_hosts(selector: str) -> str:
    return or_zero(f"count(sum by ({ONE_HOST}) (gpu_fleet_drift_items{{{selector}}}) > 0)")


def drift(selector: str) -> str:
    """What differs from the last apply; the parts with most."""
    return f"topk(50, max by ({ONE_HOST}, part) (gpu_fleet_drift_items{{{selector}}}) > 0)"


def send_delay(selector: str) -> str:
    """Seconds by which metrics leave late; the ten hosts with most."""
    return (
        f"topk(10, max by (instance) (prometheus_remote_storage_highest_timestamp_in_seconds{{{selector}}}) - on (instance) "
        f"min by (instance) (prometheus_remote_storage_queue_highest_sent_timestamp_seconds{{{selector}}}))"
    )


def data_age(selector: str) -> str:
    """Seconds since the GPUs were last read, of exporters that tell; the ten oldest."""
    return f"topk(10, time() - max by (instance) (instance:gpu_collection:timestamp_seconds{{{selector}}}))"


def samples_sent(selector: str) -> str:
    return f"sum by (cluster) (rate(prometheus_remote_storage_samples_total{{{selector}}}[$__rate_interval]))"


def samples_lost(selector: str) -> str:
    return f"topk(10, sum by (instance) (rate(prometheus_remote_storage_samples_failed_total{{{selector}}}[$__rate_interval])))"


def wal_size(selector: str) -> str:
    return f"topk(10, max by (instance) (prometheus_tsdb_wal_storage_size_bytes{{{selector}}}))"


def log_lines_sent(selector: str) -> str:
    return f"sum by (cluster) (rate(loki_write_sent_entries_total{{{selector}}}[$__rate_interval]))"


def log_lines_lost(selector: str) -> str:
    return f"topk(10, sum by (instance) (rate(loki_write_dropped_entries_total{{{selector}}}[$__rate_interval])))"


def log_retries(selector: str) -> str:
    """Batches a minute that had to be sent again; the ten hosts with most."""
    return f"topk(10, 60 * sum by (instance) (rate(loki_write_batch_retries_total{{{selector}}}[$__rate_interval])))"


def agent_cpu(selector: str) -> str:
    return f'topk(10, max by (instance) (rate(process_cpu_seconds_total{{{selector}, job="alloy"}}[$__rate_interval])))'


def agent_memory(selector: str) -> str:
    return f'topk(10, max by (instance) (process_resident_memory_bytes{{{selector}, job="alloy"}}))'


def series_per_host(selector: str) -> str:
    """Series that an agent sends; the ten with most."""
    return f"topk(10, max by (instance) (prometheus_remote_write_wal_storage_active_series{{{selector}}}))"


def unhealthy_components(selector: str) -> str:
    return f'topk(10, sum by (instance) (alloy_component_controller_running_components{{{selector}, health_type!="healthy"}}))'


# --- Mimir, for those who scrape it -----------------------------------------------------------------------------------


def rule_failures() -> str:
    return "sum by (rule_group) (increase(cortex_prometheus_rule_evaluation_failures_total[$__rate_interval]))"


def series_in_memory() -> str:
    return "sum(cortex_ingester_memory_series)"
