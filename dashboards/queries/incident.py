"""What happened to one host, in order: the times that every source reports, alerts and states."""

from __future__ import annotations

from typing import Final

from dashboards.queries.common import ONE_GPU, ONE_HOST

# Subqueries have this step: an event between two steps is at most a minute off.
_STEP: Final = "1m"
_ALERT: Final = f"{ONE_HOST}, alertname, severity, xid, sxid, event, gpu, pci, uuid"


def events(selector: str) -> str:
    """Milliseconds since 1970 of every event in the time range, with labels `reported_by`, `what` and those of the GPU.

    An event that repeats is listed once, with its last time: the log below has every line.
    """
    xids = "gpu:xid_reported:timestamp_seconds"
    of_range = "> (time() - $__range_s)"

    def reported(series: str, by: str, more: str = "") -> str:
        chosen = f"{selector}, {more}" if more else selector
        return f"max by ({by}) (max_over_time({series}{{{chosen}}}[$__range])) {of_range}"

    def with_index(expression: str, by: str, source: str) -> str:
        """With the GPU's index where `source` has it for the label `by`."""
        indexes = f"max by ({ONE_HOST}, {by}, gpu) (max_over_time({source}{{{selector}}}[$__range]))"
        return f"(({expression}) * on ({ONE_HOST}, {by}) group_left (gpu) {indexes} or ignoring (gpu) ({expression}))"

    def named(expression: str, reporter: str, what: str, label: str = "") -> str:
        """`$1` in `what` is the value of `label`."""
        value = f'"{label}", "(.+)"' if label else '"", ""'
        return f'label_replace(label_replace({expression}, "what", "{what}", {value}), "reported_by", "{reporter}", "", "")'

    def first(expression: str) -> str:
        """Not what was already so when the time range began."""
        return f"min_over_time(timestamp({expression})[$__range:{_STEP}]) > (time() - $__range_s + 90)"

    def last(expression: str) -> str:
        """Not what is still so."""
        return f"max_over_time(timestamp({expression})[$__range:{_STEP}]) < (time() - 90)"

    alerts = f'ALERTS_FOR_STATE{{{selector}, severity=~"critical|warning|info"}}'
    firing = f'ALERTS{{{selector}, alertstate="firing", severity=~"critical|warning|info"}}'
    maintenance = f"max by ({ONE_HOST}, reason) (host:maintenance:bool{{{selector}}})"
    logged = reported(xids, f"{ONE_HOST}, pci, xid, event, detail", 'source="kernel"')
    logged_with_index = named(with_index(logged, "pci", "gpu:address:info"), "kernel log", "XID $1", "xid")
    exported = reported(xids, f"{ONE_HOST}, uuid, xid", 'source!="kernel"')
    parts = (
        f'label_replace({logged_with_index}, "what", "AMD driver: $1", "event", "(.+)")',
        named(with_index(exported, "uuid", "gpu:info"), "exporter", "XID $1", "xid"),
        named(
            reported("gpu_fleet_sxid_last_timestamp_seconds", f"{ONE_HOST}, pci, sxid, detail"), "kernel log", "SXid $1", "sxid"
        ),
        named(reported("node_boot_time_seconds", ONE_HOST), "kernel", "host booted"),
        named(reported("gpu_fleet_driver_loaded_timestamp_seconds", ONE_HOST), "kernel", "driver loaded"),
        named(reported("gpu_fleet_maintenance_end_timestamp_seconds", ONE_HOST), "maintenance", "maintenance ended"),
        named(first(maintenance), "maintenance", "maintenance began: $1", "reason"),
        named(last(f"max by ({ONE_GPU}) (gpu:info{{{selector}}})"), "exporter", "GPU last reported"),
        named(
            first(f"max by ({ONE_GPU}) (gpu:recovery_action:code{{{selector}}}) > 0"),
            "exporter",
            "recovery action became necessary",
        ),
        named(last(f'max by ({ONE_HOST}, job) (up{{{selector}, job!=""}} == 1)'), "Alloy", "last successful scrape: $1", "job"),
        named(f"max by ({_ALERT}) (max_over_time({alerts}[$__range])) {of_range}", "rules", "condition of $1 began", "alertname"),
        named(last(f"max by ({_ALERT}) ({firing})"), "rules", "$1 resolved", "alertname"),
    )
    return "1000 * (\n" + "\nor ".join(parts) + "\n)"


def alerts_over_time(selector: str) -> str:
    """3: critical, 2: warning, 1: info, of firing alerts."""

    def firing(severity: str) -> str:
        return f'max by ({_ALERT}) (ALERTS{{{selector}, alertstate="firing", severity="{severity}"}})'

    return f"3 * {firing('critical')} or 2 * {firing('warning')} or {firing('info')}"


def verdicts_over_time(selector: str) -> str:
    """1: the incident of a GPU is critical, 0: a warning; of its gravest code. `of`: its PCI address, or its uuid where no log
    line names the address."""
    named = f'label_join(gpu:xid_verdict:score{{{selector}}}, "of", "", "pci", "uuid")'
    with_code = f'label_replace(label_replace({named}, "code", "XID $1", "xid", "(.+)"), "code", "$1", "event", "(.+)")'
    return f"max by ({ONE_HOST}, of, code) ({with_code}) > bool 49"


def scrapes_over_time(selector: str) -> str:
    """1: the exporter answered, 0: it did not."""
    return f'min by ({ONE_HOST}, job) (up{{{selector}, job!=""}})'


def gpus_over_time(selector: str) -> str:
    """1 while the exporter lists the GPU."""
    return f"count by ({ONE_GPU}) (gpu:info{{{selector}}}) > bool 0"


def uncorrected_errors(selector: str) -> str:
    return f"max by ({ONE_GPU}) (gpu:ecc_uncorrected_volatile:total{{{selector}}})"


def container_errors(selector: str) -> str:
    """LogQL: lines of containers that speak of an error."""
    return f'{{job=~"docker|podman|pods", {selector}}} |~ `(?i)error|exception|traceback|fatal|NCCL WARN`'
