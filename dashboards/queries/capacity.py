"""Cost and idle capacity of the fleet. Sums over time use a step of five minutes and the series of whole clusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dashboards.queries.common import ONE_CLUSTER, ONE_GPU

_STEP: Final = "5m"
_STEPS_PER_HOUR: Final = 12
IDLE_BELOW: Final = 0.01


def gpu_hours(selector: str, by: str = "") -> str:
    """Number of reporting GPUs times hours, in the time range."""
    return _hours(f"cluster:gpus:count{{{selector}}}", by)


def idle_gpu_hours(selector: str, by: str = "") -> str:
    """GPU-hours with a utilization below 1 %."""
    return _hours(f"cluster:gpus_idle:count{{{selector}}}", by)


def cost(selector: str, prices: Mapping[str, float], by: str = "") -> str:
    """`prices`: of a GPU-hour, by the matchers of a group of models."""
    of_models = (
        f'label_replace(({_hours(_of_models(selector, matchers), ONE_CLUSTER)}) * {price:g}, "price", "{number}", "", "")'
        for number, (matchers, price) in enumerate(prices.items())
    )
    return f"sum{f' by ({by})' if by else ''} ({' or '.join(of_models)})"


def idle_cost(selector: str, prices: Mapping[str, float], each: str) -> str:
    """Idle GPUs are not recorded by model: at the average price of what `each` has, a cluster."""
    average = f"{cost(selector, prices, each)} / ({_hours(_of_models(selector, ''), each)})"
    return f"sum({idle_gpu_hours(selector, each)} * on ({each}) ({average}))"


def _of_models(selector: str, matchers: str) -> str:
    return f"cluster:gpus_by_model:count{{{', '.join(filter(None, (selector, matchers)))}}}"


def energy_wh(selector: str, by: str = "") -> str:
    """Energy used by the GPUs in the time range, in watt hours."""
    return _hours(f"cluster:gpu_power:watts{{{selector}}}", by)


def _hours(series: str, by: str) -> str:
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (sum_over_time({series}[$__range:{_STEP}])) / {_STEPS_PER_HOUR}"


def average_use(selector: str) -> str:
    """Of all GPUs, however many a cluster has."""
    used = f"cluster:gpu_utilization:ratio{{{selector}}} * cluster:gpus:count{{{selector}}}"
    return (
        f"sum(sum_over_time(({used})[$__range:{_STEP}])) / sum(sum_over_time(cluster:gpus:count{{{selector}}}[$__range:{_STEP}]))"
    )


def share_idle(selector: str) -> str:
    return f"cluster:gpus_idle:count{{{selector}}} / cluster:gpus:count{{{selector}}}"


def idle_gpus_by_host(selector: str) -> str:
    """Idle GPUs per host, over half an hour; the ten hosts with the most."""
    idle = f"max by ({ONE_GPU}) (max_over_time(gpu:utilization:ratio{{{selector}}}[30m])) < {IDLE_BELOW}"
    return f"sort_desc(topk(10, count by ({ONE_CLUSTER}, instance) ({idle})))"


def gpus_by_model(selector: str) -> str:
    return f"sum by (model) (cluster:gpus_by_model:count{{{selector}}})"


def gpus_by_use(selector: str) -> str:
    """Every GPU of the inventory in one state (alerts/rules/usage.yaml)."""
    return f"sum by (state) (cluster:gpus_by_use:count{{{selector}}})"


def gpus_for_jobs(selector: str) -> str:
    """GPUs, and in place of a divided one its instances."""
    return f"sum(cluster:gpus_logical:count{{{selector}}})"
