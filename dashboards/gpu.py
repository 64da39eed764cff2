"""GPU detail: everything about one GPU, for the person who asks why it is slow or whether it is dying."""

from __future__ import annotations

from typing import Any

from dashboards import queries as q
from dashboards.fleet_overview import TEMPERATURE
from dashboards.layout import build
from dashboards.panels import NO_THRESHOLDS, Limit, Query, time_series

GPU = "{{instance}} GPU {{gpu}}"


def _line(title: str, series: str, *, description: str, unit: str, most: float | None = None, **options: Any) -> Any:
    return time_series(
        title,
        [Query(q.per_gpu(series, q.GPU), GPU), *options.pop("limits", ())],
        description=description,
        unit=unit,
        thresholds=options.pop("thresholds", NO_THRESHOLDS),
        filled=False,
        width=options.pop("width", 8),
        most=most,
    )


def dashboard() -> dict[str, Any]:
    return build(
        "gpu",
        "GPU fleet / GPU detail",
        "One GPU or a few: use, clocks and what holds them back, memory errors, links. Choose host and GPU above.",
        variables=("datacenter", "cluster", "exporter_mode", "instance", "gpu"),
        rows=(
            (
                "Use",
                (
                    _line(
                        "Some kernel runs",
                        "gpu:utilization:ratio",
                        description="Share of time in which some kernel ran, however small.",
                        unit="percentunit",
                        most=1,
                    ),
                    _line(
                        "Compute units at work",
                        "gpu:sm_active:ratio",
                        description="Share of compute units with work (profiling; dcgm-exporter only). Below 50 %: poor.",
                        unit="percentunit",
                        most=1,
                    ),
                    _line(
                        "Tensor cores at work",
                        "gpu:tensor_active:ratio",
                        description="Share of cycles in which the tensor cores worked (profiling; dcgm-exporter only).",
                        unit="percentunit",
                        most=1,
                    ),
                    _line(
                        "Memory interface at work",
                        "gpu:dram_active:ratio",
                        description="Share of cycles in which memory moved data (profiling; dcgm-exporter only).",
                        unit="percentunit",
                        most=1,
                    ),
                    _line(
                        "Memory in use",
                        "gpu:memory_used:bytes",
                        description="Memory that programs hold; the dashed line is all of it.",
                        unit="bytes",
                        limits=(Limit(f"max({q.per_gpu('gpu:memory_total:bytes', q.GPU)})", "most a GPU has"),),
                    ),
                    _line(
                        "Power",
                        "gpu:power:watts",
                        description="Power drawn; the dashed line is the limit.",
                        unit="watt",
                        limits=(Limit(f"max({q.per_gpu('gpu:power_limit:watts', q.GPU)})", "limit"),),
                    ),
                ),
            ),
            (
                "Clocks and heat",
                (
                    _line(
                        "SM clock",
                        "gpu:sm_clock:hertz",
                        description="Clock of the compute units. A drop under load is explained beside it.",
                        unit="hertz",
                    ),
                    time_series(
                        "Held back by",
                        [Query(q.throttled(q.GPU), f"{GPU} {{{{reason}}}}")],
                        description="Share of five minutes, by reason. Under full load a power cap is usual, heat is not.",
                        unit="percentunit",
                        thresholds=NO_THRESHOLDS,
                        filled=False,
                        width=8,
                        most=1,
                    ),
                    _line(
                        "Temperature",
                        "gpu:temperature:celsius",
                        description="Temperature of the GPU core.",
                        unit="celsius",
                        thresholds=TEMPERATURE,
                    ),
                    _line(
                        "Memory temperature",
                        "gpu:memory_temperature:celsius",
                        description="Temperature of the memory. HBM slows down at about 95 C.",
                        unit="celsius",
                    ),
                    _line(
                        "Memory clock",
                        "gpu:memory_clock:hertz",
                        description="Clock of the memory.",
                        unit="hertz",
                    ),
                    time_series(
                        "Energy per hour",
                        [Query(f"3600 * {q.per_gpu('gpu:power:watts', q.GPU)}", GPU)],
                        description="Energy that the GPU uses in an hour at its present power.",
                        unit="joule",
                        thresholds=NO_THRESHOLDS,
                        filled=False,
                        width=8,
                    ),
                ),
            ),
            (
                "Errors",
                (
                    _line(
                        "Uncorrectable memory errors",
                        "gpu:ecc_uncorrected_volatile:total",
                        description="Since the driver was loaded. Anything above 0 lost data.",
                        unit="short",
                        thresholds=((None, "green"), (1, "red")),
                    ),
                    time_series(
                        "Corrected memory errors",
                        [Query(q.growth("gpu:ecc_corrected_volatile:total", q.GPU), GPU)],
                        description="New ones per interval. Single ones are normal.",
                        unit="short",
                        thresholds=NO_THRESHOLDS,
                        filled=False,
                        width=8,
                    ),
                    _line(
                        "Memory rows replaced",
                        "gpu:rows_remapped:total",
                        description="Rows exchanged for spare ones in the GPU's life.",
                        unit="short",
                    ),
                ),
            ),
            (
                "Links",
                (
                    time_series(
                        "NVLink sent per link",
                        [Query(q.per_link("gpu:nvlink_transmit:bytes_per_second", q.GPU), f"{GPU} link {{{{link}}}}")],
                        description="Bytes per second to other GPUs; one line where the exporter does not tell links apart.",
                        unit="Bps",
                        thresholds=NO_THRESHOLDS,
                        filled=False,
                        width=12,
                    ),
                    time_series(
                        "NVLink received per link",
                        [Query(q.per_link("gpu:nvlink_receive:bytes_per_second", q.GPU), f"{GPU} link {{{{link}}}}")],
                        description="Bytes per second from other GPUs; a link that stays far below the others is suspect.",
                        unit="Bps",
                        thresholds=NO_THRESHOLDS,
                        filled=False,
                        width=12,
                    ),
                    time_series(
                        "NVLink errors",
                        [Query(q.nvlink_errors(q.GPU), f"{GPU} {{{{kind}}}}")],
                        description="New errors per interval, by kind. A healthy link has none.",
                        unit="short",
                        thresholds=NO_THRESHOLDS,
                        filled=False,
                        width=8,
                    ),
                    time_series(
                        "PCIe traffic",
                        [
                            Query(q.per_gpu("gpu:pcie_receive:bytes_per_second", q.GPU), f"{GPU} to the GPU"),
                            Query(q.per_gpu("gpu:pcie_transmit:bytes_per_second", q.GPU), f"{GPU} from the GPU"),
                        ],
                        description="Bytes per second between host and GPU.",
                        unit="Bps",
                        thresholds=NO_THRESHOLDS,
                        filled=False,
                        width=8,
                    ),
                    time_series(
                        "PCIe replays",
                        [Query(q.growth("gpu:pcie_replays:total", q.GPU), GPU)],
                        description="Packets that had to be sent again, per interval. Growth often comes before XID 79.",
                        unit="short",
                        thresholds=NO_THRESHOLDS,
                        filled=False,
                        width=8,
                    ),
                ),
            ),
        ),
    )
