"""GPU detail: everything about one GPU, for the person who asks why it is slow or whether it is dying."""

from __future__ import annotations

from typing import Any

from dashboards import parts
from dashboards.layout import Row, build
from dashboards.panels import NO_THRESHOLDS, NOT_TOLD, RED_FROM_ONE, Column, Limit, Query, rows, states, time_series
from dashboards.queries import gpu as q
from dashboards.queries.common import GPU, per_gpu, top

ON_GPU = "GPU {{gpu}}, {{instance}}"  # the GPU first: legends are cut at their end
HELD_BACK = {
    0: ("free", "green"),
    q.HELD_BACK["sw_power_cap"]: ("power cap", "blue"),
    q.HELD_BACK["hw_slowdown"]: ("hardware slowdown", "orange"),
    q.HELD_BACK["sw_thermal"]: ("heat (driver)", "orange"),
    q.HELD_BACK["hw_thermal"]: ("HEAT (hardware)", "red"),
    q.HELD_BACK["power_brake"]: ("POWER BRAKE", "red"),
}
REMAPPED = {0: ("fine", "green"), 1: ("waits for a reset", "yellow"), 2: ("NO SPARE ROW", "red")}
PROFILING = "needs profiling counters of dcgm-exporter"


def dashboard() -> dict[str, Any]:
    return build(
        "gpu",
        "GPU fleet / GPU detail",
        "One GPU or those of a host: use, clocks and what holds them back, memory errors, links. Choose host and GPU above.",
        variables=("datacenter", "cluster", "exporter_mode", "instance", "gpu"),
        one_host_first=True,
        rows=(
            Row("Who", (_who(),)),
            Row("Use", _use()),
            Row("What holds it back", _heat()),
            Row("Memory errors", _memory_errors()),
            Row("Links", _links()),
            Row("NVLink, link by link", _each_link(), is_folded=True),
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


def _who() -> Any:
    return rows(
        "GPUs",
        [Query(q.who(GPU), ""), Query(per_gpu("gpu:recovery_action:code", GPU), "")],
        description="Who the GPUs are, for tickets and for the kernel log, and what the driver asks for.",
        width=24,
        height=7,
        columns={
            "instance": Column(heading="Host"),
            "gpu": Column(heading="GPU", width=60),
            "Value #B": Column(heading="Driver asks for", words={str(code): word for code, word in parts.VERDICTS.items()}),
            "model": Column(heading="Model"),
            "uuid": Column(heading="UUID"),
            "pci_bus_id": Column(heading="PCI"),
            "driver_version": Column(heading="Driver"),
            "exporter_mode": Column(heading="Exporter"),
        },
        sort_by="GPU",
        descending=False,
        if_none="no GPU reports: see the Host dashboard",
    )


def _use() -> tuple[Any, ...]:
    return (
        _line(
            "Some kernel runs",
            "gpu:utilization:ratio",
            description="Share of time in which some kernel ran, however small.",
            unit="percentunit",
            most=1,
        ),
        _line(
            "Memory in use",
            "gpu:memory_used:bytes",
            description="Memory that programs hold; the dashed line is all that a GPU has.",
            unit="bytes",
            limits=(Limit(f"max({per_gpu('gpu:memory_total:bytes', GPU)})", "most a GPU has"),),
        ),
        _line(
            "Power",
            "gpu:power:watts",
            description="Power drawn; the dashed line is the limit of a GPU.",
            unit="watt",
            limits=(Limit(f"max({per_gpu('gpu:power_limit:watts', GPU)})", "limit"),),
        ),
        _line(
            "SM clock",
            "gpu:sm_clock:hertz",
            description="Clock of the compute units. A drop under load is explained below.",
            unit="hertz",
        ),
    )


def _heat() -> tuple[Any, ...]:
    return (
        states(
            "Held back by",
            Query(q.held_back(GPU), ON_GPU),
            description="Why the clocks are low, the worst reason first. Under full load a power cap is usual, heat is not.",
            words=HELD_BACK,
            width=12,
            if_none=NOT_TOLD,
        ),
        _line(
            "Temperature",
            "gpu:temperature:celsius",
            description="Temperature of the GPU core.",
            unit="celsius",
            thresholds=parts.TEMPERATURE,
            usual_most=parts.USUAL_HOTTEST_C,
        ),
        _line(
            "Memory temperature",
            "gpu:memory_temperature:celsius",
            description="Temperature of the memory. HBM slows down at about 95 C.",
            unit="celsius",
            usual_most=100,
        ),
        _line("Memory clock", "gpu:memory_clock:hertz", description="Clock of the memory.", unit="hertz"),
    )


def _memory_errors() -> tuple[Any, ...]:
    return (
        _line(
            "Uncorrectable memory errors",
            "gpu:ecc_uncorrected_volatile:total",
            description="Since the driver was loaded. Anything above 0 lost data.",
            unit="short",
            thresholds=RED_FROM_ONE,
            usual_most=2,
        ),
        _growth(
            "Corrected memory errors",
            "gpu:ecc_corrected_volatile:total",
            description="New ones per interval. Single ones are normal.",
        ),
        _line(
            "Memory rows replaced",
            "gpu:rows_remapped:total",
            description="Rows exchanged for spare ones in the GPU's life. NVIDIA replaces a GPU that has run out of them.",
            unit="short",
            usual_most=2,
        ),
        states(
            "State of the spare memory",
            Query(q.remap_states(GPU), ON_GPU),
            description="Whether a replaced row or page waits for a reset of the GPU, or no spare one was left.",
            words=REMAPPED,
            width=12,
            if_none=NOT_TOLD,
        ),
    )


def _links() -> tuple[Any, ...]:
    return (
        time_series(
            "NVLink traffic",
            [
                Query(q.over_links("gpu:nvlink_transmit:bytes_per_second", GPU), "GPU {{gpu}} sent, {{instance}}"),
                Query(q.over_links("gpu:nvlink_receive:bytes_per_second", GPU), "GPU {{gpu}} received, {{instance}}"),
                Query(q.nvlink_both_ways(GPU), "GPU {{gpu}} both ways, {{instance}}"),
            ],
            description="Bytes per second over all NVLinks of a GPU. A GPU far below its neighbours of the same job is suspect.",
            unit="Bps",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
        ),
        time_series(
            "NVLink errors",
            [Query(q.nvlink_errors(GPU), "GPU {{gpu}} {{kind}}, {{instance}}")],
            description="New errors per interval, by kind. A healthy link has none.",
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
            description="Packets that had to be sent again, per interval. Growth often comes before XID 79.",
        ),
        time_series(
            "PCIe lanes in use",
            [
                Query(per_gpu("gpu:pcie_width:lanes", GPU), ON_GPU),
                Limit(f"max({per_gpu('gpu:pcie_width_max:lanes', GPU)})", "most possible"),
            ],
            description="Lanes between GPU and host; the dashed line is what both could use. Fewer: reseat the card.",
            unit="short",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
            usual_most=16,
        ),
        time_series(
            "PCIe generation",
            [
                Query(per_gpu("gpu:pcie_generation:version", GPU), ON_GPU),
                Limit(f"max({per_gpu('gpu:pcie_generation_max:version', GPU)})", "most possible"),
            ],
            description="Generation in use; an idle GPU goes down to save power. Low under load: look at the slot and the BIOS.",
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
            f"NVLink {words} per link",
            [Query(top(32, q.per_link(f"gpu:nvlink_{way}:bytes_per_second", GPU)), "GPU {{gpu}} link {{link}}, {{instance}}")],
            description="Bytes per second of the 32 busiest links; choose one GPU above. A link far below the others is suspect.",
            unit="Bps",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
            if_none="only the textfile collector tells links apart",
        )
        for way, words in (("transmit", "sent"), ("receive", "received"))
    )


def _profiling() -> tuple[Any, ...]:
    return tuple(
        _line(title, series, description=description, unit="percentunit", most=1, width=12, if_none=PROFILING)
        for title, series, description in (
            ("Compute units at work", "gpu:sm_active:ratio", "Share of compute units with work. Below 50 %: poor."),
            ("Tensor cores at work", "gpu:tensor_active:ratio", "Share of cycles in which the tensor cores worked."),
            ("Memory interface at work", "gpu:dram_active:ratio", "Share of cycles in which memory moved data."),
            ("Engines at work", "gpu:graphics_engine_active:ratio", "Share of time in which any engine worked."),
        )
    )
