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
    return f"topk({count}, {expression})"


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
