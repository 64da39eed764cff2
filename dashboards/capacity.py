"""Capacity and cost: idle GPUs, allocated but idle GPUs, trends, energy and cost. For planning, over days and weeks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dashboards.layout import Row, build, link_to_host
from dashboards.panels import (
    HEIGHT,
    NO_THRESHOLDS,
    NONE,
    YELLOW_FROM_ONE,
    Column,
    Query,
    Reference,
    bars,
    one_number,
    rows,
    time_series,
)
from dashboards.queries import capacity as q
from dashboards.queries import fleet
from dashboards.queries.common import CLUSTER, ONE_CLUSTER, of_clusters, top

CLUSTERS = "{{datacenter}} / {{cluster}}"


@dataclass(frozen=True)
class Price:
    """Price of a GPU per hour, used or not; of several, by the matchers of a group of models. `currency`: ISO 4217, USD."""

    per_gpu_hour: float | Mapping[str, float]
    currency: str

    @property
    def unit(self) -> str:
        return f"currency:{self.currency} "


def dashboard(price: Price | None) -> dict[str, Any]:
    """`price`: None leaves out the row about cost."""
    return build(
        "capacity",
        "GPU fleet / Capacity and cost",
        "Idle GPUs, allocated but idle GPUs, utilization trends, energy, and cost per GPU-hour. Select days or weeks above.",
        variables=("datacenter", "cluster"),
        time_from="now-24h",
        rows=(
            Row("Selected time range", _range()),
            *([Row("Costs", _cost(price))] if price else []),
            Row("Idle GPUs", _idle()),
            Row("Trends", _trend()),
        ),
    )


def _number(title: str, query: str, description: str, unit: str, *, height: int = 4) -> Any:
    return one_number(
        title, Query(query, title), description=description, unit=unit, thresholds=NO_THRESHOLDS, width=6, height=height
    )


def _range() -> tuple[Any, ...]:
    return (
        _number(
            "Average GPU utilization",
            q.average_use(CLUSTER),
            "Share of time in which at least one kernel was running, average over all GPUs.",
            "percentunit",
        ),
        _number("GPU-hours", q.gpu_hours(CLUSTER), "Number of GPUs times the hours in which they reported.", "suffix: h"),
        _number("Idle GPU-hours", q.idle_gpu_hours(CLUSTER), "GPU-hours with a utilization below 1 %.", "suffix: h"),
        _number("GPU energy", q.energy_wh(CLUSTER), "Energy used by the GPUs alone, without hosts and cooling.", "watth"),
    )


def _cost(price: Price) -> tuple[Any, ...]:
    if isinstance(price.per_gpu_hour, Mapping):
        each = "at the last price of each model (grafana.costPerGpuHour), without models that have none"
        of_idle = "at the average price of their cluster"
        by_model = price.per_gpu_hour
        cost, idle_cost, by_cluster = (
            q.cost(CLUSTER, by_model),
            q.idle_cost(CLUSTER, by_model, ONE_CLUSTER),
            q.cost(CLUSTER, by_model, ONE_CLUSTER),
        )
    else:
        each = of_idle = f"at {price.per_gpu_hour:g} {price.currency} per GPU-hour (grafana.costPerGpuHour)"
        cost, idle_cost, by_cluster = (
            f"({hours}) * {price.per_gpu_hour:g}"
            for hours in (q.gpu_hours(CLUSTER), q.idle_gpu_hours(CLUSTER), q.gpu_hours(CLUSTER, ONE_CLUSTER))
        )
    return (
        _number("Cost", cost, f"GPU-hours of the selected time range {each}.", price.unit, height=HEIGHT),
        _number("Cost of idle GPUs", idle_cost, f"GPU-hours with a utilization below 1 % {of_idle}.", price.unit, height=HEIGHT),
        bars(
            "Cost by cluster",
            Query(top(10, by_cluster), CLUSTERS),
            description=f"GPU-hours of the selected time range {each}; the ten most expensive clusters.",
            unit=price.unit,
            thresholds=NO_THRESHOLDS,
            width=12,
            if_none="no data",
        ),
    )


def _idle() -> tuple[Any, ...]:
    return (
        bars(
            "Hosts with the most idle GPUs",
            Query(q.idle_gpus_by_host(CLUSTER), "{{cluster}} {{instance}}"),
            description="GPUs that were idle for half an hour; the ten hosts with the most. Use them for another job, or "
            "decommission them.",
            unit="short",
            thresholds=NO_THRESHOLDS,
            width=12,
            if_none="none: every GPU was used within half an hour",
        ),
        rows(
            "Allocated but idle GPUs",
            [Query(fleet.memory_of_idle_gpus(CLUSTER, 50), "")],
            description="GPUs that were idle for half an hour while a process held their memory; the fifty with the most. Ask "
            "its owner.",
            width=12,
            columns={
                "cluster": Column(heading="Cluster"),
                "instance": Column(heading="Host", link=link_to_host("gpu")),
                "gpu": Column(heading="GPU", width=60),
                "Value": Column(heading="Memory used", unit="bytes", thresholds=YELLOW_FROM_ONE),
            },
            sort_by="Memory used",
            if_none=NONE,
        ),
    )


def _course(title: str, query: str, legend: str, description: str, unit: str, **options: Any) -> Any:
    return time_series(
        title,
        [Query(query, legend), *options.pop("beside", ())],
        description=description,
        unit=unit,
        thresholds=NO_THRESHOLDS,
        **{"fill": 0, "width": 12, "if_none": "no data", **options},
    )


def _trend() -> tuple[Any, ...]:
    return (
        _course(
            "GPU utilization",
            of_clusters("cluster:gpu_utilization:ratio", CLUSTER),
            CLUSTERS,
            "Share of time in which at least one kernel was running, average over the GPUs of a cluster.",
            "percentunit",
            most=1,
        ),
        _course(
            "Share of idle GPUs",
            q.share_idle(CLUSTER),
            CLUSTERS,
            "GPUs with a utilization below 1 %, as a share of all GPUs of a cluster.",
            "percentunit",
            most=1,
        ),
        _course(
            "Free GPU memory",
            of_clusters("cluster:gpu_memory_free:bytes", CLUSTER),
            CLUSTERS,
            "GPU memory available to new processes, stacked.",
            "bytes",
            fill=30,
            is_stacked=True,
        ),
        _course(
            "GPUs by model",
            q.gpus_by_model(CLUSTER),
            "{{model}}",
            "Reporting GPUs by model, stacked. Dashed: what jobs can be given, where a GPU with MIG or in partitions "
            "counts as its instances.",
            "short",
            fill=30,
            is_stacked=True,
            beside=(Reference(q.gpus_for_jobs(CLUSTER), "for jobs"),),
        ),
        _course(
            "GPUs by use",
            q.gpus_by_use(CLUSTER),
            "{{state}}",
            "Every GPU of the inventory, stacked: with a job or pod, allocated and idle, unallocated, powered down by Slurm, "
            "broken, or unknown because its host's clock is behind. make usage sums them over a month.",
            "short",
            width=24,
            fill=30,
            is_stacked=True,
            colors={
                **{"job": "green", "idle": "yellow", "unallocated": "blue", "powered_down": "gray"},
                **{"broken": "red", "unknown": "purple"},
            },
            if_none="no cluster has gpu-fleet:jobs, or pods with GPUs",
        ),
        _course(
            "GPU power",
            of_clusters("cluster:gpu_power:watts", CLUSTER),
            CLUSTERS,
            "Power draw of the GPUs, stacked.",
            "watt",
            fill=30,
            is_stacked=True,
        ),
        _course(
            "Power per busy GPU",
            of_clusters("cluster:gpu_power_busy:watts", CLUSTER),
            CLUSTERS,
            "Average power of the GPUs with a utilization of at least 10 %.",
            "watt",
        ),
    )
