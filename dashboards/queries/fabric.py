"""InfiniBand and RoCE ports, NVSwitches, and how GPUs are registered with their NVLink fabric."""

from __future__ import annotations

from typing import Final

from alerts.sxid_rules import EVENTS_ONLY
from dashboards.queries.common import ONE_HOST, or_zero

# Counters of errors with the name that NVIDIA's tools give them.
ERRORS: Final = {
    "link_downed": "link_downed",
    "symbol_error": "symbol_error",
    "link_error_recovery": "link_error_recovery",
    "port_errors_received": "port_rcv_errors",
    "port_discards_transmitted": "port_xmit_discards",
    "local_ack_timeout_errors": "local_ack_timeout_err",
    "roce_slow_restart_used": "roce_slow_restart",
}


def port_states(selector: str) -> str:
    return f"max by (instance, device, port) (node_infiniband_state_id{{{selector}}})"


def received(selector: str) -> str:
    return _port_rate("node_infiniband_port_data_received_bytes_total", selector)


def sent(selector: str) -> str:
    return _port_rate("node_infiniband_port_data_transmitted_bytes_total", selector)


def _port_rate(counter: str, selector: str) -> str:
    return f"sum by (instance, device, port) (rate({counter}{{{selector}}}[$__rate_interval]))"


def errors(counter: str, selector: str) -> str:
    """Errors of all ports of a host; `counter`: of ERRORS."""
    return f"sum by (instance) (increase(node_infiniband_{counter}_total{{{selector}}}[$__rate_interval]))"


def sxids_by_switch(selector: str) -> str:
    """LogQL: count in the whole time range, per host, switch and code, which is copied to columns that map it to texts."""
    labels = "cluster, instance, pci, sxid, sxid_severity, meaning, action"
    lines = f'{{job="kernel", sxid=~".+", {selector}}} {EVENTS_ONLY}'
    counted = f"{lines} | label_format meaning=`{{{{.sxid}}}}`, action=`{{{{.sxid}}}}` [$__range]"
    return f"sum by ({labels}) (count_over_time({counted}))"


def adapter_events(selector: str) -> str:
    """LogQL: errors of network adapters per host and kind."""
    return f'sum by (instance, nic_event) (count_over_time({{job="kernel", nic_event=~".+", {selector}}}[$__interval]))'


def registered(selector: str) -> str:
    """GPUs that have joined the NVLink fabric."""
    return f"sum(cluster_exporter_mode:gpus_fabric_registered:count{{{selector}}})"


def not_registered(selector: str) -> str:
    return or_zero(
        f"sum(cluster_exporter_mode:gpus_fabric_unregistered:count{{{selector}}})",
        f"cluster_exporter_mode:gpus_fabric_registered:count{{{selector}}}",
    )


def fewest_links(selector: str) -> str:
    """Active NVLinks of the GPU that has the fewest, per host; the ten lowest."""
    return f"bottomk(10, min by ({ONE_HOST}) (instance:nvlinks_active:min{{{selector}}}))"
