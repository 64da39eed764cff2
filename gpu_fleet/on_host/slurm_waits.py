"""How long jobs of Slurm waited until they began: counters, which their file keeps from run to run.

squeue shows jobs while they run and for MinJobAge after their end, five minutes by default: with a run each minute none is
missed, and no database is asked. Not here: jobs that still wait (slurm_queue.py).
"""

from __future__ import annotations

from typing import Iterable, NamedTuple, Tuple

from .metrics import SLURM, Metrics
from .samples import parse

LE = (60, 600, 3600, 14400, 43200, 86400)  # seconds: a minute to a day
MOST_PARTITIONS, MOST_ACCOUNTS = 64, 100
OTHER = "other"
SETTLED_S = 15  # the controller's clock may be ahead of ours, and shows a job a moment after its start
_UNTIL = "gpu_fleet_slurm_start_wait_timestamp_seconds"
_BUCKET = "gpu_fleet_slurm_start_wait_seconds_bucket"
_SUM = "gpu_fleet_slurm_start_wait_seconds_sum"
_COUNT = "gpu_fleet_slurm_start_wait_seconds_count"
_ACCOUNT_SUM = "gpu_fleet_slurm_account_start_wait_seconds_total"
_ACCOUNT_COUNT = "gpu_fleet_slurm_account_starts_total"

_Key = Tuple[str, Tuple[str, ...]]  # a name, and the values of its labels


class Started(NamedTuple):
    """A job, or task of an array. `at`: by the controller's clock. `waited`: seconds since it could have begun."""

    partition: str
    account: str
    at: float
    waited: float


def counted(before: str, started: Iterable[Started], now: float) -> str:
    """The file with the jobs that have begun since it was written. `before`: empty for the first run, which counts none."""
    values: dict[_Key, float] = {(one.name, tuple(one.labels.values())): one.value for one in parse(before, "gpu_fleet_slurm_.*")}
    until = now - SETTLED_S
    since = values.get((_UNTIL, ()), until)
    if since > now:  # the clock was set back: what began meanwhile is lost, and what begins now is counted
        since = until
    until = max(since, until)
    for job in started:
        if since < job.at <= until:
            _count(values, job)
    values[_UNTIL, ()] = until
    found = Metrics(known=SLURM, prefix="")
    for (name, labels), value in values.items():
        found.add(name, round(value), *labels)
    return found.render()


def _count(values: dict[_Key, float], job: Started) -> None:
    partition = _known(values, _COUNT, job.partition, MOST_PARTITIONS)
    account = _known(values, _ACCOUNT_COUNT, job.account, MOST_ACCOUNTS)
    for le in (*map(str, LE), "+Inf"):
        values.setdefault((_BUCKET, (partition, le)), 0)
        values[_BUCKET, (partition, le)] += job.waited <= float(le)
    for key, more in (
        ((_SUM, (partition,)), max(0.0, job.waited)),
        ((_COUNT, (partition,)), 1),
        ((_ACCOUNT_SUM, (account,)), max(0.0, job.waited)),
        ((_ACCOUNT_COUNT, (account,)), 1),
    ):
        values[key] = values.get(key, 0) + more


def _known(values: dict[_Key, float], name: str, label: str, most: int) -> str:
    known = {labels[0] for one, labels in values if one == name}
    return label if label in known or len(known) < most else OTHER
