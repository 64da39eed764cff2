"""Cost and idle capacity of the fleet. Sums over time use a step of five minutes."""

from __future__ import annotations

from typing import Final

from dashboards.queries.common import ONE_CLUSTER, ONE_GPU, per_gpu, summed

_STEP: Final = "5m"
_STEPS_PER_HOUR: Final = 12
IDLE_BELOW: Final = 0.01


def gpu_hours(selector: str, by: str = "") -> str:
    """Number of reporting GPUs times hours, in the time range."""
    return _hours(f"sum by ({ONE_CLUSTER}) (instance:gpus:count{{{selector}}})", by)


def idle_gpu_hours(selector: str, by: str = "") -> str:
    """GPU-hours with a utilization below IDLE_BELOW."""
    per = per_gpu("gpu:utilization:ratio", selector)
    return _hours(f"count by ({ONE_CLUSTER}) ({per} < {IDLE_BELOW}) or 0 * count by ({ONE_CLUSTER}) ({per})", by)


def energy_wh(selector: str, by: str = "") -> str:
    """Energy used by the GPUs in the time range, in watt hours."""
    return _hours(f"sum by ({ONE_CLUSTER}) ({per_gpu('gpu:power:watts', selector)})", by)


def _hours(expression: str, by: str) -> str:
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (sum_over_time(({expression})[$__range:{_STEP}])) / {_STEPS_PER_HOUR}"


def average_use(selector: str) -> str:
    return f"avg(avg_over_time((avg by ({ONE_CLUSTER}) ({per_gpu('gpu:utilization:ratio', selector)}))[$__range:{_STEP}]))"


def share_idle(selector: str, by: str) -> str:
    per = per_gpu("gpu:utilization:ratio", selector)
    return f"(count by ({by}) ({per} < {IDLE_BELOW}) or 0 * count by ({by}) ({per})) / count by ({by}) ({per})"


def idle_gpus_by_host(selector: str) -> str:
    """Idle GPUs per host, over half an hour; the ten hosts with the most."""
    idle = f"max by ({ONE_GPU}) (max_over_time(gpu:utilization:ratio{{{selector}}}[30m])) < {IDLE_BELOW}"
    return f"sort_desc(topk(10, count by ({ONE_CLUSTER}, instance) ({idle})))"


def gpus_by_model(selector: str) -> str:
    return f"count by (model) (group by (model, {ONE_GPU}) (gpu:info{{{selector}}}))"


def energy_per_gpu_hour(selector: str, by: str) -> str:
    """Watt hours per GPU-hour of work."""
    return f"{summed('gpu:power:watts', selector, by)} / {summed('gpu:utilization:ratio', selector, by)}"
