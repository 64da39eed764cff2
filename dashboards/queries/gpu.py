"""One GPU or the GPUs of one host, one line per GPU."""

from __future__ import annotations

from typing import Final

from dashboards.queries.common import ONE_GPU, ONE_HOST, top, without_guests

# By severity: the highest active code is shown. A HW slowdown without a known cause ranks below its causes.
THROTTLE_REASONS: Final = {"sw_power_cap": 1, "hw_slowdown": 2, "sw_thermal": 3, "hw_thermal": 4, "power_brake": 5}


def identity(selector: str) -> str:
    labels = f"{ONE_GPU}, model, pci_bus_id, driver_version, exporter_mode"
    return f"group by ({labels}) (gpu:info{{{selector}}})"


def lost(selector: str) -> str:
    """Milliseconds since 1970 at which each GPU was last listed, of those that were within a day and no longer are, where the
    host has fewer than it had: after a repair, another GPU with another UUID is in the place of the old one. To the minute within
    the last hour, to a quarter of an hour before: a day in minutes of every GPU is ten times as much to read, for all hosts."""
    listed = f"timestamp(group by ({ONE_GPU}, model, pci_bus_id) (gpu:info{{{selector}}}))"
    return _of_lost(f"1000 * (max_over_time({listed}[1h:1m]) or max_over_time({listed}[1d:15m]))", selector)


def last_of_lost(series: str, selector: str) -> str:
    """The last value of each of these GPUs, as closely."""
    values = f"{series}{{{selector}}}"
    return _of_lost(f"max by ({ONE_GPU}) (last_over_time({values}[1h]) or last_over_time({values}[1d:15m]))", selector)


def _of_lost(expression: str, selector: str) -> str:
    own = without_guests("instance:gpus_most:count", 'datacenter!=""')
    return (
        f"({expression}) unless on ({ONE_HOST}, uuid) gpu:info{{{selector}}} "
        f"and on ({ONE_HOST}) ({own} > 0 unless on ({ONE_HOST}) {own} <= on ({ONE_HOST}) instance:gpus:count)"
    )


def throttle_reason(selector: str) -> str:
    """The highest active code of THROTTLE_REASONS, 0 for none."""
    codes = " or ".join(
        f'{code} * max by ({ONE_HOST}, gpu, reason) (gpu:throttled:bool{{{selector}, reason="{reason}"}})'
        for reason, code in THROTTLE_REASONS.items()
    )
    return f"max by ({ONE_HOST}, gpu) ({codes})"


def throttled_share(selector: str) -> str:
    """Share of time in which the clocks were throttled, by reason; the highest."""
    return top(15, f"max by ({ONE_GPU}, reason) (rate(gpu:throttled:seconds_total{{{selector}}}[$__rate_interval]))")


def lowest_limit(series: str, selector: str) -> str:
    """Of the shown GPUs."""
    return f"min({series}{{{selector}}})"


def nvlink_total(selector: str) -> str:
    """For exporters that report only the sum of both directions."""
    both = f"max by ({ONE_HOST}, gpu) (gpu:nvlink:bytes_per_second{{{selector}}})"
    return f"{both} unless on ({ONE_HOST}, gpu) gpu:nvlink_transmit:bytes_per_second{{{selector}}}"


def per_link(counter: str, selector: str) -> str:
    return f"max by ({ONE_HOST}, gpu, link) (rate({counter}{{{selector}}}[$__rate_interval]))"


def growth(series: str, selector: str) -> str:
    return f"max by ({ONE_GPU}) (increase({series}{{{selector}}}[$__rate_interval]))"


def nvlink_errors(selector: str) -> str:
    return f"max by ({ONE_HOST}, gpu, kind) (increase(gpu:nvlink_errors:total{{{selector}}}[$__rate_interval]))"


def remap_states(selector: str) -> str:
    """0 ok, 1 row remapping or page retirement pending until a reset, 2 row remapping failed."""
    return (
        f"max by ({ONE_HOST}, gpu) (2 * gpu:row_remap_failed:bool{{{selector}}} or gpu:row_remap_pending:bool{{{selector}}} "
        f"or gpu:pages_retired_pending:bool{{{selector}}})"
    )
