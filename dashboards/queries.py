"""Every PromQL and LogQL expression of the dashboards, as functions of a selector.

They use the vocabulary of alerts/vocabulary.py, node_exporter's and Alloy's own metrics, and nothing of a particular exporter.
"""

from __future__ import annotations

from typing import Final

# What a GPU measures is told once per GPU instance (MIG) and per pod that shares it; adding up starts from one value per GPU.
_ONE_GPU: Final = "datacenter, cluster, instance, gpu, uuid"

# Selectors: the dashboard's variables. `$gpu` is a GPU's index on its host.
CLUSTER: Final = 'datacenter=~"$datacenter", cluster=~"$cluster"'
HOST: Final = f'{CLUSTER}, exporter_mode=~"$exporter_mode", instance=~"$instance"'
GPU: Final = f'{HOST}, gpu=~"$gpu"'

_DISK: Final = 'fstype!~"tmpfs|ramfs|overlay|squashfs|nsfs|autofs|fuse.*|iso9660"'
_NETWORK: Final = 'device!~"lo|veth.*|docker.*|br-.*|cni.*|cali.*|flannel.*|virbr.*"'


def per_gpu(series: str, selector: str) -> str:
    """One value per GPU."""
    return f"max by ({_ONE_GPU}) ({series}{{{selector}}})"


def summed(series: str, selector: str, by: str) -> str:
    return f"sum by ({by}) ({per_gpu(series, selector)})"


def averaged(series: str, selector: str, by: str) -> str:
    return f"avg by ({by}) ({per_gpu(series, selector)})"


def top(count: int, expression: str) -> str:
    return f"sort_desc(topk({count}, {expression}))"


# --- fleet ------------------------------------------------------------------------------------------------------------


def gpus(selector: str) -> str:
    """GPUs that report now."""
    return f"count(group by ({_ONE_GPU}) (gpu:info{{{selector}}})) or vector(0)"


def gpus_by(selector: str, by: str) -> str:
    return f"count by ({by}) (group by ({_ONE_GPU}, exporter_mode, model) (gpu:info{{{selector}}}))"


def hosts(selector: str) -> str:
    """Hosts that reported at least one GPU."""
    return f"count(group by (datacenter, cluster, instance) (gpu:info{{{selector}}})) or vector(0)"


def busy_gpus(selector: str, least: float) -> str:
    return f"count({per_gpu('gpu:utilization:ratio', selector)} >= {least}) or vector(0)"


def idle_with_memory(selector: str) -> str:
    """GPUs that nothing computes on although a program holds more than 1 GiB of their memory, now and for the last half hour."""
    return (
        f"count((max by ({_ONE_GPU}) (max_over_time(gpu:utilization:ratio{{{selector}}}[30m])) < 0.01) "
        f"and (max by ({_ONE_GPU}) (min_over_time(gpu:memory_used:bytes{{{selector}}}[30m])) > 1073741824)) or vector(0)"
    )


def firing(selector: str, severity: str) -> str:
    return f'count(ALERTS{{{selector}, alertstate="firing", severity="{severity}"}}) or vector(0)'


def firing_alerts(selector: str) -> str:
    """The alerts that fire now, a row each."""
    return f'ALERTS{{{selector}, alertstate="firing"}}'


def memory_used_ratio(selector: str, by: str) -> str:
    return f"{summed('gpu:memory_used:bytes', selector, by)} / {summed('gpu:memory_total:bytes', selector, by)}"


def xid_lines_by_code(selector: str) -> str:
    """LogQL: kernel lines with an XID, counted per code."""
    return f'sum by (xid) (count_over_time({{job="kernel", {selector}, xid=~".+"}}[$__interval]))'


def xid_lines(selector: str) -> str:
    """LogQL: the lines themselves."""
    return f'{{job="kernel", {selector}, xid=~".+"}}'


def kernel_lines(selector: str) -> str:
    """LogQL: everything the kernel said that was kept."""
    return f'{{job="kernel", {selector}}}'


# --- host -------------------------------------------------------------------------------------------------------------


def cpu_ratio(selector: str) -> str:
    return f'1 - avg by (instance) (rate(node_cpu_seconds_total{{{selector}, mode="idle"}}[$__rate_interval]))'


def ram_used(selector: str) -> str:
    return (
        f"max by (instance) (node_memory_MemTotal_bytes{{{selector}}}) "
        f"- max by (instance) (node_memory_MemAvailable_bytes{{{selector}}})"
    )


def ram_total(selector: str) -> str:
    return f"max by (instance) (node_memory_MemTotal_bytes{{{selector}}})"


def disk_used_ratio(selector: str) -> str:
    return (
        f"1 - min by (instance, mountpoint) (node_filesystem_avail_bytes{{{selector}, {_DISK}}} "
        f"/ (node_filesystem_size_bytes{{{selector}, {_DISK}}} > 0))"
    )


def network_received(selector: str) -> str:
    return f"sum by (instance) (rate(node_network_receive_bytes_total{{{selector}, {_NETWORK}}}[$__rate_interval]))"


def network_sent(selector: str) -> str:
    return f"sum by (instance) (rate(node_network_transmit_bytes_total{{{selector}, {_NETWORK}}}[$__rate_interval]))"


# --- XIDs and health --------------------------------------------------------------------------------------------------


def firing_xids(selector: str, severity: str) -> str:
    return f'count(ALERTS{{{selector}, alertname="GpuXid", alertstate="firing", severity="{severity}"}}) or vector(0)'


def xid_lines_by_gpu(selector: str) -> str:
    """LogQL: kernel lines with an XID in the whole time range, per host, GPU and code."""
    return f'sum by (cluster, instance, pci, xid) (count_over_time({{job="kernel", {selector}, xid=~".+"}} [$__range]))'


def xid_lines_by_host(selector: str) -> str:
    """LogQL: kernel lines with an XID, counted per host; the ten with most."""
    return f'topk(10, sum by (instance) (count_over_time({{job="kernel", {selector}, xid=~".+"}}[$__interval])))'


def recovery_actions(selector: str) -> str:
    """What the driver asks for, of the GPUs for which it asked for something within the time range; at most fifty."""
    worst = f"max by ({_ONE_GPU}) (max_over_time(gpu:recovery_action:code{{{selector}}}[$__range])) > 0"
    return f"{per_gpu('gpu:recovery_action:code', selector)} and on ({_ONE_GPU}) topk(50, {worst})"


def ecc_uncorrected(selector: str) -> str:
    return f"{per_gpu('gpu:ecc_uncorrected_volatile:total', selector)} > 0"


def row_remaps(selector: str) -> str:
    return f"{per_gpu('gpu:rows_remapped:total', selector)} > 0"


# --- one GPU ----------------------------------------------------------------------------------------------------------


def throttled(selector: str) -> str:
    """Share of the last five minutes in which the clocks were held back, per reason."""
    return f"max by (instance, gpu, reason) (avg_over_time(gpu:throttled:bool{{{selector}}}[5m]))"


def per_link(series: str, selector: str) -> str:
    return f"max by (instance, gpu, link) ({series}{{{selector}}})"


def growth(series: str, selector: str) -> str:
    return f"max by ({_ONE_GPU}) (increase({series}{{{selector}}}[$__rate_interval]))"


def nvlink_errors(selector: str) -> str:
    return f"max by (instance, gpu, kind) (increase(gpu:nvlink_errors:total{{{selector}}}[$__rate_interval]))"


# --- work -------------------------------------------------------------------------------------------------------------

_POD: Final = "namespace, pod"


def gpus_by_namespace(selector: str) -> str:
    return f'count by (namespace) (group by (namespace, {_ONE_GPU}) (gpu:utilization:ratio{{{selector}, namespace!=""}}))'


def of_pods(series: str, selector: str) -> str:
    """Average over a pod's GPUs; the ten pods with most."""
    return f'topk(10, avg by ({_POD}) ({series}{{{selector}, pod!=""}}))'


def memory_of_pods(selector: str) -> str:
    return f'topk(10, sum by ({_POD}) (max by ({_POD}, {_ONE_GPU}) (gpu:memory_used:bytes{{{selector}, pod!=""}})))'


def energy_of_namespaces(selector: str) -> str:
    """Joules per second: the power of the GPUs on which a namespace has pods. A GPU shared by two counts for both."""
    return f'sum by (namespace) (max by (namespace, {_ONE_GPU}) (gpu:power:watts{{{selector}, namespace!=""}}))'


# --- pipeline ---------------------------------------------------------------------------------------------------------


def agents(selector: str) -> str:
    return f'count(up{{{selector}, job="alloy"}}) or vector(0)'


def missing_hosts(selector: str) -> str:
    """Hosts of the inventory that are not heard of."""
    return (
        f"count(inventory:host:expected{{{selector}}} unless on (datacenter, cluster, instance) "
        f'up{{{selector}, job="alloy"}}) or vector(0)'
    )


def targets_down(selector: str) -> str:
    return f"count(up{{{selector}}} == 0) or vector(0)"


def send_delay(selector: str) -> str:
    """Seconds by which metrics leave late; the ten hosts with most."""
    return (
        f"topk(10, max by (instance) (prometheus_remote_storage_highest_timestamp_in_seconds{{{selector}}}) - on (instance) "
        f"min by (instance) (prometheus_remote_storage_queue_highest_sent_timestamp_seconds{{{selector}}}))"
    )


def samples_sent(selector: str) -> str:
    return f"sum by (cluster) (rate(prometheus_remote_storage_samples_total{{{selector}}}[$__rate_interval]))"


def samples_lost(selector: str) -> str:
    return f"topk(10, sum by (instance) (rate(prometheus_remote_storage_samples_failed_total{{{selector}}}[$__rate_interval])))"


def log_lines_sent(selector: str) -> str:
    return f"sum by (cluster) (rate(loki_write_sent_entries_total{{{selector}}}[$__rate_interval]))"


def log_lines_lost(selector: str) -> str:
    return f"topk(10, sum by (instance) (rate(loki_write_dropped_entries_total{{{selector}}}[$__rate_interval])))"


def agent_memory(selector: str) -> str:
    return f'topk(10, max by (instance) (process_resident_memory_bytes{{{selector}, job="alloy"}}))'


def series_per_host(selector: str) -> str:
    """Series that an agent sends; the ten with most."""
    return f"topk(10, max by (instance) (prometheus_remote_write_wal_storage_active_series{{{selector}}}))"


def unhealthy_components(selector: str) -> str:
    return f'topk(10, sum by (instance) (alloy_component_controller_running_components{{{selector}, health_type!="healthy"}}))'
