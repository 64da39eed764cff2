"""Inference: the GPUs of a host beside what its containers print, on one time axis. When it is slow: the GPU, or the server?"""

from __future__ import annotations

from typing import Any

from dashboards import parts
from dashboards.layout import Row, build
from dashboards.panels import (
    NO_GPU_VALUES,
    NO_THRESHOLDS,
    NONE,
    Limit,
    Query,
    log_counts,
    log_lines,
    log_rates,
    one_number,
    time_series,
)
from dashboards.queries import work as q
from dashboards.queries.common import HOST, NAME, per_gpu

ON_GPU = "GPU {{gpu}}, {{instance}}"
CONTAINER = "{{container}}, {{instance}}"
NO_LINES = "no lines: container logs are not collected (logs.docker), or none were written"


def dashboard() -> dict[str, Any]:
    return build(
        "inference",
        "GPU fleet / Inference",
        "GPU and containers of a serving host together: load, memory for the next model, errors, the lines themselves.",
        variables=("datacenter", "cluster", "exporter_mode", "instance"),
        one_host_first=True,
        search="Search in lines",
        rows=(Row("Now", _now()), Row("GPUs", _gpus()), Row("Containers", _containers())),
    )


def _number(title: str, query: str, description: str, unit: str) -> Any:
    return one_number(title, Query(query, title), description=description, unit=unit, thresholds=NO_THRESHOLDS, width=6)


def _now() -> tuple[Any, ...]:
    return (
        parts.critical_alerts(NAME, 6),
        _number(
            "Utilisation",
            f"avg({per_gpu('gpu:utilization:ratio', HOST)})",
            "Share of time in which some kernel ran, average of the GPUs.",
            "percentunit",
        ),
        _number(
            "Largest free GPU memory",
            f"max({per_gpu('gpu:memory_free:bytes', HOST)})",
            "Free memory of the GPU that has most: the largest model that could be loaded beside the others.",
            "bytes",
        ),
        _number(
            "Free GPU memory of the host",
            f"sum({per_gpu('gpu:memory_free:bytes', HOST)})",
            "Free memory of all GPUs together.",
            "bytes",
        ),
    )


def _gpus() -> tuple[Any, ...]:
    return (
        time_series(
            "GPU utilisation",
            [Query(per_gpu("gpu:utilization:ratio", HOST), ON_GPU)],
            description="Share of time in which some kernel ran. Near 100 % for long: requests wait.",
            unit="percentunit",
            thresholds=parts.UTILIZATION,
            fill=0,
            width=12,
            if_none=NO_GPU_VALUES,
            most=1,
        ),
        time_series(
            "GPU memory in use",
            [
                Query(per_gpu("gpu:memory_used:bytes", HOST), ON_GPU),
                Limit(f"max({per_gpu('gpu:memory_total:bytes', HOST)})", "most a GPU has"),
            ],
            description="Memory that models and their caches hold; the dashed line is all that a GPU has.",
            unit="bytes",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
            if_none=NO_GPU_VALUES,
        ),
        time_series(
            "GPU power",
            [Query(per_gpu("gpu:power:watts", HOST), ON_GPU)],
            description="Power drawn: the honest measure of work where utilisation stands at 100 %.",
            unit="watt",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
            if_none=NO_GPU_VALUES,
        ),
        time_series(
            "Video engines",
            [
                Query(per_gpu("gpu:decoder_utilization:ratio", HOST), "GPU {{gpu}} decoder, {{instance}}"),
                Query(per_gpu("gpu:encoder_utilization:ratio", HOST), "GPU {{gpu}} encoder, {{instance}}"),
            ],
            description="Share of time in which the video decoder and encoder ran.",
            unit="percentunit",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
            most=1,
        ),
    )


def _containers() -> tuple[Any, ...]:
    return (
        log_counts(
            "Lines that tell of trouble",
            Query(q.trouble_by_container(HOST), CONTAINER),
            description="Lines with error, exception, out of memory, CUDA or NCCL, a minute each; the ten containers with most.",
            width=12,
            if_none=NONE,
        ),
        log_rates(
            "Lines a second",
            Query(q.printed_by_container(HOST), CONTAINER),
            description="How much containers print; the ten with most. A server that falls silent has stopped.",
            unit="suffix: lines/s",
            width=12,
            if_none=NO_LINES,
        ),
        log_lines(
            "Lines of containers",
            q.printed(HOST),
            description="What containers of Docker or pods print; the field above chooses by a regular expression.",
            width=24,
            if_none=NO_LINES,
        ),
    )
