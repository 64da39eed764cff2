"""One vocabulary for every exporter: recording rules that convert their metrics to the same series, in SI units and ratios.

Dashboards and alerts use only these series, so they work for every host: dcgm-exporter up to 4.8 and since 4.9 (other names,
other units), nvidia_gpu_exporter, the textfile collectors (NVIDIA and ROCm) and AMD's device-metrics-exporter.

Every series has the labels in LABELS, if its exporter reports them. Those of pods (namespace, pod, container) are kept; ids of
jobs are not, because each job would start new series of its GPUs (docs/scope.md). A GPU partitioned into MIG instances has one
series per instance, and values of the whole GPU (power, temperature) are repeated in each: take the maximum per GPU before a sum.

Names of DCGM's fields: 4.8 as in its default-counters.csv (4.6.1-4.8.4) and DCGM 4.6.0's dcgm_fields.h; 4.9 (DCGM 4.7) as in
go-dcgm's table of base-unit fields and NVIDIA's field reference; read 2026-11-21. nvidia_gpu_exporter 1.14.0, AMD exporter 1.5.2.
Every field is mapped individually: similar names differ in unit, and totals exist beside their parts.

Not done here: XID events (rules/xid-events.yaml), host metrics (node_exporter's names are the same everywhere).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from alerts.model import RuleGroup
from alerts.selectors import of_our_hosts

# The scrape interval of the exporters. Groups that are recorded less often are in EVERY.
INTERVAL: Final = "15s"

HOST_LABELS: Final = ("datacenter", "cluster", "instance")
GPU_LABELS: Final = ("gpu", "uuid", "model", "gpu_instance", "gpu_instance_profile")
WORK_LABELS: Final = ("namespace", "pod", "container")
LABELS: Final = (*HOST_LABELS, "exporter_mode", *GPU_LABELS, *WORK_LABELS)
INFO_LABELS: Final = ("gpu", "uuid", "model", "pci_bus_id", "driver_version")

# What libraries report for a value they do not have, where an exporter passes it on: DCGM's blanks (0x7ffffff0 and the next
# fifteen, 0x7ffffffffffffff0, 2^47), the largest number of a field (255, 65535, 4294967295, 18446744073709551615, 3.4e38), 0
# degrees, 0 watts, no memory at all and -1. No GPU has such a value: it is not measured. What can be measured, by unit or by
# series: at least, below.
# Source: DCGM 4.6.0, dcgm_structs.h (DCGM_INT32_BLANK, DCGM_INT64_BLANK, DCGM_FP64_BLANK); ROCm 6, amdsmi.h; read 2026-11-25.
MEASURABLE: Final[Mapping[str, tuple[float, float]]] = {
    "ratio": (0, 1.1),
    "bytes": (0, 1e13),
    "watts": (0.1, 1e4),
    "joules_total": (0, 1e12),
    "celsius": (1, 200),
    "hertz": (0, 1e10),
    "seconds_total": (0, 4e9),
    "total": (0, 1e14),
    "lanes": (1, 65),
    "version": (1, 100),
    "count": (0, 1e6),
    "code": (0, 1e6),
    "bool": (0, 1e6),
    "bytes_per_second": (0, 1e13),
    "gpu:memory_total:bytes": (1, 1e13),
}
# Counters exceed 32 bits: one GPU of a fleet had 9.6e9 corrected errors, none of the others any (NVIDIA/DCGM issue 313), and
# NVML's NVLink counters have 64. The worst must not pass for a blank. Within the limits: DCGM's blanks for no value, not found,
# not supported and not permitted, and the largest number.
_BLANK_COUNTS: Final = (0x7FFFFFF0, 0x7FFFFFF1, 0x7FFFFFF2, 0x7FFFFFF3, 0xFFFFFFFF)
_BITS: Final = 1 << 16  # of a mask of throttle reasons

_HOST: Final = ", ".join(HOST_LABELS)
_HOST_AND_MODE: Final = f"{_HOST}, exporter_mode"


@dataclass(frozen=True, kw_only=True)
class Source:
    """How one exporter's metrics are converted to a series. `metrics`: their names, to validate rules and dashboards."""

    exporter: str
    expression: str
    metrics: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)  # fixed ones


@dataclass(frozen=True, kw_only=True)
class Series:
    """One series of the vocabulary. `unit`: as in its name. `extra_labels`: in addition to LABELS."""

    name: str
    meaning: str
    sources: tuple[Source, ...]
    extra_labels: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        return self.name.rsplit(":", 1)[1]

    def _measured(self) -> str:
        """The comparisons that a measured value passes; empty: any value is one."""
        of_unit = MEASURABLE.get(self.unit) if self.name.startswith("gpu:") else None
        limits = MEASURABLE.get(self.name, of_unit)
        if limits is None:
            return ""
        least, below = limits
        blanks = [blank for blank in _BLANK_COUNTS if blank < below] if self.unit == "total" else []
        return f" >= {least:g} < {below:.10g}" + "".join(f" != {blank}" for blank in blanks)

    @property
    def rule(self) -> dict[str, Any]:
        """A GPU that two exporters report with the same labels counts once. One rule, so that the store reads a metric once."""
        by_labels: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for source in self.sources:
            by_labels.setdefault(tuple(sorted(source.labels.items())), []).append(_branch(source, self._measured()))
        labelled = [_labelled("or\n".join(branches), dict(labels)) for labels, branches in by_labels.items()]
        return {"record": self.name, "expr": of_our_hosts("or\n".join(labelled))}


def _labelled(expression: str, labels: Mapping[str, str]) -> str:
    for name, value in labels.items():
        expression = f'label_replace(\n{_indent(expression)}\n, "{name}", "{value}", "", "")\n'
    return expression


def _branch(source: Source, measured: str) -> str:
    return f"# {source.exporter}\n(\n{_indent(source.expression)}\n){'' if source.exporter in _RECORDED else measured}\n"


# Sources made of what has been recorded.
_RECORDED: Final = ("all", "derived")

# --- exporters --------------------------------------------------------------------------------------------------------

# Containers of dcgm-exporter itself, in its own chart and in the GPU operator: if the scrape does not honor the exporter's
# labels, the label `container` has one of these, and the workload labels become exported_...
_DCGM_CONTAINERS: Final = "exporter|dcgm-exporter|nvidia-dcgm-exporter"
_DCGM_IDENTITY: Final = {
    "UUID": "uuid",
    "modelName": "model",
    "GPU_I_ID": "gpu_instance",
    "GPU_I_PROFILE": "gpu_instance_profile",
}


def dcgm(
    metric: str,
    scale: str = "",
    *,
    extra: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    matchers: str = "",
    unless: str = "",
) -> Source:
    """A field of dcgm-exporter. `metric`: a name, or several joined by `|`. `scale`: conversion to our unit, such as `/ 100`.

    `unless`: of the GPU's index, a metric that is preferred where a host has it, or why the value is none.
    """
    names = tuple(metric.split("|"))
    by_name = f'__name__=~"{metric}", ' if len(names) > 1 else ""
    chosen = f"{'' if by_name else metric}{{{by_name}{f'{matchers}, ' if matchers else ''}"
    of_exporter = f'{chosen}container=~"{_DCGM_CONTAINERS}", '
    of_work = f'{chosen}container!~"{_DCGM_CONTAINERS}"}}'
    device = ", ".join((_HOST_AND_MODE, "gpu", *_DCGM_IDENTITY, *extra))
    exported = {f"exported_{label}": label for label in WORK_LABELS}
    attributed = _rename(f'max by ({device}, {", ".join(exported)}) ({of_exporter}exported_pod!=""}})', exported)
    merged = f"""\
{of_work}
or
max by ({device}) ({of_exporter}exported_pod=""}})
or
{attributed}"""
    renamed = _rename(f"\n{_indent(merged)}\n", _DCGM_IDENTITY)
    expression = _scaled(f"max by ({', '.join((*LABELS, *extra))}) ({renamed})", scale)
    return Source(
        exporter="dcgm-exporter",
        expression=f"{expression}\nunless on ({_HOST}, gpu) {unless}" if unless else expression,
        metrics=names,
        labels=labels or {},
    )


def smi(metric: str, scale: str = "", *, labels: Mapping[str, str] | None = None) -> Source:
    """A metric of nvidia_gpu_exporter, without its prefix. It has only the uuid: the other labels are of gpu:identity:info."""
    names = tuple(f"nvidia_smi_{name}" for name in metric.split("|"))
    selector = names[0] if len(names) == 1 else f'{{__name__=~"{"|".join(names)}"}}'
    return Source(
        exporter="nvidia_gpu_exporter",
        expression=_scaled(
            f"""\
max by ({_HOST_AND_MODE}, uuid) (
  label_replace({selector}, "uuid", "GPU-$1", "uuid", "([0-9a-f].*)")
)
* on ({_HOST}, uuid) group_left (gpu, model)
topk by ({_HOST}, uuid) (1, gpu:identity:info)""",
            scale,
        ),
        metrics=names,
        labels=labels or {},
    )


def textfile(
    metric: str, scale: str = "", *, extra: Sequence[str] = (), raw: str = "{}", identity: str = "gpu:identity:info"
) -> Source:
    """A metric of the textfile collectors, without its prefix; `raw`: an expression applied to it first.

    They have only the index; the other labels come from `identity`. The scripts that they replace have no info metric and are
    used as they are. Where the collectors run, a GPU without identity is skipped: its first samples would look like a second
    GPU without uuid.
    """
    own = f"max by ({', '.join((_HOST_AND_MODE, 'gpu', *extra))}) ({raw.format(f'node_gpu_{metric}')})"
    return Source(
        exporter="textfile",
        expression=_scaled(
            f"""\
  {own}
* on ({_HOST}, gpu) group_left (uuid, model)
  topk by ({_HOST}, gpu) (1, {identity})
or on ({_HOST}, gpu)
  ({own} unless on ({_HOST}) node_gpu_info)""",
            scale,
        ),
        metrics=(f"node_gpu_{metric}",),
    )


def links(metric: str, *, extra: Sequence[str] = (), raw: str = "{}") -> Source:
    """A metric of the textfile collector of links, which runs beside every exporter of NVIDIA's GPUs."""
    return textfile(metric, extra=extra, raw=raw, identity="gpu:info")


def _over_links(gpu: str, link: str) -> str:
    """The rate of a counter of single links, per GPU. Each link counts once, even if several pods share the GPU."""
    return f"sum by ({_HOST_AND_MODE}, {gpu}) (max by ({_HOST_AND_MODE}, {gpu}, {link}) (rate({{}}[1m])))"


def nvlink_exporter(metric: str, scale: str, *, raw: str = "{}") -> Source:
    """A metric of prometheus_nvlink_exporter (seed 003), where it still runs. It has only indices, as GPUID and LinkID."""
    own = f"max by ({_HOST_AND_MODE}, gpu) ({_rename(raw.format(metric), {'GPUID': 'gpu'})})"
    return Source(
        exporter="prometheus_nvlink_exporter",
        expression=_scaled(f"{own}\n* on ({_HOST}, gpu) group_left (uuid, model)\ntopk by ({_HOST}, gpu) (1, gpu:info)", scale),
        metrics=(metric,),
    )


def amd(
    metric: str, scale: str = "", *, matchers: str = "", labels: Mapping[str, str] | None = None, below: int | None = None
) -> Source:
    """A metric of AMD's device-metrics-exporter, or several joined by `|` of which a GPU has one.

    Any of them may have the prefix of the exporter's documentation (MetricsFieldPrefix in its configuration). `below`: larger
    values are not measured, and there is another metric or a comparison that they would outdo.
    """
    names = tuple(metric.split("|"))
    selector = f"{{{', '.join(filter(None, (amd_names(*names), matchers)))}}}"
    return Source(
        exporter="AMD's device-metrics-exporter",
        expression=_scaled(_of_amd(selector if below is None else f"{selector} < {below}"), scale),
        metrics=names,
        labels=labels or {},
    )


def amd_names(*names: str) -> str:
    return f'__name__=~"{"|".join(f"{prefix}{name}" for name in names for prefix in ("", "amd_"))}"'


def _of_amd(selector: str, *more: str) -> str:
    """A guest's GPU has no card_model, and the largest number instead of a partition. card_model may be the number of a board.

    A partition is an instance of its GPU, which has the index and the uuid of its first partition.
    """
    identity = {"gpu_id": "gpu", "gpu_uuid": "uuid", "card_model": "model", "card_series": "model"}
    others = ("gpu_partition_id", "namespace", "pod", "container", "serial_number", *more)
    own = f"max by ({', '.join((_HOST_AND_MODE, *identity, *others))}) ({selector})"
    renamed = _rename(f'label_replace({own}, "gpu_instance", "$1", "gpu_partition_id", "([0-9]{{1,4}})")', identity)
    each = f"max without (gpu_partition_id, {', '.join(identity)}) ({renamed})"
    of_divided = f"on ({_HOST}, serial_number) group_left (gpu, uuid) gpu:partitions:info"
    others_alone = f"unless on ({_HOST}, serial_number) gpu:partitions:info"
    return f"""\
max without (serial_number) (
  max without (gpu, uuid) ({each}) * {of_divided}
  or
  ({each} {others_alone})
)"""


def _hwmon(label: str) -> Source:
    """The critical temperature of a sensor of amdgpu, from node_exporter: AMD's exporter reports no limits.

    It reports no PCI addresses either. The GPUs of a host are alike, so the lowest limit of the host is that of each.
    """
    chip = f"{_HOST}, chip"
    sensor = f'node_hwmon_sensor_label{{label="{label}"}} and on ({chip}) node_hwmon_chip_names{{chip_name="amdgpu"}}'
    limit = f"min by ({_HOST}) (node_hwmon_temp_crit_celsius and on ({chip}, sensor) ({sensor}))"
    return Source(
        exporter="AMD's device-metrics-exporter and node_exporter",
        expression=f"0 * ({amd('gpu_total_vram').expression})\n+ on ({_HOST}) group_left ()\n{limit}",
        metrics=("node_hwmon_temp_crit_celsius", "node_hwmon_sensor_label", "node_hwmon_chip_names", "gpu_total_vram"),
    )


def _margin_of_smi() -> Source:
    """nvidia-smi has the margin up to the limit: T.Limit."""
    margin, temperature = smi("temperature_gpu_tlimit"), smi("temperature_gpu")
    return replace(
        margin,
        expression=f"(\n{_indent(margin.expression)}\n)\n+\n(\n{_indent(temperature.expression)}\n)",
        metrics=(*margin.metrics, *temperature.metrics),
    )


def derived(expression: str, *metrics: str) -> Source:
    """Derived from other series of the vocabulary if an exporter does not report it. Only for hosts that have `metrics`."""
    present = f"group by ({_HOST}) ({metrics[0]})"
    return Source(exporter="derived", expression=f"({expression})\nand on ({_HOST})\n{present}", metrics=metrics)


# Jobs that scrape an exporter of GPUs: ours, and those that others run (dcgm-exporter, AMD's device-metrics-exporter).
GPU_EXPORTERS: Final = "gpu-exporter|.*dcgm.*|.*amd.*exporter.*|.*device-metrics-exporter.*"

# NVIDIA's library does not return while its driver hangs, and dcgm-exporter does not answer then; neither does
# nvidia_gpu_exporter with its NVML backend. A scrape times out after 10 s, but a stopped exporter refuses the connection.
# Within two minutes, because Kubernetes restarts an exporter that does not answer. Where nvidia-smi works meanwhile (the
# links collector), the exporter is only slow: dcgm-exporter with dozens of MIG instances (NVIDIA/dcgm-exporter issue 625).
_SCRAPE_TIMES_OUT: Final = Source(
    exporter="all",
    expression=f"""\
0 * max by ({_HOST}) (
  up{{job=~"{GPU_EXPORTERS}"}} == 0
  and
  max_over_time(scrape_duration_seconds{{job=~"{GPU_EXPORTERS}"}}[2m]) > 9
  unless on ({_HOST})
  (
    node_gpu_collector_success{{collector="links"}} == 1
    and on ({_HOST})
    timestamp(node_gpu_collector_timestamp_seconds{{collector="links"}}) - node_gpu_collector_timestamp_seconds < 120
  )
)""",
    metrics=("up", "scrape_duration_seconds", "node_gpu_collector_success", "node_gpu_collector_timestamp_seconds"),
)
# dcgm-exporter may also go on with the last values of DCGM's cache. The links collector runs nvidia-smi four or five times and
# waits 3 s for each; where it has nothing to report, it fails within seconds.
_LINKS_TIME_OUT: Final = Source(
    exporter="textfile",
    expression=f"""\
0 * max by ({_HOST}) (
  node_gpu_collector_success{{collector="links"}} == 0
  and on ({_HOST})
  node_gpu_collector_duration_seconds{{collector="links"}} >= 12
)""",
    metrics=("node_gpu_collector_success", "node_gpu_collector_duration_seconds"),
)


def _per_host(exporter: str, aggregation: str, selector: str) -> Source:
    return Source(exporter=exporter, expression=f"{aggregation} by ({_HOST}) ({selector})", metrics=(selector.partition("{")[0],))


def _age(exporter: str, selector: str) -> Source:
    """The time of a sample is that of the clock that its value is from: the ruler's clock may differ."""
    metric = selector.partition("{")[0]
    return Source(exporter=exporter, expression=f"min by ({_HOST}) (timestamp({selector}) - {metric})", metrics=(metric,))


def _rename(expression: str, names: dict[str, str]) -> str:
    """Copies labels; the enclosing aggregation drops the old ones."""
    for old, new in names.items():
        expression = f'label_replace({expression}, "{new}", "$1", "{old}", "(.+)")'
    return expression


def _scaled(expression: str, scale: str) -> str:
    return f"(\n{_indent(expression)}\n) {scale}" if scale else expression


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


# --- the series ------------------------------------------------------------------------------------------------------

_MIB: Final = "* 1048576"

# A GPU is listed if it has any of these, of which the first is used: a guest of vGPU has no temperature and no power, a GPU with
# MIG no utilization, and a list of counters may leave out any field. All are read from the GPU at once: one that is lost has
# none.
_OF_EVERY_DCGM_GPU: Final = (
    "DCGM_FI_DEV_GPU_TEMP|DCGM_FI_DEV_GPU_TEMP_CELSIUS",
    "DCGM_FI_DEV_FB_USED|DCGM_FI_DEV_FB_USED_BYTES",
    "DCGM_FI_DEV_GPU_UTIL|DCGM_FI_DEV_GPU_UTIL_RATIO",
    "DCGM_FI_DEV_SM_CLOCK|DCGM_FI_DEV_SM_CLOCK_HERTZ",
)
_OF_EVERY_AMD_GPU: Final = ("gpu_total_vram", "gpu_used_vram", "gpu_gfx_activity", "gpu_health")


def _first(selectors: Iterable[str], *labels: str) -> str:
    return f" or on ({', '.join((_HOST, *labels))}) ".join(selectors)


# Of the partitions of a GPU only its serial number says that they are one.
_PARTITIONS: Final = (
    f'{amd_names(*_OF_EVERY_AMD_GPU)}, gpu_compute_partition_type!~"(?i)(spx)?", serial_number!~"(?i)(n/a|unknown|0*)"'
)
DIVIDED: Final = Series(
    name="gpu:partitions:info",
    meaning="Always 1: identity of the first partition of an AMD GPU in partitions, which stands for the GPU.",
    extra_labels=("serial_number",),
    sources=(
        Source(
            exporter="AMD's device-metrics-exporter",
            expression=f"""\
group by ({_HOST}, gpu, uuid, serial_number) (
  {_rename(f'{{{_PARTITIONS}, gpu_partition_id="0"}}', {"gpu_id": "gpu", "gpu_uuid": "uuid"})}
)""",
            metrics=_OF_EVERY_AMD_GPU,
        ),
    ),
)

INFO: Final = Series(
    name="gpu:info",
    meaning="Always 1: identity of a GPU. pci_bus_id in the form of its exporter.",
    extra_labels=("pci_bus_id", "driver_version"),
    sources=(
        Source(
            exporter="dcgm-exporter",
            expression=f"""\
group by ({_HOST_AND_MODE}, {", ".join(INFO_LABELS)}) (
  {
                _rename(
                    _first((f'{{__name__=~"{names}"}}' for names in _OF_EVERY_DCGM_GPU), "gpu", "UUID"),
                    {
                        "UUID": "uuid",
                        "modelName": "model",
                        "DCGM_FI_DRIVER_VERSION": "driver_version",
                        "DCGM_FI_SYSTEM_DRIVER_VERSION": "driver_version",
                    },
                )
            }
)""",
            metrics=tuple(name for names in _OF_EVERY_DCGM_GPU for name in names.split("|")),
        ),
        Source(
            exporter="nvidia_gpu_exporter",
            expression=f"""\
group by ({_HOST_AND_MODE}, {", ".join(INFO_LABELS)}) (
  label_replace({_rename("nvidia_smi_gpu_info", {"index": "gpu", "name": "model"})}, "uuid", "GPU-$1", "uuid", "([0-9a-f].*)")
)""",
            metrics=("nvidia_smi_gpu_info",),
        ),
        Source(
            exporter="textfile",
            expression=f"""\
group by ({_HOST_AND_MODE}, {", ".join(INFO_LABELS)}) (
  {_rename("node_gpu_info", {"pci": "pci_bus_id"})}
)""",
            metrics=("node_gpu_info",),
        ),
        Source(
            exporter="AMD's device-metrics-exporter",
            expression=f"""\
group by ({_HOST_AND_MODE}, {", ".join(label for label in INFO_LABELS if label != "pci_bus_id")}) (
{_indent(_of_amd(_first((f"{{{amd_names(name)}}}" for name in _OF_EVERY_AMD_GPU), "gpu_id", "gpu_uuid"), "driver_version"))}
)""",
            metrics=_OF_EVERY_AMD_GPU,
        ),
    ),
)


def _identity(exporter: str, *metrics: str) -> Source:
    selector = metrics[0] if len(metrics) == 1 else f'{{__name__=~"{"|".join(metrics)}"}}'
    return Source(
        exporter=exporter,
        expression=f"""\
group by ({_HOST}) ({selector})
* on ({_HOST}) group_right ()
group by ({_HOST}, gpu, uuid, model) (gpu:info)""",
        metrics=metrics,
    )


# The join with gpu:info, once for all series. Hosts with dcgm-exporter alone, whose series have every label, are not in it.
IDENTITY: Final = Series(
    name="gpu:identity:info",
    meaning="Always 1: index, uuid and model of a GPU on a host with an exporter that reports only one of them.",
    sources=(
        _identity("nvidia_gpu_exporter", "nvidia_smi_gpu_info"),
        # The scripts that the collectors replace have no info metric.
        _identity("textfile", "node_gpu_info", "node_gpu_utilization_percent", "node_gpu_memory_used_bytes"),
    ),
)

_JOB_LABELS: Final = ("job_id", "user", "account", "partition")
# A GPU that a job has and that is lost has no gpu:info any more; AMD's have no uuid in Slurm's list.
_JOB: Final = "gpu_fleet_job_info"
JOB: Final = Series(
    name="gpu:job:info",
    meaning="Always 1: a job of a scheduler that has this GPU, or this MIG instance of it.",
    extra_labels=_JOB_LABELS,
    sources=(
        Source(
            exporter="textfile",
            expression=f"""\
group by ({_HOST_AND_MODE}, gpu, uuid, model, gpu_instance, {", ".join(_JOB_LABELS)}) (
  {_JOB}{{uuid!=""}} * on ({_HOST}, uuid) group_left (gpu, model) topk by ({_HOST}, uuid) (1, gpu:info)
  or
  {_JOB}{{uuid=""}} * on ({_HOST}, gpu) group_left (uuid, model) topk by ({_HOST}, gpu) (1, gpu:info)
  or
  {_JOB}{{uuid!=""}} unless on ({_HOST}, uuid) gpu:info
)""",
            metrics=(_JOB,),
        ),
    ),
)

_THROTTLE_BITS: Final = {"sw_power_cap": 4, "hw_slowdown": 8, "sw_thermal": 32, "hw_thermal": 64, "power_brake": 128}
_THROTTLE_NAMES: Final = {
    "sw_power_cap": "sw_power_cap",
    "hw_slowdown": "hw_slowdown",
    "sw_thermal": "sw_thermal_slowdown",
    "hw_thermal": "hw_thermal_slowdown",
    "power_brake": "hw_power_brake_slowdown",
}


# AMD's violations: PROCHOT is a signal of the host, PPT is the power limit. The exporter reports the share of the last interval
# in which they limited the clocks. Below a tenth, which is our choice, nobody needs to look.
_AMD_VIOLATIONS: Final = {
    "sw_power_cap": ("ppt",),
    "hw_thermal": ("socket_thermal", "vr_thermal", "hbm_thermal"),
    "power_brake": ("processor_hot",),
}
_AMD_THROTTLED: Final = ">= bool 10"


def _throttle() -> tuple[Source, ...]:
    # The bits are NVML's nvmlClocksEventReason*; drivers before R535 use throttle instead of event.
    return tuple(
        source
        for reason, bit in _THROTTLE_BITS.items()
        for source in (
            smi(
                f"clocks_event_reasons_{_THROTTLE_NAMES[reason]}|clocks_throttle_reasons_{_THROTTLE_NAMES[reason]}",
                labels={"reason": reason},
            ),
            _bit(dcgm("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS|DCGM_FI_DEV_CLOCKS_EVENT_REASONS", labels={"reason": reason}), bit),
        )
    ) + tuple(
        amd(
            "|".join(f"gpu_violation_{name}_residency_percentage" for name in names),
            _AMD_THROTTLED,
            labels={"reason": reason},
            below=101,
        )
        for reason, names in _AMD_VIOLATIONS.items()
    )


def _throttle_time() -> tuple[Source, ...]:
    fields = {
        "power": "POWER",
        "thermal": "THERMAL",
        "sync_boost": "SYNC_BOOST",
        "board_limit": "BOARD_LIMIT",
        "reliability": "RELIABILITY",
    }
    counters = "clocks_event_reasons_counters"
    by_field = tuple(
        dcgm(f"DCGM_FI_DEV_{field}_VIOLATION", "/ 1000000000", labels={"reason": reason}) for reason, field in fields.items()
    )
    by_second = tuple(
        dcgm(f"DCGM_FI_DEV_GPU_{reason.upper()}_THROTTLE_SECONDS_TOTAL", labels={"reason": reason})
        for reason in ("power", "thermal")
    )
    by_smi = (
        smi(f"{counters}_sw_power_cap_seconds", labels={"reason": "power"}),
        smi(f"{counters}_hw_thermal_slowdown_seconds", labels={"reason": "thermal"}),
    )
    return (*by_field, *by_second, *by_smi)


def _bit(source: Source, bit: int) -> Source:
    return replace(source, expression=f"floor(((\n{_indent(source.expression)}\n) < {_BITS}) / {bit}) % 2")


def _nvlink_errors() -> tuple[Source, ...]:
    # Those with ERROR in their name before Hopper, ERROR_DL_... (in DCGM 4.7 ..._TOTAL) since then.
    before = "DCGM_FI_DEV_NVLINK_{0}_ERROR_COUNT_TOTAL|DCGM_FI_DEV_NVLINK_{0}_ERROR_TOTAL"
    since = "DCGM_FI_DEV_NVLINK_ERROR_DL_{0}"
    return (
        dcgm(before.format("CRC_FLIT"), labels={"kind": "crc_flit"}),
        dcgm(before.format("CRC_DATA"), labels={"kind": "crc_data"}),
        dcgm(f"{since.format('CRC')}|DCGM_FI_DEV_NVLINK_CRC_ERROR_TOTAL", labels={"kind": "crc"}),
        dcgm(f"{before}|{since}|DCGM_FI_DEV_NVLINK_{{0}}_TOTAL".format("REPLAY"), labels={"kind": "replay"}),
        dcgm(f"{before}|{since}|DCGM_FI_DEV_NVLINK_{{0}}_TOTAL".format("RECOVERY"), labels={"kind": "recovery"}),
    )


_HEALTH_LABELS: Final = ("health_watch", "health_error_code")


def _health(watches: Source) -> Source:
    """Of eleven watches, those that are not healthy."""
    return replace(
        watches,
        expression=f"""\
(
{_indent(watches.expression)}
) > 0
or on ({_HOST}, exporter_mode, gpu, uuid)
max without ({", ".join(_HEALTH_LABELS)}) (
{_indent(watches.expression)}
)""",
    )


# Another profiler, or a second host engine, has the counters: DCGM reports 0 for all of them while the GPU is busy.
_PROFILING_STOPPED: Final = (
    '({__name__=~"DCGM_FI_PROF_GR_ENGINE_ACTIVE|DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", GPU_I_ID=""} == 0 '
    f"and on ({_HOST}, gpu) gpu:utilization:ratio >= 0.5)"
)


# Group -> its series. A series may use those before it in the same group.
GROUPS: Final[dict[str, tuple[Series, ...]]] = {
    "gpu-info": (
        DIVIDED,
        INFO,
        IDENTITY,
        JOB,
        Series(
            name="instance:gpus:count",
            meaning="Number of GPUs that a host reports. An AMD GPU in partitions is one, and so is a GPU with MIG.",
            sources=(
                Source(
                    exporter="all",
                    expression=f"""\
count by ({_HOST}) (
  group by ({_HOST}, pci_bus_id) (gpu:info{{uuid=~"0x.+", pci_bus_id!=""}})
  or
  (
    group by ({_HOST}, gpu, uuid) (gpu:info)
    unless on ({_HOST}, gpu) gpu:info{{uuid=~"0x.+", pci_bus_id!=""}}
  )
)""",
                    metrics=("gpu:info",),
                ),
            ),
        ),
        Series(
            name="instance:gpu_collection_ok:bool",
            meaning="0 while the exporter runs but cannot read the GPUs.",
            sources=(
                _SCRAPE_TIMES_OUT,
                _LINKS_TIME_OUT,
                _per_host("nvidia_gpu_exporter", "min", "nvidia_smi_last_collect_success"),
                _per_host("textfile", "min", 'node_gpu_collector_success{collector!="links"}'),
            ),
        ),
        Series(
            name="instance:gpu_collection_age:seconds",
            meaning="Time since the GPUs were last read, by the host's clock.",
            sources=(
                _age("nvidia_gpu_exporter", "nvidia_smi_last_collect_success_timestamp_seconds"),
                _age("textfile", 'node_gpu_collector_timestamp_seconds{collector!="links"}'),
            ),
        ),
    ),
    "gpu-usage": (
        Series(
            name="gpu:utilization:ratio",
            meaning="Share of time in which at least one kernel was running; not how much of the GPU it used.",
            sources=(
                dcgm("DCGM_FI_DEV_GPU_UTIL", "/ 100"),
                dcgm("DCGM_FI_DEV_GPU_UTIL_RATIO"),
                # A GPU with MIG instances has no utilization, only the activity of each instance.
                dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE|DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", matchers='GPU_I_ID!=""'),
                smi("utilization_gpu_ratio"),
                textfile("utilization_percent", "/ 100"),
                amd("gpu_gfx_activity", "/ 100"),
            ),
        ),
        Series(
            name="gpu:memory_activity:ratio",
            meaning="Share of time in which memory was read or written.",
            sources=(
                dcgm("DCGM_FI_DEV_MEM_COPY_UTIL", "/ 100"),
                dcgm("DCGM_FI_DEV_MEMORY_UTIL_RATIO"),
                smi("utilization_memory_ratio"),
                amd("gpu_umc_activity", "/ 100"),
            ),
        ),
        Series(
            name="gpu:memory_used:bytes",
            meaning="Used memory.",
            sources=(
                dcgm("DCGM_FI_DEV_FB_USED", _MIB),
                dcgm("DCGM_FI_DEV_FB_USED_BYTES"),
                smi("memory_used_bytes"),
                textfile("memory_used_bytes"),
                amd("gpu_used_vram", _MIB),
            ),
        ),
        Series(
            name="gpu:memory_free:bytes",
            meaning="Memory available to new programs; for schedulers.",
            sources=(
                dcgm("DCGM_FI_DEV_FB_FREE", _MIB),
                dcgm("DCGM_FI_DEV_FB_FREE_BYTES"),
                smi("memory_free_bytes"),
                textfile("memory_total_bytes", raw="{} - node_gpu_memory_used_bytes"),
                amd("gpu_free_vram", _MIB),
            ),
        ),
        Series(
            name="gpu:power:watts",
            meaning="Power draw.",
            sources=(
                dcgm("DCGM_FI_DEV_POWER_USAGE|DCGM_FI_DEV_BOARD_POWER_WATTS"),
                smi("power_draw_watts"),
                textfile("power_draw_watts"),
                amd("gpu_package_power|gpu_average_package_power", below=10000),
            ),
        ),
        Series(
            name="gpu:temperature:celsius",
            meaning="Temperature of the GPU core.",
            sources=(
                dcgm("DCGM_FI_DEV_GPU_TEMP|DCGM_FI_DEV_GPU_TEMP_CELSIUS"),
                smi("temperature_gpu"),
                textfile("temperature_celsius"),
                amd("gpu_junction_temperature|gpu_edge_temperature", below=200),
            ),
        ),
        Series(
            name="gpu:memory_temperature:celsius",
            meaning="Temperature of the GPU's memory.",
            sources=(
                dcgm("DCGM_FI_DEV_MEMORY_TEMP|DCGM_FI_DEV_MEMORY_TEMP_CELSIUS"),
                smi("temperature_memory"),
                textfile("memory_temperature_celsius"),
                amd("gpu_memory_temperature"),
            ),
        ),
        Series(
            name="gpu:sm_clock:hertz",
            meaning="SM clock.",
            sources=(
                dcgm("DCGM_FI_DEV_SM_CLOCK", "* 1000000"),
                dcgm("DCGM_FI_DEV_SM_CLOCK_HERTZ"),
                smi("clocks_current_sm_clock_hz"),
                amd("gpu_clock", "* 1000000", matchers='clock_type=~"(?i).*system.*"'),
            ),
        ),
    ),
    "gpu-profiling": (
        Series(
            name="gpu:sm_active:ratio",
            meaning="SM activity: share of SMs with at least one warp assigned, averaged over time.",
            sources=(dcgm("DCGM_FI_PROF_SM_ACTIVE|DCGM_FI_PROF_SM_UTIL_RATIO", unless=_PROFILING_STOPPED),),
        ),
        Series(
            name="gpu:sm_occupancy:ratio",
            meaning="Warps resident on the SMs, of the most that they could hold, averaged over time.",
            sources=(dcgm("DCGM_FI_PROF_SM_OCCUPANCY|DCGM_FI_PROF_SM_OCCUPANCY_RATIO", unless=_PROFILING_STOPPED),),
        ),
        Series(
            name="gpu:tensor_active:ratio",
            meaning="Share of cycles in which the tensor cores were active.",
            sources=(dcgm("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE|DCGM_FI_PROF_TENSOR_UTIL_RATIO", unless=_PROFILING_STOPPED),),
        ),
        *(
            Series(
                name=f"gpu:{kind.lower()}_active:ratio",
                meaning=f"Share of cycles in which the {kind} pipe was active.",
                sources=(dcgm(f"DCGM_FI_PROF_PIPE_{kind}_ACTIVE|DCGM_FI_PROF_{kind}_UTIL_RATIO", unless=_PROFILING_STOPPED),),
            )
            for kind in ("FP64", "FP32", "FP16")
        ),
        Series(
            name="gpu:dram_active:ratio",
            meaning="Share of cycles in which the memory interface was active.",
            sources=(dcgm("DCGM_FI_PROF_DRAM_ACTIVE|DCGM_FI_PROF_DRAM_UTIL_RATIO", unless=_PROFILING_STOPPED),),
        ),
        Series(
            name="gpu:graphics_engine_active:ratio",
            meaning="Share of time in which any part of the graphics or compute engines was active.",
            sources=(dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE|DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", unless=_PROFILING_STOPPED),),
        ),
    ),
    "gpu-traffic": (
        # These are rates already, even if old counter lists type them as counters: never apply rate().
        Series(
            name="gpu:pcie_transmit:bytes_per_second",
            meaning="PCIe traffic from the GPU.",
            sources=(
                dcgm("DCGM_FI_PROF_PCIE_TX_BYTES"),
                smi("pcie_throughput_tx_bytes_per_second"),
                links("pcie_transmit_bytes_per_second"),
                nvlink_exporter("gpu_pci_tx_mb_per_s", "* 1000000"),
            ),
        ),
        Series(
            name="gpu:pcie_receive:bytes_per_second",
            meaning="PCIe traffic to the GPU.",
            sources=(
                dcgm("DCGM_FI_PROF_PCIE_RX_BYTES"),
                smi("pcie_throughput_rx_bytes_per_second"),
                links("pcie_receive_bytes_per_second"),
                nvlink_exporter("gpu_pci_rx_mb_per_s", "* 1000000"),
            ),
        ),
        Series(
            name="gpu:nvlink_transmit:bytes_per_second",
            meaning="NVLink traffic from the GPU over all links.",
            sources=(
                dcgm("DCGM_FI_PROF_NVLINK_TX_BYTES", unless="node_gpu_nvlink_transmit_bytes_total"),
                links("nvlink_transmit_bytes_total", raw=_over_links("gpu", "link")),
                nvlink_exporter("gpu_nvlink_tx_kbytes", "* 1000", raw=_over_links("GPUID", "LinkID")),
            ),
        ),
        Series(
            name="gpu:nvlink_receive:bytes_per_second",
            meaning="NVLink traffic to the GPU over all links.",
            sources=(
                dcgm("DCGM_FI_PROF_NVLINK_RX_BYTES", unless="node_gpu_nvlink_receive_bytes_total"),
                links("nvlink_receive_bytes_total", raw=_over_links("gpu", "link")),
                nvlink_exporter("gpu_nvlink_rx_kbytes", "* 1000", raw=_over_links("GPUID", "LinkID")),
            ),
        ),
        Series(
            name="gpu:nvlink:bytes_per_second",
            meaning="NVLink traffic of the GPU over all links, both directions.",
            sources=(
                dcgm("DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND"),
                # MB/s of a million bytes; 4.9 still exports it beside the one in bytes.
                dcgm("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL|DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL", "* 1000000"),
            ),
        ),
    ),
    "gpu-memory-errors": (
        Series(
            name="gpu:ecc_uncorrected_volatile:total",
            meaning="Uncorrectable ECC errors since the driver was loaded.",
            sources=(
                dcgm("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"),
                smi("ecc_errors_uncorrected_volatile_total"),
                textfile("ecc_uncorrected_total"),
                amd("gpu_ecc_uncorrect_total"),
            ),
        ),
        Series(
            name="gpu:row_remap_failed:bool",
            meaning="1 once row remapping has failed.",
            sources=(
                dcgm("DCGM_FI_DEV_ROW_REMAP_FAILURE|DCGM_FI_DEV_ROW_REMAP_FAILED"),
                smi("remapped_rows_failure"),
                textfile("row_remap_failed"),
            ),
        ),
        Series(
            name="gpu:row_remap_pending:bool",
            meaning="1 while row remapping is pending until the next GPU reset.",
            sources=(
                dcgm("DCGM_FI_DEV_ROW_REMAP_PENDING"),
                smi("remapped_rows_pending"),
                textfile("row_remap_pending"),
            ),
        ),
        Series(
            name="gpu:sram_errors_exceeded:bool",
            meaning="1 once uncorrectable SRAM errors exceed the GPU's threshold: NVIDIA replaces such a GPU.",
            sources=(
                dcgm("DCGM_FI_DEV_THRESHOLD_SRM|DCGM_FI_DEV_SRAM_EXCEEDED"),
                smi("ecc_errors_uncorrected_aggregate_sram_threshold_exceeded"),
            ),
        ),
        Series(
            name="gpu:vendor_health:bool",
            meaning="0 while AMD's exporter reports the GPU as unhealthy.",
            sources=(amd("gpu_health"),),
        ),
        Series(
            name="gpu:recovery_action:code",
            meaning=(
                "Recovery action of the driver: 0 none, 1 reset the GPU, 2 reboot the node, 3 drain peer-to-peer work, "
                "4 drain and reset, 5 recover the IMEX domain, 6 reset the bus, 7 reboot the system."
            ),
            sources=(
                dcgm("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION|DCGM_FI_DEV_GPU_RECOVERY_ACTION"),
                smi("gpu_recovery_action"),
                textfile("recovery_action"),
            ),
        ),
    ),
    "gpu-states": (
        Series(
            name="gpu:throttled:bool",
            meaning="1 while the clocks are throttled for this reason.",
            extra_labels=("reason",),
            sources=_throttle(),
        ),
        Series(
            name="gpu:throttled:seconds_total",
            meaning="Time in which the clocks were throttled for this reason.",
            extra_labels=("reason",),
            sources=_throttle_time(),
        ),
        Series(
            name="gpu:encoder_utilization:ratio",
            meaning="Share of time in which the video encoder was active.",
            sources=(
                dcgm("DCGM_FI_DEV_ENC_UTIL", "/ 100"),
                dcgm("DCGM_FI_DEV_ENC_UTIL_RATIO"),
                smi("utilization_encoder_ratio"),
            ),
        ),
        Series(
            name="gpu:decoder_utilization:ratio",
            meaning="Share of time in which the video decoder was active.",
            sources=(
                dcgm("DCGM_FI_DEV_DEC_UTIL", "/ 100"),
                dcgm("DCGM_FI_DEV_DEC_UTIL_RATIO"),
                smi("utilization_decoder_ratio"),
            ),
        ),
        Series(
            name="gpu:ecc_corrected_volatile:total",
            meaning="Corrected ECC errors since the driver was loaded.",
            sources=(
                dcgm("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"),
                smi("ecc_errors_corrected_volatile_total"),
                textfile("ecc_corrected_total"),
                amd("gpu_ecc_correct_total"),
            ),
        ),
        Series(
            name="gpu:pages_retired_pending:bool",
            meaning="1 while page retirement (before Ampere) is pending until the next GPU reset.",
            sources=(dcgm("DCGM_FI_DEV_RETIRED_PENDING|DCGM_FI_DEV_PAGE_RETIRED_PENDING"), smi("retired_pages_pending")),
        ),
        Series(
            name="gpu:pcie_replays:total",
            meaning="PCIe packets replayed because of errors.",
            sources=(dcgm("DCGM_FI_DEV_PCIE_REPLAY_COUNTER|DCGM_FI_DEV_PCIE_REPLAY_TOTAL"), amd("pcie_replay_count")),
        ),
        Series(
            name="gpu:nvlinks_active:count",
            meaning="Active NVLinks of the GPU.",
            sources=(links("nvlinks_active"),),
        ),
        Series(
            name="gpu:nvlink_speed:bytes_per_second",
            meaning="Speed of the GPU's slowest active NVLink, in one direction.",
            sources=(links("nvlink_speed_bytes_per_second"),),
        ),
        Series(
            name="gpu:nvlink_errors:total",
            meaning="Errors on the GPU's NVLinks.",
            extra_labels=("kind",),
            sources=_nvlink_errors(),
        ),
    ),
    "gpu-minutely": (
        Series(
            name="gpu:memory_reserved:bytes",
            meaning="Memory reserved for driver and firmware.",
            sources=(
                dcgm("DCGM_FI_DEV_FB_RESERVED", _MIB),
                dcgm("DCGM_FI_DEV_FB_RESERVED_BYTES"),
                smi("memory_reserved_bytes"),
            ),
        ),
        Series(
            name="gpu:memory_total:bytes",
            meaning="Total memory of the GPU, including reserved memory.",
            sources=(
                # DCGM_FI_DEV_FB_TOTAL is not in the default counters, but its parts are. Older releases lack the reserved part.
                derived(
                    "gpu:memory_used:bytes + gpu:memory_free:bytes + (gpu:memory_reserved:bytes or gpu:memory_used:bytes * 0)",
                    "DCGM_FI_DEV_FB_USED",
                ),
                dcgm("DCGM_FI_DEV_FB_CAPACITY_BYTES"),
                smi("memory_total_bytes"),
                textfile("memory_total_bytes"),
                amd("gpu_total_vram", _MIB),
            ),
        ),
        Series(
            name="gpu:power_limit:watts",
            meaning="Enforced power limit.",
            sources=(
                dcgm("DCGM_FI_DEV_ENFORCED_POWER_LIMIT|DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS"),
                smi("enforced_power_limit_watts"),
                textfile("power_limit_watts"),
            ),
        ),
        Series(
            name="gpu:temperature_limit:celsius",
            meaning="Temperature at which the GPU reduces its clocks, as the GPU reports it.",
            sources=(
                dcgm("DCGM_FI_DEV_SLOWDOWN_TEMP|DCGM_FI_DEV_GPU_TEMP_SLOWDOWN_CELSIUS"),
                _margin_of_smi(),
                textfile("temperature_limit_celsius"),
                _hwmon("junction"),
                # Without node_exporter's sensors: what amd-smi reports for an MI300X. The junction of a busy GPU has 85 and more.
                amd("gpu_junction_temperature", "* 0 + 100", below=200),
            ),
        ),
        Series(
            name="gpu:memory_temperature_limit:celsius",
            meaning="Maximum operating temperature of the GPU's memory, as the GPU reports it.",
            sources=(
                dcgm("DCGM_FI_DEV_MEM_MAX_OP_TEMP|DCGM_FI_DEV_MEMORY_MAX_OP_TEMP_CELSIUS"),
                textfile("memory_temperature_limit_celsius"),
                _hwmon("mem"),
            ),
        ),
        Series(
            name="gpu:energy:joules_total",
            meaning="Energy used since the driver was loaded.",
            sources=(
                dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "/ 1000"),
                dcgm("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL"),
                smi("energy_joules_total"),
                amd("gpu_energy_consumed", "/ 1000000"),
            ),
        ),
        Series(
            name="gpu:rows_remapped:total",
            meaning="Memory rows remapped after uncorrectable errors, in the GPU's lifetime.",
            sources=(
                dcgm("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS|DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL"),
                smi("remapped_rows_uncorrectable"),
            ),
        ),
        Series(
            name="gpu:pcie_width_max:lanes",
            meaning="Maximum PCIe link width of GPU and slot.",
            sources=(dcgm("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH"), smi("pcie_link_width_max")),
        ),
        Series(
            name="gpu:pcie_generation_max:version",
            meaning="Maximum PCIe link generation of GPU and slot.",
            sources=(dcgm("DCGM_FI_DEV_PCIE_MAX_LINK_GEN"), smi("pcie_link_gen_max")),
        ),
        Series(
            name="gpu:fabric:info",
            meaning="Always 1: the NVLink domain of the GPU, by cluster UUID, and its clique there.",
            extra_labels=("cluster_uuid", "clique"),
            sources=(links("fabric_info", extra=("cluster_uuid", "clique")),),
        ),
        Series(
            name="gpu:memory_clock:hertz",
            meaning="Memory clock.",
            sources=(
                dcgm("DCGM_FI_DEV_MEM_CLOCK", "* 1000000"),
                dcgm("DCGM_FI_DEV_MEMORY_CLOCK_HERTZ"),
                smi("clocks_current_memory_clock_hz"),
                amd("gpu_clock", "* 1000000", matchers='clock_type=~"(?i).*memory.*"'),
            ),
        ),
        Series(
            name="gpu:dcgm_health:code",
            meaning=(
                "Result of DCGM's health watches: 10 warning, 20 failure, for each that is not healthy; 0, without a watch, "
                "for a GPU of which all are."
            ),
            extra_labels=_HEALTH_LABELS,
            sources=(_health(dcgm("DCGM_EXP_GPU_HEALTH_STATUS", extra=_HEALTH_LABELS)),),
        ),
        Series(
            name="gpu:pcie_width:lanes",
            meaning="PCIe link width.",
            sources=(dcgm("DCGM_FI_DEV_PCIE_LINK_WIDTH"), smi("pcie_link_width_current")),
        ),
        Series(
            name="gpu:pcie_generation:version",
            meaning="PCIe link generation. An idle GPU lowers it to save power.",
            sources=(dcgm("DCGM_FI_DEV_PCIE_LINK_GEN"), smi("pcie_link_gen_current")),
        ),
        Series(
            name="gpu:mig_mode:bool",
            meaning="1 for a GPU in MIG mode, with instances or without; absent for all others.",
            sources=(dcgm("DCGM_FI_DEV_MIG_MODE", "== 1"),),
        ),
        Series(
            name="gpu:fabric_state:code",
            meaning="Registration with the NVLink fabric: 0 no fabric, 1 not started, 2 in progress, 3 completed, 4 failed.",
            sources=(dcgm("DCGM_FI_DEV_FABRIC_MANAGER_STATUS"), links("fabric_state"), smi("fabric_state")),
        ),
    ),
}

# What changes seldom, is averaged over minutes, or has an alert that waits for minutes. Panels draw counters over
# $__rate_interval, four scrapes at least, which needs two samples: none of them is recorded less often than every 30 s.
EVERY: Final[Mapping[str, str]] = {"gpu-traffic": "30s", "gpu-states": "30s", "gpu-minutely": "1m"}

SERIES: Final[dict[str, Series]] = {series.name: series for group in GROUPS.values() for series in group}


def groups() -> list[RuleGroup]:
    return [
        RuleGroup(name=name, interval=EVERY.get(name, INTERVAL), rules=tuple(series.rule for series in group))
        for name, group in GROUPS.items()
    ]
