"""Alerts on NVLinks that are down or slow: fewer or slower than the host's own normal, which is the GPU's past.

GPUs of the products in nvlink.csv have as many links as each other, so their normal is that of the best GPU of the host: a link
that was down before monitoring began is found too. The product's number alone is no normal: a host may be built with fewer, and a
guest may have fewer. Hosts without any active link are left out: NVLink is not used there (a VM with one GPU), or Fabric Manager
does not run, which has its own alerts.

Nodes of Kubernetes count no links: dcgm-exporter has no field for the number, and lists only links that were up when it
started. There DCGM's health watch decides, for the same products, and never about the speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from alerts.model import Rule, RuleGroup
from alerts.tables import entries

TABLE_FILE: Final = Path(__file__).with_name("nvlink.csv")

_HOST: Final = "datacenter, cluster, instance"
_GPU: Final = f"{_HOST}, gpu, uuid"


@dataclass(frozen=True, kw_only=True)
class Product:
    """`model`: regular expression of the whole product name. `speed`: bytes per second of one link in one direction."""

    model: str
    links: int
    speed: int
    source: str


def _product(row: Mapping[str, str]) -> Product:
    links, speed = int(row["links"]), int(row["speed_mb_per_s"]) * 1_000_000
    return Product(model=row["model"], links=links, speed=speed, source=row["source"])


PRODUCTS: Final = tuple(entries(TABLE_FILE, _product))


def metric_groups() -> list[RuleGroup]:
    rules = (_most_links(), _most_speed(), _down(), _down_since(), _slow())
    return [RuleGroup(name="nvlink", interval="30s", rules=rules)]


def expected_links() -> dict[int, str]:
    """The expected number of links, with the products that have it."""
    return _by(lambda product: product.links)


def _by(value: Any) -> dict[int, str]:
    found: dict[int, list[str]] = {}
    for product in PRODUCTS:
        found.setdefault(value(product), []).append(product.model)
    return {number: "|".join(models) for number, models in sorted(found.items())}


def _below(series: str, expected: dict[int, str], most: str, share: str = "") -> str:
    """GPUs of listed products with less than expected and than the best GPU of their host. `share`: of both, what is enough."""
    arms = [f'{series}{{model=~"{models}"}} < {number}{share}' for number, models in expected.items()]
    found = f"max by ({_GPU}) (\n  " + "\n  or\n  ".join(arms) + "\n)"
    return f"{found}\n< on ({_HOST}) group_left ()\nmax by ({_HOST}) ({most}){share}"


def _own_past(series: str, most: str, share: str = "") -> str:
    """GPUs of other products with less than they had."""
    listed = "|".join(product.model for product in PRODUCTS)
    return f'max by ({_GPU}) ({series}{{model!~"{listed}"}})\n< {most}{share}'


# By the clock of the host, which is that of the sample too.
_MAINTENANCE_ENDED: Final = (
    'timestamp(gpu_fleet_maintenance_end_timestamp_seconds{datacenter!=""}) - '
    'gpu_fleet_maintenance_end_timestamp_seconds{datacenter!=""} < 300'
)


# A bridge that somebody removed is no failure: the end of a maintenance forgets the number before it. It leaves 0, or the number
# would be found again within 30 minutes.
def _most(name: str, series: str) -> Rule:
    now = f"max by ({_GPU}) ({series} > 0)"
    before = f"last_over_time({name}[30m])\n  and on ({_HOST}) host:known:bool"
    return {
        "record": name,
        "expr": (
            f"max by ({_GPU}) (\n(\n  {before}\n  unless on ({_HOST}) ({_MAINTENANCE_ENDED})\n) > {now}\nor\n{now}\nor\n(\n"
            f"  {before}\n  unless on ({_HOST}) ({_MAINTENANCE_ENDED})\n)\nor\n(\n  0 * ({before})\n"
            f"  and on ({_HOST}) ({_MAINTENANCE_ENDED})\n)\n)\n"
        ),
    }


def _most_links() -> Rule:
    return _most("gpu:nvlinks_most:count", "gpu:nvlinks_active:count")


def _most_speed() -> Rule:
    return _most("gpu:nvlink_speed_most:bytes_per_second", "gpu:nvlink_speed:bytes_per_second")


# A slow link, or a bridge that is missing, is slower for the jobs, and nothing else.
_LATER: Final = "When its jobs have ended, reset the GPUs of the node; have cable or baseboard serviced if that does not help."
_DRAIN: Final = "Drain the node and reset its GPUs; have cable or baseboard serviced if that does not help."


def _down() -> Rule:
    """NVIDIA's Health Validation, nvlink_active: critical, drain, then reset the GPU, reboot, service."""
    return _alert(
        "GpuNvlinkDown",
        f"(\n{_below('gpu:nvlinks_active:count', expected_links(), 'gpu:nvlinks_most:count')}\nor\n{_down_by_health()}\n)\n"
        f"unless on ({_HOST}, uuid) gpu:incident:score > 49\n",
        "critical",
        summary="GPU {{ $labels.gpu }} on {{ $labels.instance }}: "
        "{{ if ge $value 0.0 }}only {{ $value }} NVLinks active{{ else }}an NVLink is down{{ end }}",
        description="It had more, or other GPUs of the host do. Collective operations run at the speed of the slowest GPU.",
        action="Find the link: nvidia-smi nvlink -s -i {{ $labels.gpu }}. " + _DRAIN,
    )


def _down_by_health() -> str:
    """-1 for GPUs without a count. To DCGM, a baseboard with fewer links than its product can have is a failure, but on every GPU
    of the host. The code distinguishes a link from an IMEX daemon, which the same watch reports on (NVSentinel issue 1471).
    """
    listed = "|".join(product.model for product in PRODUCTS)
    down = f'health_error_code="DCGM_FR_NVLINK_DOWN", model=~"{listed}"'
    return (
        f"0 * max by ({_GPU}) (gpu:dcgm_health:code{{{down}}}) - 1\n"
        f"and on ({_HOST}) (\n  gpu:dcgm_health:code unless on ({_HOST}, uuid) "
        'gpu:dcgm_health:code{health_watch=~"(?i)nvlink"} > 0\n)\n'
        f"unless on ({_HOST}, uuid) gpu:nvlinks_active:count"
    )


def _down_since() -> Rule:
    return _alert(
        "GpuNvlinkDown",
        f"{_own_past('gpu:nvlinks_active:count', 'gpu:nvlinks_most:count')}\nunless on ({_HOST}, uuid) gpu:incident:score > 49\n",
        "warning",
        summary="GPU {{ $labels.gpu }} on {{ $labels.instance }}: only {{ $value }} NVLinks active",
        description="This GPU had more. Collective operations run at the speed of the slowest GPU.",
        action="Find the link: nvidia-smi nvlink -s -i {{ $labels.gpu }}. " + _LATER,
    )


def _slow() -> Rule:
    """A link that trained lower has the speed of an older generation, half or less; tools round, and round differently."""
    speed, most, enough = "gpu:nvlink_speed:bytes_per_second", "gpu:nvlink_speed_most:bytes_per_second", " * 0.95"
    return _alert(
        "GpuNvlinkSlow",
        f"{_below(speed, _by(lambda product: product.speed), most, enough)}\nor\n(\n{_own_past(speed, most, enough)}\n)\n",
        "warning",
        summary="GPU {{ $labels.gpu }} on {{ $labels.instance }}: an NVLink runs at {{ $value | humanize }}B/s",
        description="It was faster, or other GPUs of the host are.",
        action="Find the link: nvidia-smi nvlink -s -i {{ $labels.gpu }}. " + _LATER,
    )


def _alert(name: str, expression: str, severity: str, **annotations: str) -> Rule:
    return {
        "alert": name,
        "expr": expression,
        "for": "5m",
        "labels": {"severity": severity, "scope": "fabric", "action": "check_fabric"},
        "annotations": {**annotations, "runbook": f"alerts/runbooks/{name}.md"},
    }
