"""Reporting and expected hosts and GPUs, firing alerts, and comparisons of clusters."""

from __future__ import annotations

from typing import Final

from dashboards.queries.common import ONE_CLUSTER, ONE_GPU, ONE_HOST, RULES_RUN, of_clusters, or_zero, summed, without_guests

_AGENT: Final = 'job="alloy"'
_MIB_1024: Final = 1 << 30  # less may be the driver's own use


def gpus(selector: str) -> str:
    """Reporting GPUs."""
    return or_zero(f"sum(instance:gpus:count{{{selector}}})", _expected_per_host(selector))


def expected_gpus(selector: str) -> str:
    """From the inventory; for hosts without a GPU count in the stack file, the most since their last maintenance."""
    return f"sum({_expected_per_host(selector)})"


def _expected_per_host(selector: str) -> str:
    most = f"inventory:gpus_expected:count{{{selector}}} or on ({ONE_HOST}) instance:gpus_most:count{{{selector}}}"
    return without_guests(most, selector)


def missing_gpus_by(selector: str, by: str) -> str:
    expected = f"sum by ({by}) ({_expected_per_host(selector)})"
    return f"{expected} - on ({by}) (sum by ({by}) (instance:gpus:count{{{selector}}}) or on ({by}) 0 * {expected})"


def gpus_by(selector: str, by: str) -> str:
    return f"sum by ({by}) (instance:gpus:count{{{selector}}})"


def hosts(selector: str) -> str:
    """Reporting hosts."""
    return or_zero(f"count({_reporting(selector)})", f"inventory:host:expected{{{selector}}}")


def expected_hosts(selector: str) -> str:
    return f"count(inventory:host:expected{{{selector}}} or on ({ONE_HOST}) {_reporting(selector)})"


def _reporting(selector: str) -> str:
    return f"group by ({ONE_HOST}) (up{{{selector}, {_AGENT}}}) or group by ({ONE_HOST}) (instance:gpus:count{{{selector}}})"


def missing_hosts(selector: str) -> str:
    """Hosts of the inventory that do not report."""
    expected = f"inventory:host:expected{{{selector}}}"
    return or_zero(f"count({expected} unless on ({ONE_HOST}) up{{{selector}, {_AGENT}}})", expected)


def missing_hosts_by(selector: str, by: str) -> str:
    silent = f"inventory:host:expected{{{selector}}} unless on ({ONE_HOST}) up{{{selector}, {_AGENT}}}"
    return f"count by ({by}) ({silent}) or 0 * count by ({by}) (inventory:host:expected{{{selector}}})"


def busy_gpus(selector: str) -> str:
    return f"sum(cluster:gpus_busy:count{{{selector}}})"


def idle_with_memory(selector: str) -> str:
    """GPUs that have been idle for half an hour while a process held more than 1 GiB of their memory."""
    return f"sum(cluster:gpus_idle_with_memory:count{{{selector}}})"


def memory_of_idle_gpus(selector: str, count: int) -> str:
    """Memory used on such GPUs, in bytes; the `count` highest."""
    held = f"max by ({ONE_GPU}) (min_over_time(gpu:memory_used:bytes{{{selector}}}[30m])) > {_MIB_1024}"
    idle = f"max by ({ONE_GPU}) (max_over_time(gpu:utilization:ratio{{{selector}}}[30m])) < 0.01"
    return f"topk({count}, ({held}) and on ({ONE_GPU}) ({idle}))"


def memory_used_ratio(selector: str, by: str) -> str:
    return f"{summed('gpu:memory_used:bytes', selector, by)} / {summed('gpu:memory_total:bytes', selector, by)}"


def memory_used_ratio_of_clusters(selector: str) -> str:
    return f"{of_clusters('cluster:gpu_memory_used:bytes', selector)} / {of_clusters('cluster:gpu_memory_total:bytes', selector)}"


def power_limit(selector: str) -> str:
    """The highest of the last day, so that it does not fall when hosts are lost."""
    return f"sum(max_over_time(cluster:gpu_power_limit:watts{{{selector}}}[1d]))"


def quantile(share: float, series: str, selector: str) -> str:
    """The recorded `share` quantile over the GPUs of each exporter; 1 is the highest."""
    return f'max by (exporter_mode) (cluster_exporter_mode:{series}{{{selector}, quantile="{share}"}})'


def total(series: str, selector: str) -> str:
    """Of the recorded sums of each exporter."""
    return f"sum(cluster_exporter_mode:{series}{{{selector}}})"


def throttled_by_reason(selector: str) -> str:
    """GPUs with reduced clocks, by clock throttle reason."""
    return f"sum by (reason) (cluster_exporter_mode:gpus_throttled:count{{{selector}}})"


def throttled_by(selector: str, by: str) -> str:
    """GPUs throttled by temperature or power supply: a SW power cap is normal under full load."""
    faults = f'gpu:throttled:bool{{{selector}, reason!="sw_power_cap"}}'
    return f"count by ({by}) (max by ({ONE_GPU}) ({faults}) == 1)"


def builds(selector: str) -> str:
    """Number of GPUs by model, driver and exporter."""
    labels = f"{ONE_CLUSTER}, model, driver_version, exporter_mode"
    return f"count by ({labels}) (group by ({labels}, instance, gpu, uuid) (gpu:info{{{selector}}}))"


# --- alerts -----------------------------------------------------------------------------------------------------------


def firing(selector: str, severity: str) -> str:
    return or_zero(f'count(ALERTS{{{selector}, alertstate="firing", severity="{severity}"}})', RULES_RUN)


def firing_by(selector: str, severity: str, by: str) -> str:
    return f'count by ({by}) (ALERTS{{{selector}, alertstate="firing", severity="{severity}"}})'


_NO_ADDRESS, _WITH_ADDRESS = 'pci=""', 'pci!=""'


def firing_alerts(selector: str) -> str:
    """Firing alerts of severity critical and warning: seconds since their condition began, one row per alert.

    An alert that names its GPU by the address in the kernel log gets the GPU's index, too.
    """
    labels = f"severity, alertname, {ONE_HOST}, gpu, pci, code, action, runbook"

    def firing(more: str) -> str:
        chosen = f'{selector}, severity=~"critical|warning", {more}'
        return f'(ALERTS_FOR_STATE{{{chosen}}} and ignoring (alertstate) ALERTS{{{chosen}, alertstate="firing"}})'

    with_index = f"max by ({ONE_HOST}, pci, gpu) (gpu:address:info{{{selector}}})"
    found = (
        f"{firing(_NO_ADDRESS)}\n"
        f"or {firing(_WITH_ADDRESS)} * on ({ONE_HOST}, pci) group_left (gpu) {with_index}\n"
        f"or ignoring (gpu) {firing(_WITH_ADDRESS)}"
    )
    return f'time() - max by ({labels}) (label_join(label_join({found}, "runbook", "", "alertname"), "code", "", "xid", "event"))'
