"""Alerts on NVLinks that are down or slow: against the table of products in nvlink.csv, otherwise against the GPU's own past.

The table is absolute, so that a link which was down before monitoring began is found too. Hosts without any active link are left
out: NVLink is not used there (a VM with one GPU), or Fabric Manager does not run, which has its own alerts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from alerts.model import Rule, RuleGroup
from alerts.tables import rows

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


def _read() -> tuple[Product, ...]:
    return tuple(
        Product(
            model=row["model"],
            links=int(row["links"]),
            speed=int(row["speed_mb_per_s"]) * 1_000_000,
            source=row["source"],
        )
        for row in rows(TABLE_FILE.read_text().splitlines())
    )


PRODUCTS: Final = _read()


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


def _below(series: str, expected: dict[int, str]) -> str:
    """GPUs of listed products with less than expected."""
    arms = [f'{series}{{model=~"{models}"}} < {number}' for number, models in expected.items()]
    return f"max by ({_GPU}) (\n  " + "\n  or\n  ".join(arms) + "\n)"


def _own_past(series: str, most: str) -> str:
    """GPUs of other products with less than they had."""
    listed = "|".join(product.model for product in PRODUCTS)
    return f'max by ({_GPU}) ({series}{{model!~"{listed}"}})\n< {most}'


# By the clock of the host, which is that of the sample too.
_MAINTENANCE_ENDED: Final = (
    "timestamp(gpu_fleet_maintenance_end_timestamp_seconds) - gpu_fleet_maintenance_end_timestamp_seconds < 300"
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


_ANY_LINK: Final = f"and on ({_HOST}) max by ({_HOST}) (gpu:nvlinks_active:count) > 0"
_DRAIN: Final = "Drain the node and reset its GPUs; have cable or baseboard serviced if that does not help."


def _down() -> Rule:
    """NVIDIA's Health Validation, nvlink_active: critical, drain, then reset the GPU, reboot, service."""
    return _alert(
        "GpuNvlinkDown",
        f"{_below('gpu:nvlinks_active:count', expected_links())}\n{_ANY_LINK}\n"
        f"unless on ({_HOST}, uuid) gpu:incident:score > 49\n",
        "critical",
        summary="GPU {{ $labels.gpu }} on {{ $labels.instance }}: only {{ $value }} NVLinks active",
        description="GPUs of this product have more. Collective operations run at the speed of the slowest GPU.",
        action="Find the link: nvidia-smi nvlink -s -i {{ $labels.gpu }}. " + _DRAIN,
    )


def _down_since() -> Rule:
    return _alert(
        "GpuNvlinkDown",
        f"{_own_past('gpu:nvlinks_active:count', 'gpu:nvlinks_most:count')}\nunless on ({_HOST}, uuid) gpu:incident:score > 49\n",
        "warning",
        summary="GPU {{ $labels.gpu }} on {{ $labels.instance }}: only {{ $value }} NVLinks active",
        description="This GPU had more. Collective operations run at the speed of the slowest GPU.",
        action="Find the link: nvidia-smi nvlink -s -i {{ $labels.gpu }}. " + _DRAIN,
    )


def _slow() -> Rule:
    speed, most = "gpu:nvlink_speed:bytes_per_second", "gpu:nvlink_speed_most:bytes_per_second"
    return _alert(
        "GpuNvlinkSlow",
        f"{_below(speed, _by(lambda product: product.speed))}\nor\n(\n{_own_past(speed, most)}\n)\n",
        "warning",
        summary="GPU {{ $labels.gpu }} on {{ $labels.instance }}: an NVLink runs at {{ $value | humanize }}B/s",
        description="GPUs of this product have faster links, or this one had.",
        action="Find the link: nvidia-smi nvlink -s -i {{ $labels.gpu }}. " + _DRAIN,
    )


def _alert(name: str, expression: str, severity: str, **annotations: str) -> Rule:
    return {
        "alert": name,
        "expr": expression,
        "for": "5m",
        "labels": {"severity": severity, "scope": "fabric", "action": "check_fabric"},
        "annotations": {**annotations, "runbook": f"alerts/runbooks/{name}.md"},
    }
