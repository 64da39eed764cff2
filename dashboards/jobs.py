"""Jobs of a scheduler (gpu-fleet:jobs): who has which GPUs, how well are they used, which are free?"""

from __future__ import annotations

from typing import Any

from dashboards import parts
from dashboards.layout import Row, build
from dashboards.panels import NO_THRESHOLDS, Column, Query, one_number, rows, time_series
from dashboards.queries import work as q
from dashboards.queries.common import CLUSTER

NONE = parts.JOBS_OUTSIDE
JOB = "{{job_id}}, {{user}}"


def dashboard() -> dict[str, Any]:
    return build(
        "jobs",
        "GPU fleet / Jobs",
        "Jobs of Slurm and their GPUs: whose they are, and which do nothing. Needs gpu-fleet:jobs; pods have a dashboard of "
        "their own.",
        variables=("datacenter", "cluster"),
        rows=(
            Row("Now", (*_now(), _jobs())),
            Row("Over time", _over_time()),
            Row("GPUs", (parts.jobs(CLUSTER, width=24, height=10, has_host=True),)),
        ),
    )


def _number(title: str, query: str, description: str) -> Any:
    return one_number(
        title,
        Query(query, title),
        description=description,
        unit="short",
        thresholds=NO_THRESHOLDS,
        width=8,
        if_none=NONE,
        has_sparkline=False,
    )


def _now() -> tuple[Any, ...]:
    return (
        _number("Jobs with a GPU", q.jobs_running(CLUSTER), "Jobs that have at least one GPU."),
        _number("GPUs with a job", q.gpus_with_a_job(CLUSTER), "A GPU that jobs share counts once."),
        _number("GPUs without a job", q.gpus_without_a_job(CLUSTER), "Of clusters whose jobs are recorded: GPUs that none has."),
    )


def _jobs() -> Any:
    return rows(
        "Jobs",
        [
            Query(q.of_jobs("count", CLUSTER), ""),
            Query(q.hosts_of_jobs(CLUSTER), ""),
            Query(q.of_jobs("avg", CLUSTER, "gpu:utilization:ratio"), ""),
            Query(q.of_jobs("min", CLUSTER, "gpu:utilization:ratio"), ""),
            Query(q.of_jobs("sum", CLUSTER, "gpu:power:watts"), ""),
        ],
        description="Jobs that have GPUs now. A lowest utilization far below the average is a job with a GPU that waits.",
        width=24,
        height=10,
        columns={
            "cluster": Column(heading="Cluster"),
            "job_id": Column(heading="Job"),
            "user": Column(heading="User"),
            "account": Column(heading="Account"),
            "partition": Column(heading="Partition"),
            "Value #A": Column(heading="GPUs", width=70),
            "Value #B": Column(heading="Hosts", width=70),
            "Value #C": Column(heading="GPU utilization", unit="percentunit"),
            "Value #D": Column(heading="Lowest", unit="percentunit"),
            "Value #E": Column(heading="Power draw", unit="watt"),
        },
        sort_by="GPUs",
        if_none=NONE,
    )


def _course(title: str, query: str, legend: str, description: str, unit: str, **more: Any) -> Any:
    return time_series(
        title,
        [Query(query, legend)],
        description=description,
        unit=unit,
        thresholds=NO_THRESHOLDS,
        **{"fill": 30, "width": 12, "if_none": NONE, "is_stacked": True, **more},
    )


def _over_time() -> tuple[Any, ...]:
    return (
        _course(
            "GPUs by account",
            q.gpus_of(CLUSTER, "account"),
            "{{account}}",
            "GPUs that jobs of the account have; a shared GPU counts in parts.",
            "short",
        ),
        _course(
            "GPUs by user",
            q.gpus_of(CLUSTER, "user"),
            "{{user}}",
            "GPUs that jobs of the user have; a shared GPU counts in parts.",
            "short",
        ),
        _course(
            "Jobs by GPU utilization, lowest",
            q.least_busy(CLUSTER),
            JOB,
            "Average utilization of a job's GPUs; the ten lowest.",
            "percentunit",
            fill=0,
            is_stacked=False,
            most=1,
        ),
        _course(
            "Power by account",
            q.power_of_accounts(CLUSTER),
            "{{account}}",
            "Power draw of the GPUs that jobs of the account have.",
            "watt",
        ),
    )
