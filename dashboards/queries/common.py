"""Selectors and aggregations that the other query modules share."""

from __future__ import annotations

from typing import Final

# Exporters report a GPU's values once per GPU instance (MIG) and per pod that shares the GPU; sums must start from one value per
# GPU.
ONE_GPU: Final = "datacenter, cluster, instance, gpu, uuid"
ONE_HOST: Final = "datacenter, cluster, instance"
ONE_CLUSTER: Final = "datacenter, cluster"

_SHARED: Final = ("gpu:memory_used:bytes", "gpu:memory_free:bytes", "gpu:memory_total:bytes")

# Selectors: the dashboard's variables. `$gpu` is a GPU's index on its host.
CLUSTER: Final = 'datacenter=~"$datacenter", cluster=~"$cluster"'
NAME: Final = f'{CLUSTER}, instance=~"$instance"'  # of a host, for series that do not come from its GPU exporter
MODE: Final = f'{CLUSTER}, exporter_mode=~"$exporter_mode"'
HOST: Final = f'{MODE}, instance=~"$instance"'
GPU: Final = f'{HOST}, gpu=~"$gpu"'


def without_guests(gpus: str, selector: str) -> str:
    """Per host, without those that it has given to guests, which no exporter on it lists."""
    given = f"-count by ({ONE_HOST}) (node_gpu_passed_through{{{selector}}})"
    return f'sum by ({ONE_HOST}) ({gpus} or label_replace({given}, "of", "guests", "", ""))'


def per_gpu(series: str, selector: str) -> str:
    """One value per GPU. The instances of a divided GPU share its memory; of all else the highest is the GPU's."""
    if series not in _SHARED:
        return f"max by ({ONE_GPU}) ({series}{{{selector}}})"
    of_instances = f'sum by ({ONE_GPU}) (max by ({ONE_GPU}, gpu_instance) ({series}{{{selector}, gpu_instance!=""}}))'
    return f'{of_instances} or max by ({ONE_GPU}) ({series}{{{selector}, gpu_instance=""}})'


def summed(series: str, selector: str, by: str) -> str:
    return f"sum by ({by}) ({per_gpu(series, selector)})"


def averaged(series: str, selector: str, by: str) -> str:
    return f"avg by ({by}) ({per_gpu(series, selector)})"


def highest(series: str, selector: str, by: str) -> str:
    return f"max by ({by}) ({series}{{{selector}}})"


def of_clusters(series: str, selector: str) -> str:
    """A series of whole clusters (alerts/rules/clusters.yaml), for panels over days and weeks."""
    return f"max by ({ONE_CLUSTER}) ({series}{{{selector}}})"


def top(count: int, expression: str) -> str:
    return f"sort_desc(topk({count}, {expression}))"


def or_zero(expression: str, measured: str) -> str:
    """A count that is zero where it found nothing and something of `measured` is there; where nothing is, it is unknown."""
    return f"{expression} or 0 * count({measured})"


# For counts of alerts: clusters whose hosts the rules look at. Without it no rule runs, or nothing reports or is expected.
RULES_RUN: Final = f"cluster:hosts_known:count{{{CLUSTER}}}"


def measures(series: str, selector: str) -> str:
    """Hosts with GPUs whose exporter gives a series."""
    return f'instance:gpus_measured:count{{{selector}, series="{series}"}}'


def complete(now: str, expected: str) -> str:
    """`now` if it is at least `expected`, with the expected number as label `expected`, so that a legend can show "of 8"."""
    return _with_expectation(f"({now}) >= on () ({expected})", expected)


def short(now: str, expected: str) -> str:
    """`now` if it is less."""
    return _with_expectation(f"({now}) < on () ({expected})", expected)


def _with_expectation(now: str, expected: str) -> str:
    return f'({now}) * on () group_left (expected) count_values("expected", {expected})'
