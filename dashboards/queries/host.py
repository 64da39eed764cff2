"""Host metrics from node_exporter, and whether host and GPU exporter report."""

from __future__ import annotations

from typing import Final

from dashboards.queries.common import ONE_HOST

_DISK: Final = (
    'fstype!~"tmpfs|ramfs|overlay|squashfs|nsfs|autofs|fuse.*|iso9660", mountpoint!~"/run/.*|/var/lib/(docker|kubelet)/.+"'
)
_NETWORK: Final = 'device!~"lo|veth.*|docker.*|br-.*|cni.*|cali.*|flannel.*|virbr.*"'


def reports(selector: str) -> str:
    """1 while the host's agent, or an exporter in its cluster, reports; 0 while a host of the inventory does not."""
    reporting = f'max by ({ONE_HOST}) (up{{{selector}, job=~"alloy|gpu-exporter|node-exporter"}} >= bool 0)'
    return f"{reporting} or on ({ONE_HOST}) 0 * max by ({ONE_HOST}) (inventory:host:expected{{{selector}}})"


def gpus_are_read(selector: str) -> str:
    """1 while the host's exporter can read its GPUs, 0 while it cannot or does not respond."""
    return (
        f"min by ({ONE_HOST}) (instance:gpu_collection_ok:bool{{{selector}}} "
        f'or on ({ONE_HOST}) up{{{selector}, job="gpu-exporter"}})'
    )


def readiness(selector: str) -> str:
    """0 pass, 1 warn, 2 fail, 3 unknown: also where it was last evaluated two minutes ago."""
    state, at = f"gpu_fleet_ready_state{{{selector}}}", f"gpu_fleet_ready_timestamp_seconds{{{selector}}}"
    fresh = f"max by ({ONE_HOST}) ({state} and on ({ONE_HOST}) timestamp({at}) - {at} < 120)"
    return f"{fresh} or on ({ONE_HOST}) 3 * group by ({ONE_HOST}) ({state})"


def cpu_ratio(selector: str) -> str:
    return f'1 - avg by ({ONE_HOST}) (rate(node_cpu_seconds_total{{{selector}, mode="idle"}}[$__rate_interval]))'


def ram_used(selector: str) -> str:
    return (
        f"max by ({ONE_HOST}) (node_memory_MemTotal_bytes{{{selector}}}) "
        f"- max by ({ONE_HOST}) (node_memory_MemAvailable_bytes{{{selector}}})"
    )


def ram_total(selector: str) -> str:
    return f"max by ({ONE_HOST}) (node_memory_MemTotal_bytes{{{selector}}})"


def disk_used_ratio(selector: str) -> str:
    return (
        f"1 - min by ({ONE_HOST}, mountpoint) (node_filesystem_avail_bytes{{{selector}, {_DISK}}} "
        f"/ (node_filesystem_size_bytes{{{selector}, {_DISK}}} > 0))"
    )


def network_received(selector: str) -> str:
    return f"sum by ({ONE_HOST}) (rate(node_network_receive_bytes_total{{{selector}, {_NETWORK}}}[$__rate_interval]))"


def network_sent(selector: str) -> str:
    return f"sum by ({ONE_HOST}) (rate(node_network_transmit_bytes_total{{{selector}, {_NETWORK}}}[$__rate_interval]))"
