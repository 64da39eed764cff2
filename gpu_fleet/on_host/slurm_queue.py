"""Slurm's queue, nodes and GPUs by partition and account, for dashboards and alerts, from any version of Slurm.

Three commands a minute (squeue, sinfo, sdiag), each with a time limit; a run ends before the next begins. No job and no user has
a series: partitions, accounts, reasons and nodes have, a bounded number of each. slurmctld of 25.11 and newer has metrics of its
own: names that begin with slurm_ are its names, with their meaning (its idle nodes include drained ones), but that jobs count as
held also while they wait for a time, another job, or a limit of their user. Without slurmdbd its numbers of GPUs are 0 (seen with
26.05), and it has no state of single nodes.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Iterator, Mapping, NamedTuple, Sequence

from .files import replace, text_of
from .metrics import SLURM, Metrics
from .slurm_job import shared
from .slurm_tools import SlurmError, columns, printable, run
from .slurm_waits import MOST_ACCOUNTS, MOST_PARTITIONS, OTHER, Started, counted

MOST_NODES = 5000
MOST_REASONS = 16
MOST_TEXT = 100
# Of all types of the options --gpus..., tres-alloc has what is needed where AccountingStorageTRES has gres/gpu.
_JOB = (
    *("Partition", "Account", "State", "Reason", "ArrayTaskID", "SubmitTime", "EligibleTime", "StartTime", "BatchHost"),
    *("NumNodes", "NumTasks", "tres-alloc", "tres-per-job", "tres-per-node", "tres-per-task", "tres-per-socket"),
)
# Slurm still shows them for a while (MinJobAge).
_ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"),
}
_NODE = ("NodeHost", "PartitionName", "StateComplete", "Gres", "GresUsed", "Reason")
# Why a job waits that idle nodes may start: anything else is somebody's decision, or a limit of its own user, account or licence.
_SCHEDULERS = {"None", "Resources", "Priority", "Prolog", "Cleaning"}
_DOWN = {"down", "error", "fail", "future", "unknown", "not_responding", "invalid_reg", "power_down"}
_SDIAG = {
    "slurm_server_thread_cnt": r"^Server thread count:\s*(\d+)",
    "slurm_sdiag_jobs_started": r"^Jobs started:\s*(\d+)",
    "slurm_schedule_cycle_last": r"^Main schedule statistics[^\n]*\n\s*Last cycle:\s*(\d+)",
}


class Jobs(NamedTuple):
    """Jobs that squeue shows in one row: one job, or those of an array that have not begun.

    `use`: running, ended, pending, or held: by somebody or by a limit, until a time, or until another job ends. `waited`: seconds
    for which it could have begun, until it did. `began`: 0: not yet, or it was cancelled before.
    """

    partitions: Sequence[str]
    account: str
    use: str
    reason: str
    number: int
    gpus: int
    waited: float
    began: float = 0


class Node(NamedTuple):
    """`flags`: as Slurm has them. `used`: GPUs of jobs, of `gpus`."""

    name: str
    partitions: Sequence[str]
    flags: frozenset[str]
    gpus: int
    used: int
    reason: str

    @property
    def state(self) -> str:
        flags = self.flags
        power = flags & {"powered_down", "powering_down", "powering_up"}  # by Slurm's power saving, while no job needs the node
        if power and "down" not in flags:
            return "powering_up" if power == {"powering_up"} else "powered_down"
        has_jobs = bool(flags & {"allocated", "mixed", "completing"})
        if flags & _DOWN:
            return "down"
        if "drain" in flags:
            return "draining" if has_jobs else "drained"
        for state in ("maint", "reboot_issued", "reserved", "mixed", "allocated", "completing", "planned", "blocked"):
            if state in flags:
                return state
        return "idle"

    @property
    def gpus_by_state(self) -> Mapping[str, int]:
        """A GPU that has no job is unusable where Slurm starts none; a node that is powered down is started for a job."""
        out = dict.fromkeys(("down", "draining", "drained", "maint", "reboot_issued"), "unusable")
        free = {**out, "powered_down": "powered_down", "powering_up": "powered_down"}.get(self.state, "idle")
        return {"allocated": self.used, free: max(0, self.gpus - self.used)}


def jobs(now: float) -> list[Jobs]:
    """All that wait or run, and those that ended a while ago. Raises SlurmError."""
    asked = ("squeue", "--local", "--all", "--states=all", "--noheader", columns(_JOB))
    return [_job(row, now) for row in _rows(*asked, count=len(_JOB))]


def _job(row: Sequence[str], now: float) -> Jobs:
    partitions, account, state, reason, array, submitted, eligible, start, first_node, nodes, tasks, *tres = row
    waits = state == "PENDING"
    since = float(eligible if eligible.isdigit() else submitted)  # N/A also until the scheduler has looked at an array
    # A job that waits may have the time that is planned, and one that was cancelled before it began that of its end.
    began = float(start) if not waits and start.isdigit() and first_node not in ("", "n/a") else 0.0
    waited = (began or now) - since
    text = (re.match(r"[\w ]+", reason) or ["None"])[0]
    return Jobs(
        partitions=[_text(name) for name in partitions.split(",")],
        account=_text(account) if account not in ("N/A", "(null)") else "",
        use=_use(state, reason=text, waited=waited),
        reason=_text(text),
        number=_tasks(array) if waits else 1,
        gpus=_gpus_of_job(tres, _number(nodes), _number(tasks)),
        waited=waited,
        began=began,
    )


def _use(state: str, *, reason: str, waited: float) -> str:
    if state != "PENDING":
        return "ended" if state in _ENDED else "running"
    return "held" if waited < 0 or reason not in _SCHEDULERS else "pending"


def _gpus_of_job(tres: Sequence[str], nodes: int, tasks: int) -> int:
    of_all, per_job, per_node, per_task, per_socket = map(_gpus, tres)
    return of_all or per_job or per_node * nodes or per_task * tasks or per_socket * nodes


def _gpus(text: str) -> int:
    """gpu:8(S:0-1), gpu:(null):8(IDX:0-7), gpu:h100:4,gpu:a100:2, gres:gpu:2, gres/gpu=3,gres/gpu:h100=3: how many GPUs."""
    words = re.sub(r":?\([^)]*\)", "", text).split(",")
    found = [re.fullmatch(r"(?:gres[:/])?gpu((?::[^:=]+)??)(?:[:=](\d+))?", word.strip()) for word in words]
    counts = [(one[1] != "", int(one[2] or 1)) for one in found if one]
    # TRES have all GPUs and, where they are counted by type, each type again.
    whole = [count for has_type, count in counts if not has_type]
    return sum(whole or [count for _, count in counts])


def _tasks(array: str) -> int:
    """0-99:2,200%5: how many tasks; 1 of what is no array."""
    ranges = re.findall(r"(\d+)(?:-(\d+)(?::(\d+))?)?", array.partition("%")[0])
    return sum((int(last or first) - int(first)) // int(step or 1) + 1 for first, last, step in ranges) or 1


def _number(text: str) -> int:
    """The least of 2-4; Slurm writes 2K for 2048."""
    found = re.match(r"(\d+)(K?)", text)
    return int(found[1]) * (1024 if found[2] else 1) if found else 1


def nodes() -> list[Node]:
    """Raises SlurmError."""
    rows: dict[str, list[Sequence[str]]] = {}
    for row in _rows("sinfo", "--local", "--all", "--noheader", "--Node", columns(_NODE), count=len(_NODE)):
        rows.setdefault(row[0], []).append(row)
    found = []
    for name, of_node in rows.items():
        _, _, state, gres, used, reason = of_node[0]
        found.append(
            Node(
                name=_text(name),
                partitions=[_text(row[1]) for row in of_node],
                flags=frozenset(re.findall(r"[a-z_]+", state.lower())),
                gpus=_gpus(gres),
                used=_gpus(used) + len(shared(used)),
                reason="" if reason in ("none", "N/A") else _text(reason),
            )
        )
    return found


def controller() -> dict[str, int]:
    """What slurmctld says of itself. Raises SlurmError."""
    text = run("sdiag")
    found = {name: re.search(pattern, text, re.MULTILINE) for name, pattern in _SDIAG.items()}
    return {name: int(value[1]) for name, value in found.items() if value}


def _rows(*command: str, count: int) -> Iterator[Sequence[str]]:
    for line in run(*command).splitlines():
        row = [field.strip() for field in line.split("|", count - 1)]
        if len(row) == count:
            yield (*row[:-1], row[-1][:-1].strip())


def metrics(of_jobs: Sequence[Jobs], of_nodes: Sequence[Node], of_controller: Mapping[str, float], now: float) -> str:
    found = Metrics(known=SLURM, prefix="")
    for name, value in of_controller.items():
        found.add(name, value)
    of_jobs = [one for one in of_jobs if one.use != "ended"]
    partitions = dict.fromkeys(name for node in of_nodes for name in node.partitions)
    for name in list(partitions)[:MOST_PARTITIONS]:
        its_jobs = [one for one in of_jobs if name in one.partitions]
        _add_partition(found, name, its_jobs, [node for node in of_nodes if name in node.partitions])
    for state, count in _gpus_by_state(of_nodes).items():
        found.add("gpu_fleet_slurm_gpus", count, state)
    _add_accounts(found, of_jobs)
    reasons: Counter[str] = Counter()
    for one in of_jobs:
        if one.use != "running":
            reasons[one.reason] += one.number
    for reason, count in _bounded(reasons, MOST_REASONS).items():
        found.add("gpu_fleet_slurm_jobs_pending", count, reason)
    for node in of_nodes[:MOST_NODES]:
        found.add("gpu_fleet_slurm_node_info", 1, node.name, node.state, node.reason)
    found.add("gpu_fleet_slurm_success", 1)
    found.add("gpu_fleet_slurm_timestamp_seconds", int(now))
    return found.render()


def _add_partition(found: Metrics, name: str, of_jobs: Sequence[Jobs], of_nodes: Sequence[Node]) -> None:
    counts: Counter[str] = Counter()
    for one in of_jobs:
        counts[one.use] += one.number
    found.add("slurm_partition_jobs_pending", counts["pending"] + counts["held"], name)
    found.add("slurm_partition_jobs_hold", counts["held"], name)
    found.add("slurm_partition_jobs_running", counts["running"], name)
    found.add("slurm_partition_nodes_idle", sum("idle" in node.flags for node in of_nodes), name)
    found.add("slurm_partition_nodes_drained", sum(node.state == "drained" for node in of_nodes), name)
    for metric, flag in (("planned", "planned"), ("resv", "reserved"), ("maint", "maint")):
        found.add(f"slurm_partition_nodes_{metric}", sum(flag in node.flags for node in of_nodes), name)
    for state, count in _gpus_by_state(of_nodes).items():
        found.add("gpu_fleet_slurm_partition_gpus", count, name, state)
    waiting = [one for one in of_jobs if one.use == "pending"]
    found.add("gpu_fleet_slurm_partition_gpus_pending", sum(one.gpus * one.number for one in waiting), name)
    waits = [one.waited for one in waiting for _ in range(min(one.number, 1000))]
    for quantile, wait in (("0.5", median(waits or [0])), ("1", max(waits, default=0))):
        found.add("gpu_fleet_slurm_partition_wait_seconds", round(wait), name, quantile)


def _gpus_by_state(of_nodes: Sequence[Node]) -> Mapping[str, int]:
    total = dict.fromkeys(("allocated", "idle", "unusable"), 0)
    for node in of_nodes:
        for state, count in node.gpus_by_state.items():
            total[state] = total.get(state, 0) + count
    return total


def _add_accounts(found: Metrics, of_jobs: Sequence[Jobs]) -> None:
    """Those with most jobs have series of their own."""
    jobs_of: Counter[str] = Counter()
    for one in of_jobs:
        jobs_of[one.account] += one.number
    kept = {account for account, _ in jobs_of.most_common(MOST_ACCOUNTS)}
    counts: Counter[tuple[str, str]] = Counter()
    gpus: Counter[tuple[str, str]] = Counter()
    for one in of_jobs:
        key = (one.account if one.account in kept else OTHER, one.use)
        counts[key] += one.number
        gpus[key] += one.number * one.gpus
    for key in sorted(counts):
        found.add("gpu_fleet_slurm_account_jobs", counts[key], *key)
        found.add("gpu_fleet_slurm_account_gpus", gpus[key], *key)


def _bounded(counts: Counter[str], most: int) -> Mapping[str, int]:
    kept = dict(counts.most_common(most))
    rest = sum(counts.values()) - sum(kept.values())
    return {**kept, OTHER: kept.get(OTHER, 0) + rest} if rest else kept


def _text(value: str) -> str:
    return printable(value, MOST_TEXT)


def main(_: Sequence[str]) -> int:
    """Status 0 also where Slurm does not answer: the metrics say it."""
    file = Path(os.environ.get("GPU_FLEET_PREFIX", "") + "/var/lib/gpu-fleet/textfile/slurm_queue.prom")
    waits = file.with_name("slurm_queue_waits.prom")
    os.environ.update(SLURM_TIME_FORMAT="%s", SLURM_BITSTR_LEN="0")  # seconds; arrays whole
    try:
        now = time.time()
        found = jobs(now)
        text = metrics(found, nodes(), {**controller(), "gpu_fleet_slurm_duration_seconds": round(time.time() - now, 1)}, now)
        started = [Started(one.partitions[0], one.account, one.began, one.waited) for one in found if one.began]
        replace(waits, counted(text_of(waits), started, now))
    except SlurmError as error:
        failed = Metrics([str(error)], known=SLURM, prefix="")
        failed.add("gpu_fleet_slurm_success", 0)
        failed.add("gpu_fleet_slurm_timestamp_seconds", int(time.time()))
        text = failed.render()
        print(f"gpu-fleet-slurm-queue: {error}", file=sys.stderr)
    replace(file, text)
    return 0
