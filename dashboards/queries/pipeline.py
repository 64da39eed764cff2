"""The agents, their delivery to Mimir and Loki, and drift reported by the hosts."""

from __future__ import annotations

from dashboards.queries.common import ONE_HOST, or_zero


def agents(selector: str) -> str:
    return or_zero(f'count(up{{{selector}, job="alloy"}})')


def targets_down(selector: str) -> str:
    return or_zero(f"count(up{{{selector}}} == 0)")


def hosts_with_unreadable_gpus(selector: str) -> str:
    """Hosts whose exporter runs but cannot read the GPUs."""
    return or_zero(f"count(instance:gpu_collection_ok:bool{{{selector}}} == 0)")


def drifted_hosts(selector: str) -> str:
    return or_zero(f"count(sum by ({ONE_HOST}) (gpu_fleet_drift_items{{{selector}}}) > 0)")


def drift(selector: str) -> str:
    """Number of differences from the last deployment, by part; the highest."""
    return f"topk(50, max by ({ONE_HOST}, part) (gpu_fleet_drift_items{{{selector}}}) > 0)"


def send_delay(selector: str) -> str:
    """Send delay in seconds; the ten highest."""
    return (
        f"topk(10, max by ({ONE_HOST}) (prometheus_remote_storage_highest_timestamp_in_seconds{{{selector}}}) - on ({ONE_HOST}) "
        f"min by ({ONE_HOST}) (prometheus_remote_storage_queue_highest_sent_timestamp_seconds{{{selector}}}))"
    )


def data_age(selector: str) -> str:
    """Seconds since the GPUs were last read, for exporters that report it; the ten oldest."""
    return f"topk(10, time() - max by ({ONE_HOST}) (instance:gpu_collection:timestamp_seconds{{{selector}}}))"


def samples_sent(selector: str) -> str:
    return f"sum by (cluster) (rate(prometheus_remote_storage_samples_total{{{selector}}}[$__rate_interval]))"


def samples_lost(selector: str) -> str:
    return f"topk(10, sum by ({ONE_HOST}) (rate(prometheus_remote_storage_samples_failed_total{{{selector}}}[$__rate_interval])))"


def wal_size(selector: str) -> str:
    return f"topk(10, max by ({ONE_HOST}) (prometheus_tsdb_wal_storage_size_bytes{{{selector}}}))"


def log_lines_sent(selector: str) -> str:
    return f"sum by (cluster) (rate(loki_write_sent_entries_total{{{selector}}}[$__rate_interval]))"


def log_lines_lost(selector: str) -> str:
    return f"topk(10, sum by ({ONE_HOST}) (rate(loki_write_dropped_entries_total{{{selector}}}[$__rate_interval])))"


def log_retries(selector: str) -> str:
    """Retried batches per minute; the ten highest."""
    return f"topk(10, 60 * sum by ({ONE_HOST}) (rate(loki_write_batch_retries_total{{{selector}}}[$__rate_interval])))"


def agent_cpu(selector: str) -> str:
    return f'topk(10, max by ({ONE_HOST}) (rate(process_cpu_seconds_total{{{selector}, job="alloy"}}[$__rate_interval])))'


def agent_memory(selector: str) -> str:
    return f'topk(10, max by ({ONE_HOST}) (process_resident_memory_bytes{{{selector}, job="alloy"}}))'


def series_per_host(selector: str) -> str:
    """Active series that an agent sends; the ten highest."""
    return f"topk(10, max by ({ONE_HOST}) (prometheus_remote_write_wal_storage_active_series{{{selector}}}))"


def unhealthy_components(selector: str) -> str:
    return f'topk(10, sum by ({ONE_HOST}) (alloy_component_controller_running_components{{{selector}, health_type!="healthy"}}))'


# --- Mimir, if its metrics are scraped -----------------------------------------------------------------------------------


def rule_failures() -> str:
    return "sum by (rule_group) (increase(cortex_prometheus_rule_evaluation_failures_total[$__rate_interval]))"


def series_in_memory() -> str:
    return "sum(cortex_ingester_memory_series)"
