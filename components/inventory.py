"""What a stack expects of its hosts and GPUs: rules for its rulers, for PrometheusRule objects, and for `make rules`."""

from __future__ import annotations

from typing import Final

from alerts.inventory import stack_inventory
from alerts.model import RuleGroup
from components.fleet.series import gives
from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.counters import counters

# What GpuMetricsMissing knows of a GPU's model.
_FAMILIES: Final = (
    "gpu:ecc_uncorrected_volatile:total",
    "gpu:row_remap_failed:bool",
    "gpu:throttled:bool",
    "gpu:temperature:celsius",
    "gpu:power:watts",
    "gpu:graphics_engine_active:ratio",
)


def inventory(config: StackConfig) -> list[RuleGroup]:
    """Empty for a stack without hosts and cluster."""
    return stack_inventory(
        config.datacenter,
        config.cluster,
        {host.name: host.gpus for host in config.hosts.values() if not host.lost},
        has_kubernetes=config.kubernetes is not None,
        maintenance={host.name: host.maintenance for host in config.hosts.values() if host.maintenance},
        counted=_counted(config),
    )


def inventory_of_cluster(config: StackConfig) -> list[RuleGroup]:
    """Where Prometheus is the cluster's own, and sees nothing of the stack's hosts."""
    return stack_inventory(config.datacenter, config.cluster, {}, has_kubernetes=True, counted=_counted(config))


def _counted(config: StackConfig) -> list[str]:
    """Series that every dcgm-exporter of the stack is asked for; existing ones have lists of their own."""
    if not config.hosts and config.kubernetes is None:
        return []
    adopts = any(host.adopt for host in config.hosts.values())
    if adopts or (config.kubernetes is not None and config.kubernetes.exporter != "install"):
        return []
    listed = counters(config.dcgm.counters, config.base)
    return [name for name in _FAMILIES if gives(listed, name)]
