"""Capacity and cost: what is idle, what is wasted, where it goes, and what it costs. For planning, over days and weeks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dashboards.layout import Row, build, link_to_host
from dashboards.panels import HEIGHT, NO_THRESHOLDS, NONE, YELLOW_FROM_ONE, Column, Query, bars, one_number, rows, time_series
from dashboards.queries import capacity as q
from dashboards.queries import fleet
from dashboards.queries.common import CLUSTER, ONE_CLUSTER, averaged, summed, top

CLUSTERS = "{{datacenter}} / {{cluster}}"


@dataclass(frozen=True)
class Price:
    """What a GPU costs for an hour, used or not. `currency`: ISO 4217, USD."""

    per_gpu_hour: float
    currency: str

    @property
    def unit(self) -> str:
        return f"currency:{self.currency} "


def dashboard(price: Price | None) -> dict[str, Any]:
    """`price`: None leaves the row about money out."""
    return build(
        "capacity",
        "GPU fleet / Capacity and cost",
        "What is idle or held without work, how use develops, energy, and cost per GPU-hour. Choose days or weeks above.",
        variables=("datacenter", "cluster"),
        time_from="now-24h",
        rows=(
            Row("In the time range", _range()),
            *([Row("Money", _cost(price))] if price else []),
            Row("Idle and held", _idle()),
            Row("Trend", _trend()),
        ),
    )


def _number(title: str, query: str, description: str, unit: str, *, height: int = 4) -> Any:
    return one_number(
        title, Query(query, title), description=description, unit=unit, thresholds=NO_THRESHOLDS, width=6, height=height
    )


def _range() -> tuple[Any, ...]:
    return (
        _number(
            "Average utilisation", q.average_use(CLUSTER), "Share of time in which some kernel ran, over all GPUs.", "percentunit"
        ),
        _number("GPU-hours", q.gpu_hours(CLUSTER), "GPUs times the hours in which they reported.", "suffix: h"),
        _number("Idle GPU-hours", q.idle_gpu_hours(CLUSTER), "Of those, hours in which no kernel ran.", "suffix: h"),
        _number("Energy of the GPUs", q.energy_wh(CLUSTER), "Drawn by the GPUs alone: hosts and cooling come on top.", "watth"),
    )


def _cost(price: Price) -> tuple[Any, ...]:
    each = f"at {price.per_gpu_hour:g} {price.currency} per GPU-hour (grafana.costPerGpuHour)"
    return (
        _number("Cost", _times(q.gpu_hours(CLUSTER), price), f"GPU-hours of the time range {each}.", price.unit, height=HEIGHT),
        _number(
            "Cost of idle GPUs",
            _times(q.idle_gpu_hours(CLUSTER), price),
            f"Hours in which no kernel ran {each}.",
            price.unit,
            height=HEIGHT,
        ),
        bars(
            "Cost by cluster",
            Query(top(10, _times(q.gpu_hours(CLUSTER, ONE_CLUSTER), price)), CLUSTERS),
            description=f"GPU-hours of the time range {each}; the ten dearest clusters.",
            unit=price.unit,
            thresholds=NO_THRESHOLDS,
            width=12,
            if_none="nothing reports",
        ),
    )


def _times(hours: str, price: Price) -> str:
    return f"({hours}) * {price.per_gpu_hour:g}"


def _idle() -> tuple[Any, ...]:
    return (
        bars(
            "Hosts with most idle GPUs",
            Query(q.idle_gpus_by_host(CLUSTER), "{{cluster}} {{instance}}"),
            description="GPUs without any work for half an hour; the ten hosts with most. Room for a job, or to take out.",
            unit="short",
            thresholds=NO_THRESHOLDS,
            width=12,
            if_none="none: every GPU worked within half an hour",
        ),
        rows(
            "Memory held without work",
            [Query(fleet.memory_held_idle(CLUSTER, 50), "")],
            description="GPUs without work for half an hour whose memory a program holds; the fifty with most. Ask its owner.",
            width=12,
            columns={
                "cluster": Column(heading="Cluster"),
                "instance": Column(heading="Host", link=link_to_host("gpu")),
                "gpu": Column(heading="GPU", width=60),
                "Value": Column(heading="Memory held", unit="bytes", thresholds=YELLOW_FROM_ONE),
            },
            sort_by="Memory held",
            if_none=NONE,
        ),
    )


def _course(title: str, query: str, legend: str, description: str, unit: str, **options: Any) -> Any:
    return time_series(
        title,
        [Query(query, legend)],
        description=description,
        unit=unit,
        thresholds=NO_THRESHOLDS,
        **{"fill": 0, "width": 12, "if_none": "nothing reports", **options},
    )


def _trend() -> tuple[Any, ...]:
    return (
        _course(
            "Utilisation",
            averaged("gpu:utilization:ratio", CLUSTER, ONE_CLUSTER),
            CLUSTERS,
            "Share of time in which some kernel ran, average over the GPUs of a cluster.",
            "percentunit",
            most=1,
        ),
        _course(
            "Share of idle GPUs",
            q.share_idle(CLUSTER, ONE_CLUSTER),
            CLUSTERS,
            "GPUs on which no kernel runs, of all GPUs of a cluster.",
            "percentunit",
            most=1,
        ),
        _course(
            "Free GPU memory",
            summed("gpu:memory_free:bytes", CLUSTER, ONE_CLUSTER),
            CLUSTERS,
            "Memory that new programs could get, upon each other.",
            "bytes",
            fill=30,
            is_stacked=True,
        ),
        _course(
            "GPUs by model",
            q.gpus_by_model(CLUSTER),
            "{{model}}",
            "GPUs that report, by model, upon each other.",
            "short",
            fill=30,
            is_stacked=True,
        ),
        _course(
            "GPU power",
            summed("gpu:power:watts", CLUSTER, ONE_CLUSTER),
            CLUSTERS,
            "Power that the GPUs draw, upon each other.",
            "watt",
            fill=30,
            is_stacked=True,
        ),
        _course(
            "Power per busy GPU",
            q.energy_per_gpu_hour(CLUSTER, ONE_CLUSTER),
            CLUSTERS,
            "Power of a cluster by its GPUs at work: watt hours for an hour of one GPU's work, the idle ones paid by the busy.",
            "watt",
        ),
    )
