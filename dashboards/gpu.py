"""GPU detail: everything about one GPU. Why is it slow, is it failing?"""

from __future__ import annotations

from typing import Any

from dashboards import parts
from dashboards.layout import Row, build
from dashboards.panels import NO_THRESHOLDS, NOT_REPORTED, RED_FROM_ONE, Column, Limit, Query, rows, states, time_series
from dashboards.queries import gpu as q
from dashboards.queries.common import GPU, NAME, per_gpu, top

ON_GPU = "GPU {{gpu}}, {{instance}}"  # the GPU first: legends are cut at their end
# The names of nvidia-smi -q -d PERFORMANCE.
THROTTLE_REASONS = {
    0: ("none", "green"),
    q.THROTTLE_REASONS["sw_power_cap"]: ("SW power cap", "blue"),
    q.THROTTLE_REASONS["hw_slowdown"]: ("HW slowdown", "orange"),
    q.THROTTLE_REASONS["sw_thermal"]: ("SW thermal slowdown", "orange"),
    q.THROTTLE_REASONS["hw_thermal"]: ("HW THERMAL SLOWDOWN", "red"),
    q.THROTTLE_REASONS["power_brake"]: ("HW POWER BRAKE", "red"),
}
REMAPPED = {0: ("ok", "green"), 1: ("pending reset", "yellow"), 2: ("FAILED", "red")}
PROFILING = "requires the profiling counters of dcgm-exporter"


def dashboard() -> dict[str, Any]:
    return build(
        "gpu",
        "GPU fleet / GPU detail",
        "One GPU or the GPUs of a host: utilization, clocks and throttle reasons, memory errors, links. Select host and GPU "
        "above.",
        variables=("datacenter", "cluster", "exporter_mode", "instance", "gpu"),
        one_host_first=True,
        rows=(
            Row(
                "Identity",
                (
                    parts.lost_gpus(GPU),
                    parts.firing_alerts(NAME, has_cluster=False, height=5),
                    _identity(),
                    parts.jobs(GPU, width=24),
                ),
            ),
            Row("Utilization", _use()),
            Row("Clock throttling and temperature", _throttling()),
            Row("Memory errors", _memory_errors()),
            Row("Links", _links()),
            Row("NVLink per link", _each_link(), is_folded=True),
            Row("Profiling", _profiling(), is_folded=True),
        ),
    )


def _line(title: str, series: str, *, description: str, unit: str, **options: Any) -> Any:
    return time_series(
        title,
        [Query(per_gpu(series, GPU), ON_GPU), *options.pop("limits", ())],
        description=description,
        unit=unit,
        **{"thresholds": NO_THRESHOLDS, "fill": 0, "width": 12, **options},
    )


def _growth(title: str, series: str, *, description: str) -> Any:
    return time_series(
        title,
        [Query(q.growth(series, GPU), ON_GPU)],
        description=description,
        unit="short",
        thresholds=NO_THRESHOLDS,
        fill=0,
        width=12,
        usual_most=1,
    )


def _identity() -> Any:
    return rows(
        "GPUs",
        [Query(q.identity(GPU), ""), Query(per_gpu("gpu:recovery_action:code", GPU), "")],
        description="Identifiers of the GPUs, for tickets and to find them in the kernel log, and the driver's recovery action.",
        width=24,
        height=7,
        columns={
            "instance": Column(heading="Host"),
            "gpu": Column(heading="GPU", width=60),
            "Value #B": Column(
                heading="Recovery action", words={str(code): word for code, word in parts.RECOVERY_ACTIONS.items()}
            ),
            "model": Column(heading="Model"),
            "uuid": Column(heading="UUID"),
            "pci_bus_id": Column(heading="PCI"),
            "driver_version": Column(heading="Driver"),
            "exporter_mode": Column(heading="Exporter"),
        },
        sort_by="GPU",
        descending=False,
        if_none="no GPU reporting: see the Host dashboard",
    )


def _use() -> tuple[Any, ...]:
    return (
        _line(
            "GPU utilization",
            "gpu:utilization:ratio",
            description="Share of time in which at least one kernel was running, however small.",
            unit="percentunit",
            most=1,
        ),
        _line(
            "Memory used",
            "gpu:memory_used:bytes",
            description="Used memory. The dashed line is the memory size of a GPU.",
            unit="bytes",
            limits=(Limit(f"max({per_gpu('gpu:memory_total:bytes', GPU)})", "total"),),
        ),
        _line(
            "Power draw",
            "gpu:power:watts",
            description="Power draw. The dashed line is the power limit of a GPU.",
            unit="watt",
            limits=(Limit(f"max({per_gpu('gpu:power_limit:watts', GPU)})", "power limit"),),
        ),
        _line(
            "SM clock",
            "gpu:sm_clock:hertz",
            description="Clock of the streaming multiprocessors. For a drop under load, see the clock throttle reasons below.",
            unit="hertz",
        ),
    )


def _throttling() -> tuple[Any, ...]:
    return (
        states(
            "Clock throttle reasons",
            Query(q.throttle_reason(GPU), ON_GPU),
            description="Why the clocks are reduced, most severe reason first. A SW power cap is normal under full load, thermal "
            "slowdown is not.",
            words=THROTTLE_REASONS,
            width=12,
            if_none=NOT_REPORTED,
        ),
        _line(
            "GPU temperature",
            "gpu:temperature:celsius",
            description="Temperature of the GPU core (AMD: junction). The dashed line is the lowest slowdown temperature.",
            unit="celsius",
            limits=(Limit(q.lowest_limit("gpu:temperature_limit:celsius", GPU), "slowdown"),),
            thresholds=parts.TEMPERATURE,
            usual_most=parts.USUAL_HOTTEST_C,
        ),
        _line(
            "Memory temperature",
            "gpu:memory_temperature:celsius",
            description="Temperature of the memory. The dashed line is the lowest maximum operating temperature of the GPUs.",
            unit="celsius",
            limits=(Limit(q.lowest_limit("gpu:memory_temperature_limit:celsius", GPU), "maximum"),),
            usual_most=100,
        ),
        _line("Memory clock", "gpu:memory_clock:hertz", description="Memory clock.", unit="hertz"),
        time_series(
            "Time throttled",
            [Query(q.throttled_share(GPU), "GPU {{gpu}} {{reason}}, {{instance}}")],
            description="Share of time in which the clocks were throttled, by reason, from the violation counters; the highest. "
            "Power is normal under full load, thermal is not.",
            unit="percentunit",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=24,
            most=1,
            if_none=NOT_REPORTED,
        ),
    )


def _memory_errors() -> tuple[Any, ...]:
    return (
        _line(
            "Uncorrectable ECC errors",
            "gpu:ecc_uncorrected_volatile:total",
            description="Since the driver was loaded. Each one means lost data.",
            unit="short",
            thresholds=RED_FROM_ONE,
            usual_most=2,
        ),
        _growth(
            "Corrected ECC errors",
            "gpu:ecc_corrected_volatile:total",
            description="Increase per interval. Isolated errors are normal.",
        ),
        _line(
            "Remapped rows",
            "gpu:rows_remapped:total",
            description="Memory rows remapped to spare rows in the GPU's lifetime. NVIDIA replaces a GPU that has run out of "
            "spare rows.",
            unit="short",
            usual_most=2,
        ),
        states(
            "Row remapping state",
            Query(q.remap_states(GPU), ON_GPU),
            description="Whether a row remapping or page retirement is pending until a GPU reset, or a row remapping failed.",
            words=REMAPPED,
            width=12,
            if_none=NOT_REPORTED,
        ),
    )


def _links() -> tuple[Any, ...]:
    return (
        time_series(
            "NVLink traffic",
            [
                Query(per_gpu("gpu:nvlink_transmit:bytes_per_second", GPU), "GPU {{gpu}} transmit, {{instance}}"),
                Query(per_gpu("gpu:nvlink_receive:bytes_per_second", GPU), "GPU {{gpu}} receive, {{instance}}"),
                Query(q.nvlink_total(GPU), "GPU {{gpu}} total, {{instance}}"),
            ],
            description="Bytes per second over all NVLinks of a GPU. A GPU far below the others of the same job is suspect.",
            unit="Bps",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
        ),
        time_series(
            "NVLink errors",
            [Query(q.nvlink_errors(GPU), "GPU {{gpu}} {{kind}}, {{instance}}")],
            description="Increase per interval, by kind. A healthy link has none.",
            unit="short",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
            usual_most=1,
        ),
        time_series(
            "PCIe traffic",
            [
                Query(per_gpu("gpu:pcie_receive:bytes_per_second", GPU), "GPU {{gpu}} to the GPU, {{instance}}"),
                Query(per_gpu("gpu:pcie_transmit:bytes_per_second", GPU), "GPU {{gpu}} from the GPU, {{instance}}"),
            ],
            description="Bytes per second between host and GPU.",
            unit="Bps",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
            if_none=f"{PROFILING}, or the textfile collector",
        ),
        _growth(
            "PCIe replays",
            "gpu:pcie_replays:total",
            description="Replayed packets per interval. An increase often precedes XID 79.",
        ),
        time_series(
            "PCIe link width",
            [
                Query(per_gpu("gpu:pcie_width:lanes", GPU), ON_GPU),
                Limit(f"max({per_gpu('gpu:pcie_width_max:lanes', GPU)})", "maximum"),
            ],
            description="Lanes between GPU and host. The dashed line is the maximum of both; if it is lower, reseat the card.",
            unit="short",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
            usual_most=16,
        ),
        time_series(
            "PCIe link generation",
            [
                Query(per_gpu("gpu:pcie_generation:version", GPU), ON_GPU),
                Limit(f"max({per_gpu('gpu:pcie_generation_max:version', GPU)})", "maximum"),
            ],
            description="Current generation; an idle GPU lowers it to save power. If it is low under load, check the slot and "
            "the BIOS.",
            unit="short",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
            usual_most=5,
        ),
    )


def _each_link() -> tuple[Any, ...]:
    return tuple(
        time_series(
            f"NVLink {side} per link",
            [Query(top(32, q.per_link(f"node_gpu_nvlink_{side}_bytes_total", GPU)), "GPU {{gpu}} link {{link}}, {{instance}}")],
            description="Bytes per second of the 32 busiest links; select one GPU above. A link far below the others is suspect.",
            unit="Bps",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
            if_none="only the collector of links reports single links",
        )
        for side in ("transmit", "receive")
    )


def _profiling() -> tuple[Any, ...]:
    return tuple(
        _line(title, series, description=description, unit="percentunit", most=1, width=12, if_none=PROFILING)
        for title, series, description in (
            ("SM activity", "gpu:sm_active:ratio", "Share of SMs with at least one warp assigned. Below 50 % is poor."),
            (
                "SM occupancy",
                "gpu:sm_occupancy:ratio",
                "Warps resident on the SMs, of the most they can hold. High is not always fast.",
            ),
            ("Tensor core activity", "gpu:tensor_active:ratio", "Share of cycles in which the tensor cores were active."),
            ("FP64 pipe activity", "gpu:fp64_active:ratio", "Share of cycles in which the FP64 pipe was active."),
            ("FP32 pipe activity", "gpu:fp32_active:ratio", "Share of cycles in which the FP32 pipe was active."),
            (
                "FP16 pipe activity",
                "gpu:fp16_active:ratio",
                "Share of cycles in which the FP16 pipe was active; not the tensor cores.",
            ),
            ("DRAM activity", "gpu:dram_active:ratio", "Share of cycles in which the memory interface was active."),
            (
                "Graphics engine activity",
                "gpu:graphics_engine_active:ratio",
                "Share of time in which the graphics or compute engines were active.",
            ),
        )
    )
