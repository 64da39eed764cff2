"""One GPU or the few of one host, line by line."""

from __future__ import annotations

from typing import Final

from dashboards.queries.common import ONE_GPU

# The worst of what holds a GPU back; a hardware slowdown without a cause of its own stands below its causes.
HELD_BACK: Final = {"sw_power_cap": 1, "hw_slowdown": 2, "sw_thermal": 3, "hw_thermal": 4, "power_brake": 5}


def who(selector: str) -> str:
    labels = f"{ONE_GPU}, model, pci_bus_id, driver_version, exporter_mode"
    return f"group by ({labels}) (gpu:info{{{selector}}})"


def held_back(selector: str) -> str:
    """The code of HELD_BACK, 0 for nothing."""
    codes = " or ".join(
        f'{code} * max by (instance, gpu, reason) (gpu:throttled:bool{{{selector}, reason="{reason}"}})'
        for reason, code in HELD_BACK.items()
    )
    return f"max by (instance, gpu) ({codes})"


def over_links(series: str, selector: str) -> str:
    """Traffic of a GPU over all its links. Each link counts once, whatever pods share the GPU."""
    return f"sum by (instance, gpu) (max by (instance, gpu, link) ({series}{{{selector}}}))"


def nvlink_both_ways(selector: str) -> str:
    """From exporters that tell only the sum."""
    both = f"max by (instance, gpu) (gpu:nvlink:bytes_per_second{{{selector}}})"
    return f"{both} unless on (instance, gpu) gpu:nvlink_transmit:bytes_per_second{{{selector}}}"


def per_link(series: str, selector: str) -> str:
    return f'max by (instance, gpu, link) ({series}{{{selector}, link!=""}})'


def growth(series: str, selector: str) -> str:
    return f"max by ({ONE_GPU}) (increase({series}{{{selector}}}[$__rate_interval]))"


def nvlink_errors(selector: str) -> str:
    return f"max by (instance, gpu, kind) (increase(gpu:nvlink_errors:total{{{selector}}}[$__rate_interval]))"


def remap_states(selector: str) -> str:
    """0 all well, 1 a replaced row or page waits for a reset, 2 no spare row was left."""
    return (
        f"max by (instance, gpu) (2 * gpu:row_remap_failed:bool{{{selector}}} or gpu:row_remap_pending:bool{{{selector}}} "
        f"or gpu:pages_retired_pending:bool{{{selector}}})"
    )
