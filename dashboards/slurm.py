"""Slurm's queue and nodes (`jobs.queueHosts`): what waits and why, which GPUs take no jobs, which nodes should or should not?"""

from __future__ import annotations

from typing import Any, Final

from dashboards.layout import Row, build
from dashboards.panels import NO_THRESHOLDS, Column, Query, in_words, one_number, rows, time_series
from dashboards.queries import slurm as q
from dashboards.queries import work
from dashboards.queries.common import CLUSTER

NONE: Final = "Slurm does not answer, or no host asks it (jobs.queueHosts)"
PARTITION: Final = "{{partition}}, {{cluster}}"
NONE_BEGAN: Final = f"no job began within an hour; or {NONE}"
NONE_FOUND: Final = f"none; or {NONE}"
_STATES: Final = {"idle": "green", "allocated": "blue", "unusable": "red", "powered_down": "gray"}
_NODE_STATES: Final = {
    **{"idle": "green", "allocated": "blue", "mixed": "light-blue", "planned": "super-light-blue", "completing": "purple"},
    **{"drained": "red", "draining": "orange", "down": "dark-red", "maint": "yellow", "reserved": "light-yellow"},
    **{"powered_down": "gray", "powering_up": "super-light-green"},
}
_READY: Final = {"0": ("pass", "green"), "1": ("warn", "yellow"), "2": ("FAIL", "red"), "3": ("unknown", "orange")}
_HOST: Final = "/d/gpu-fleet-host?var-instance=${__value.raw}&${__url_time_range}"


def dashboard() -> dict[str, Any]:
    return build(
        "slurm",
        "GPU fleet / Slurm queue",
        "What waits in Slurm's queue and why, which GPUs take jobs, and nodes where Slurm and the health of the GPUs disagree. "
        "Needs `jobs.queueHosts`; Jobs has the jobs that run.",
        variables=("datacenter", "cluster"),
        rows=(
            Row("Now", (*_now(), _partitions())),
            Row("Nodes", _nodes()),
            Row("Over time", _over_time()),
        ),
    )


def _number(
    title: str, query: str, description: str, unit: str = "short", thresholds: Any = NO_THRESHOLDS, width: int = 6
) -> Any:
    return one_number(
        title, Query(query, title), description=description, unit=unit, thresholds=thresholds, width=width, if_none=NONE
    )


def _now() -> tuple[Any, ...]:
    return (
        in_words(
            "Controller",
            Query(q.answers(CLUSTER), "Controller"),
            description="Whether slurmctld has answered a host that asks it within five minutes, in every cluster chosen.",
            words={1: ("answers", "green"), 0: ("NO ANSWER", "red")},
            width=6,
            if_none="no host asks Slurm: jobs.queueHosts",
        ),
        _number(
            "Scheduler cycle",
            q.scheduler_cycle(CLUSTER),
            "The last one of the main scheduler. Where they take more than a second, jobs start late.",
            "s",
            ((None, "green"), (1, "orange")),
            width=3,
        ),
        _number(
            "Answers take",
            q.answers_take(CLUSTER),
            "How long slurmctld took for squeue, sinfo and sdiag. Each is given up after ten seconds.",
            "s",
            ((None, "green"), (3, "orange")),
            width=3,
        ),
        _number("Running jobs", q.total("gpu_fleet_slurm_account_jobs", CLUSTER, "running"), "With and without GPUs."),
        _number(
            "Pending jobs",
            q.total("gpu_fleet_slurm_account_jobs", CLUSTER, "pending"),
            "Jobs that could begin if there were room; each task of an array counts.",
        ),
        _number(
            "GPUs asked for",
            q.total("gpu_fleet_slurm_partition_gpus_pending", CLUSTER),
            "By pending jobs. A job for several partitions counts in each.",
        ),
        _number("Longest wait", q.longest_wait(CLUSTER), "Of the jobs that are pending now.", "s"),
        _number("Idle GPUs", q.total("gpu_fleet_slurm_gpus", CLUSTER, "idle"), "Slurm gives them to jobs."),
        _number(
            "Unusable GPUs",
            q.total("gpu_fleet_slurm_gpus", CLUSTER, "unusable"),
            "They have no job, and their node takes none: it is drained, down or in maintenance. Not those of nodes that Slurm "
            "has powered down, and starts for a job.",
            thresholds=((None, "green"), (1, "orange")),
        ),
    )


def _partitions() -> Any:
    return rows(
        "Partitions",
        [
            Query(q.by_partition("slurm_partition_jobs_running", CLUSTER), ""),
            Query(q.by_partition("slurm_partition_jobs_pending", CLUSTER), ""),
            Query(q.by_partition("slurm_partition_jobs_hold", CLUSTER), ""),
            *(Query(q.gpus_of_partitions(CLUSTER, state), "") for state in ("allocated", "idle", "unusable", "powered_down")),
            Query(q.by_partition("gpu_fleet_slurm_partition_gpus_pending", CLUSTER), ""),
            Query(q.wait(CLUSTER, "0.5"), ""),
            Query(q.wait(CLUSTER, "1"), ""),
        ],
        description="Held jobs wait for somebody, for a time or for another job, and are among the waiting ones. Waits are those "
        "of pending jobs.",
        width=24,
        height=6,
        columns={
            "datacenter": Column(heading="Datacenter"),
            "cluster": Column(heading="Cluster"),
            "partition": Column(heading="Partition"),
            "Value #A": Column(heading="Running"),
            "Value #B": Column(heading="Waiting"),
            "Value #C": Column(heading="Held"),
            "Value #D": Column(heading="GPUs allocated"),
            "Value #E": Column(heading="GPUs idle"),
            "Value #F": Column(heading="GPUs unusable"),
            "Value #G": Column(heading="GPUs powered down"),
            "Value #H": Column(heading="GPUs asked for"),
            "Value #I": Column(heading="Median wait", unit="s"),
            "Value #J": Column(heading="Longest wait", unit="s"),
        },
        sort_by="GPUs asked for",
        if_none=NONE,
    )


def _node_table(title: str, nodes: str, description: str, *, height: int, has_reason: bool = True) -> Any:
    return rows(
        title,
        [Query(nodes, ""), Query(q.critical_alerts(CLUSTER, nodes), ""), Query(q.readiness(CLUSTER, nodes), "")],
        description=description,
        width=24,
        height=height,
        columns={
            "datacenter": Column(heading="Datacenter", width=110),
            "cluster": Column(heading="Cluster", width=110),
            "node": Column(heading="Node", link=_HOST, width=150),
            "state": Column(heading="State", width=90),
            **({"reason": Column(heading="Reason", is_text=True)} if has_reason else {}),
            "Value #B": Column(heading="Critical alerts", width=110),
            "Value #C": Column(heading="Ready", words=_READY, width=80),
        },
        sort_by="Node",
        descending=False,
        if_none=NONE_FOUND,
    )


def _nodes() -> tuple[Any, ...]:
    return (
        _node_table(
            "Sick nodes that take jobs",
            q.sick_and_schedulable(CLUSTER),
            "Slurm starts jobs there, although a critical alert fires for the host or it is not ready: drain them.",
            height=5,
            has_reason=False,
        ),
        _node_table(
            "Healthy nodes that are drained",
            q.healthy_and_drained(CLUSTER),
            "No job can start there, and nothing is known against their GPUs: resume them, or find out who drained them and why.",
            height=5,
        ),
        _node_table(
            "Nodes out of service",
            q.nodes_out(CLUSTER),
            "Nodes on which Slurm starts no job, with the reason that somebody gave.",
            height=8,
        ),
    )


def _course(title: str, queries: list[Query], description: str, unit: str = "short", **more: Any) -> Any:
    return time_series(
        title,
        queries,
        description=description,
        unit=unit,
        thresholds=NO_THRESHOLDS,
        **{"fill": 30, "width": 12, "if_none": NONE, "is_stacked": True, **more},
    )


def _over_time() -> tuple[Any, ...]:
    return (
        _course("GPUs by state", [Query(q.gpus_by_state(CLUSTER), "{{state}}")], "As Slurm has them.", colors=_STATES),
        _course(
            "Nodes by state",
            [Query(q.nodes_by_state(CLUSTER), "{{state}}")],
            "Each node in one state; draining: drained, with jobs that go on.",
            colors=_NODE_STATES,
        ),
        _course(
            "GPUs that pending jobs ask for",
            [Query(q.by_partition("gpu_fleet_slurm_partition_gpus_pending", CLUSTER), PARTITION)],
            "By partition; those of held jobs are not among them.",
        ),
        _course(
            "Waiting jobs by reason",
            [Query(q.jobs_by_reason(CLUSTER), "{{reason}}")],
            "Slurm's reason: Priority and Resources wait for room; the others rarely start by themselves.",
        ),
        _course(
            "Median wait of pending jobs",
            [Query(q.wait(CLUSTER, "0.5"), PARTITION)],
            "Of the jobs that are pending at the time, by partition.",
            "s",
            fill=0,
            is_stacked=False,
        ),
        _course(
            "Waits of jobs that began",
            [
                Query(q.start_wait(CLUSTER, 0.5), f"median {PARTITION}"),
                Query(q.start_wait(CLUSTER, 0.95), f"95 % {PARTITION}"),
            ],
            "How long jobs that began within the hour had been eligible, by partition: estimated from the counts up to a minute, "
            "ten minutes, 1, 4, 12 and 24 hours.",
            "s",
            fill=0,
            is_stacked=False,
            if_none=NONE_BEGAN,
        ),
        _course(
            "Mean wait of jobs that began, by account",
            [Query(q.mean_start_wait(CLUSTER), "{{account}}")],
            "Of jobs that began within the hour; the ten accounts that waited longest.",
            "s",
            fill=0,
            is_stacked=False,
            if_none=NONE_BEGAN,
        ),
        _course(
            "GPUs of running jobs by account",
            [Query(q.of_accounts("gpu_fleet_slurm_account_gpus", CLUSTER, "running"), "{{account}}")],
            "The ten accounts with the most.",
        ),
        _course(
            "GPUs asked for by account",
            [Query(q.of_accounts("gpu_fleet_slurm_account_gpus", CLUSTER, "pending"), "{{account}}")],
            "By pending jobs; the ten accounts that ask for the most.",
        ),
        _course(
            "GPUs of running jobs by user",
            [Query(f"topk(10, {work.gpus_of(CLUSTER, 'user')})", "{{user}}")],
            "The ten users with the most, from the jobs on each GPU.",
            if_none="no job has a GPU, or the stack has no gpu-fleet:jobs",
        ),
    )
