"""Inference: GPUs, model servers and container logs of a host on one time axis. Is the GPU the bottleneck, or the server?"""

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
    states,
    time_series,
)
from dashboards.queries import work as q
from dashboards.queries.common import HOST, NAME, per_gpu

ON_GPU = "GPU {{gpu}}, {{instance}}"
CONTAINER = "{{container}}, {{instance}}"
NO_LINES = "no log lines: container logs are not collected (logs.docker), or there are none"
SERVER = "{{model}} {{server}}, {{instance}}"
NO_SERVERS = "no model server is scraped (gpu-fleet:scrapeTargets)"
NOT_SERVED = f"{NO_SERVERS}, or it does not report this"


def dashboard() -> dict[str, Any]:
    return build(
        "inference",
        "GPU fleet / Inference",
        "GPUs, model servers and containers of an inference host: load, free memory for another model, requests, latency, logs.",
        variables=("datacenter", "cluster", "exporter_mode", "instance"),
        one_host_first=True,
        search="Search in logs",
        rows=(Row("Now", _now()), Row("GPUs", _gpus()), Row("Model servers", _servers()), Row("Containers", _containers())),
    )


def _number(title: str, query: str, description: str, unit: str) -> Any:
    return one_number(title, Query(query, title), description=description, unit=unit, thresholds=NO_THRESHOLDS, width=6)


def _now() -> tuple[Any, ...]:
    return (
        parts.critical_alerts(NAME, 6),
        _number(
            "GPU utilization, average",
            f"avg({per_gpu('gpu:utilization:ratio', HOST)})",
            "Share of time in which at least one kernel was running, average over the GPUs.",
            "percentunit",
        ),
        _number(
            "Largest free GPU memory",
            f"max(gpu:memory_free:bytes{{{HOST}}})",  # also of an instance: it is what a model can have
            "Free memory of the GPU, or GPU instance, with the most free memory: the largest model that can still be loaded.",
            "bytes",
        ),
        _number(
            "Total free GPU memory",
            f"sum({per_gpu('gpu:memory_free:bytes', HOST)})",
            "Free memory, summed over all GPUs of the host.",
            "bytes",
        ),
    )


def _gpus() -> tuple[Any, ...]:
    return (
        time_series(
            "GPU utilization",
            [Query(per_gpu("gpu:utilization:ratio", HOST), ON_GPU)],
            description="Share of time in which at least one kernel was running. Requests queue up if it stays near 100 %.",
            unit="percentunit",
            thresholds=parts.UTILIZATION,
            fill=0,
            width=12,
            if_none=NO_GPU_VALUES,
            most=1,
        ),
        time_series(
            "GPU memory used",
            [
                Query(per_gpu("gpu:memory_used:bytes", HOST), ON_GPU),
                Limit(f"max({per_gpu('gpu:memory_total:bytes', HOST)})", "total"),
            ],
            description="Memory used by models and their caches. The dashed line is the memory size of a GPU.",
            unit="bytes",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
            if_none=NO_GPU_VALUES,
        ),
        time_series(
            "GPU power",
            [Query(per_gpu("gpu:power:watts", HOST), ON_GPU)],
            description="Power draw: a better measure of load than utilization when that stays at 100 %.",
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
            description="Share of time in which the video decoder and encoder were active.",
            unit="percentunit",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
            most=1,
        ),
    )


def _server(title: str, queries: list[Query], description: str, unit: str, *, most: float | None = None) -> Any:
    return time_series(
        title,
        queries,
        description=description,
        unit=unit,
        thresholds=NO_THRESHOLDS,
        fill=0,
        width=12,
        if_none=NOT_SERVED,
        most=most,
    )


def _servers() -> tuple[Any, ...]:
    return (
        _server(
            "Requests",
            [Query(q.of_models("model:requests:rate5m", NAME), SERVER)],
            "Requests per second over five minutes, with those that failed.",
            "reqps",
        ),
        _server(
            "Running and waiting requests",
            [
                Query(q.of_models("model:requests_running:count", NAME), f"running: {SERVER}"),
                Query(q.of_models("model:requests_waiting:count", NAME), f"waiting: {SERVER}"),
            ],
            "Requests that wait while the KV cache is full or the GPU is busy: this server has more load than it can serve.",
            "short",
        ),
        _server(
            "Request latency",
            [Query(q.of_models("model:request_latency:seconds", NAME, "statistic"), f"{{{{statistic}}}} {SERVER}")],
            "From a request's arrival to the end of its answer, over five minutes. Triton reports the mean, with "
            "summary_latencies=true also p50 and p95.",
            "s",
        ),
        _server(
            "Time to first token",
            [Query(q.of_models("model:time_to_first_token:seconds", NAME, "statistic"), f"{{{{statistic}}}} {SERVER}")],
            "From a request's arrival to its first token; of Triton with histogram_latencies=true to its first response.",
            "s",
        ),
        _server(
            "Generated tokens",
            [Query(q.of_models("model:tokens:rate5m", NAME), SERVER)],
            "Tokens per second over five minutes. None at all while requests run: the server has stalled.",
            "suffix: tokens/s",
        ),
        _server(
            "KV cache used",
            [Query(q.of_models("model:kv_cache:ratio", NAME), SERVER)],
            "Share of the KV cache in use. Near 100 % requests wait, or are preempted and computed again.",
            "percentunit",
            most=1,
        ),
        _server(
            "Failed requests",
            [Query(q.of_models("model:requests_failed:rate5m", NAME), SERVER)],
            "Requests per second, over five minutes, that ended with an error or were aborted, by their client or the server. "
            "Triton counts an error that a model in Python returns as a success.",
            "reqps",
        ),
        states(
            "Scrape targets",
            Query(q.targets_up(NAME), "{{job}}, {{instance}}"),
            description="Whether each scrape target of the host answers. One that does not is missing in the panels above.",
            words={0: ("does not answer", "red"), 1: ("answers", "green")},
            width=12,
            if_none="no scrape targets on this host (gpu-fleet:scrapeTargets)",
        ),
    )


def _containers() -> tuple[Any, ...]:
    return (
        log_counts(
            "Error log lines",
            Query(q.errors_by_container(HOST), CONTAINER),
            description="Log lines per minute that match error, exception, out of memory, CUDA or NCCL; the ten containers with "
            "the most.",
            width=12,
            if_none=NONE,
        ),
        log_rates(
            "Log lines per second",
            Query(q.printed_by_container(HOST), CONTAINER),
            description="Log rate per container; the ten highest. A server whose rate falls to zero may have stopped.",
            unit="suffix: lines/s",
            width=12,
            if_none=NO_LINES,
        ),
        log_lines(
            "Container logs",
            q.printed(HOST),
            description="Logs of containers (Docker, Podman) or pods; filter them with a regular expression in the field above.",
            width=24,
            if_none=NO_LINES,
        ),
    )
