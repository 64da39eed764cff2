"""Which job has which GPU of this host, from Slurm, as one series for each GPU that a job has.

slurmd calls `prolog` and `epilog` around each job; they never fail, since a prolog that fails drains the node and holds the
job. A job whose epilog was killed would keep its GPU for ever, and one whose prolog was would never show: so a sweep asks slurmd
every 15 s which jobs have processes (on this host alone), and the controller about a job that is recorded and has none, or has
some and is not recorded. That is rare; it asks again later and later, since a job of several nodes may have no process on most
of them for hours.

What a job's own processes say of themselves is never read: their environment is the user's to change.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import sys
import syslog
import time
from pathlib import Path
from typing import Callable, Iterator, Mapping, NamedTuple, Sequence

from . import slurm_gpus
from .files import replace
from .metrics import Metrics
from .slurm_gpus import Gpu
from .slurm_tools import SlurmError, answer, expanded, slurmd

INTERVAL_S = 15
SETTLED_S = 10  # from a job's prolog to its first process
LONGEST_S = 300  # between two questions about a job without processes
MOST_JOBS = 512
# What `scontrol listpids` prints although it exits with 1: the header of 22.05, no step, and the socket of a slurmstepd that was
# killed, which stays until slurmd has cleaned up.
_LISTED = r"^PID\s+JOBID|No job steps exist|Unable to connect to slurmstepd: Connection refused"
MOST_TEXT = 64
# Not COMPLETING: its account no longer pays, though the node may clean up for long after its slurmd was killed.
_ALIVE = {"CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"}


class Job(NamedTuple):
    """`numbers`: Slurm's, of its GPUs. `started`, `unseen`, `asked`: seconds since 1970; 0: never, or it has processes."""

    user: str
    account: str
    partition: str
    numbers: Sequence[int]
    started: float
    unseen: float = 0
    asked: float = 0

    def is_due(self, now: float) -> bool:
        """Is the controller to be asked whether it still runs? At once, then after ever longer pauses."""
        if now - self.started < SETTLED_S:
            return False
        return now - self.asked >= min(max(INTERVAL_S - 1, self.asked - self.unseen), LONGEST_S)


class Store(NamedTuple):
    """What is remembered until the next boot. `devices`: in Slurm's order, of this start of slurmd (`daemon`).

    `error`: why the last sweep did not work.
    """

    jobs: dict[str, Job] = {}  # noqa: RUF012  nobody changes it in place
    devices: Sequence[Gpu] = ()
    daemon: str = ""
    node: str = ""
    error: str = ""


def started(environment: Mapping[str, str], now: float) -> tuple[str, Job]:
    """From the variables that slurmd gives to a prolog. Raises SlurmError."""
    job = Job(
        user=_text(environment.get("SLURM_JOB_USER", "")),
        account=_text(environment.get("SLURM_JOB_ACCOUNT", "")),
        partition=_text(environment.get("SLURM_JOB_PARTITION", "")),
        numbers=_numbers(environment.get("SLURM_JOB_GPUS", "")),
        started=now,
    )
    return _id(environment), job


def swept(store: Store, now: float) -> tuple[dict[str, Job | None], str]:
    """What is to be corrected, None: the job is over; and why the rest is not known."""
    changes: dict[str, Job | None] = {}
    try:
        with_processes = _with_processes()
        for job_id in [*store.jobs, *sorted(with_processes - set(store.jobs))][:MOST_JOBS]:
            known = store.jobs.get(job_id)
            if known and job_id in with_processes:
                changes[job_id] = known._replace(unseen=0, asked=0)
                continue
            if known:
                changes[job_id] = known = known._replace(unseen=known.unseen or now)
                if not known.is_due(now):
                    continue
            said = _asked(job_id, store.node)
            changes[job_id] = said and (known._replace(asked=now) if known else said._replace(started=now))
    except SlurmError as error:
        return changes, str(error)
    return changes, ""


def _with_processes() -> set[str]:
    """Jobs that have processes on this host. `scontrol listpids` asks slurmd's own processes here, not the controller."""
    text, status = answer("scontrol", "listpids")
    if status != 0 and not re.search(_LISTED, text, re.MULTILINE):
        raise SlurmError(f"scontrol listpids: {text.strip()}")
    return set(re.findall(r"^\s*-?\d+\s+(\d+)\s", text, re.MULTILINE))


def _asked(job_id: str, node: str) -> Job | None:
    """What the controller says of a job; None when it is not, or no longer, on this node."""
    text, status = answer("scontrol", "show", "job", job_id, "--details", "--oneliner")
    if status != 0:
        if "Invalid job id" in text:
            return None
        raise SlurmError(f"scontrol show job: {text.strip()}")
    # An array's or a heterogeneous job's id gives a line for each of its parts.
    for line in text.splitlines():
        if re.match(rf"JobId={job_id}\s", line):
            return _of_line(line, node)
    return None


def _of_line(line: str, node: str) -> Job | None:
    fields = dict(re.findall(r"\b(JobState|UserId|Account|Partition|NodeList)=(\S*)", line))
    if fields.get("JobState") not in _ALIVE or node not in expanded(fields.get("NodeList", "")):
        return None
    numbers: list[int] = []
    for nodes, gres in re.findall(r"\bNodes=(\S+)(?: CPU_IDs=\S*)?(?: Mem=\S*)? GRES=(\S*)", line):
        if node in expanded(nodes):
            for listed in re.findall(r"\bgpu\b[^(,]*\(IDX:([\d,-]+)\)", gres):
                numbers += _numbers(listed)
    return Job(
        user=_text(fields.get("UserId", "").partition("(")[0]),
        account=_text("" if fields.get("Account") == "(null)" else fields.get("Account", "")),
        partition=_text(fields.get("Partition", "")),
        numbers=numbers,
        started=0,
    )


def with_devices(store: Store) -> Store:
    """Raises SlurmError."""
    pid, since = slurmd()
    daemon = f"{pid} {since}"
    if daemon == store.daemon:
        return store
    text, _ = answer("slurmd", "-G")
    root = Path(os.environ.get("GPU_FLEET_ROOT") or "/")  # where the file system begins, for the tests
    return store._replace(devices=slurm_gpus.in_order(text, root), daemon=daemon)


def held(store: Store) -> Iterator[tuple[str, Job, Gpu]]:
    for job_id, job in store.jobs.items():
        for number in job.numbers:
            if number < len(store.devices):
                yield job_id, job, store.devices[number]


def metrics(store: Store, now: float) -> str:
    found = Metrics.of_jobs()
    for job_id, job, gpu in held(store):
        found.add("job_info", 1, gpu.uuid, gpu.gpu, gpu.gpu_instance, job_id, job.user, job.account, job.partition)
    found.add("jobs_success", int(not store.error))
    found.add("jobs_timestamp_seconds", int(now))
    says = " ".join(store.error.split())
    return found.render() + (f"# says: {says}\n" if says else "")


def listed(store: Store, now: float) -> str:
    """For people."""
    rows = [
        (
            *(f"GPU {gpu.gpu or '?'}", gpu.uuid, gpu.gpu_instance and f"instance {gpu.gpu_instance}"),
            *(f"job {job_id}", job.user, job.account, job.partition, f"{(now - job.started) / 60:.0f} min"),
        )
        for job_id, job, gpu in sorted(held(store), key=lambda one: (one[2].gpu.zfill(4), one[2].gpu_instance, one[0]))
    ]
    return "".join("  ".join(filter(None, row)) + "\n" for row in rows) or "no job has a GPU of this host\n"


def _id(environment: Mapping[str, str]) -> str:
    job_id = environment.get("SLURM_JOB_ID", "")
    if not job_id.isdigit():
        raise SlurmError("SLURM_JOB_ID is not set: Slurm starts this program")
    return job_id


def _numbers(text: str) -> list[int]:
    found = re.findall(r"(\d+)(?:-(\d+))?", text)
    return [number for first, last in found for number in range(int(first), int(last or first) + 1)][:64]


def _text(value: str) -> str:
    return re.sub(r"[^\x20-\x7e]", "?", value)[:MOST_TEXT]


# --- the store ----------------------------------------------------------------------------------------------------------------


def changed(directory: Path, change: Callable[[Store], Store]) -> Store:
    """What `change` makes of the store. Prologs of several jobs come at once, and the sweep between them: nobody waits inside."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (directory / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        file = directory / "jobs.json"
        store = change(read(file))
        jobs = {job_id: job._asdict() for job_id, job in store.jobs.items()}
        replace(file, json.dumps([jobs, *store[1:]]), 0o600)
        return store


def read(file: Path) -> Store:
    """Empty when there is none, or it is another version's."""
    try:
        jobs, devices, *rest = json.loads(file.read_text(encoding="utf-8"))
        return Store({job_id: Job(**job) for job_id, job in jobs.items()}, [Gpu(*gpu) for gpu in devices], *rest)
    except (OSError, ValueError, TypeError):
        return Store()


def corrected(store: Store, before: Store, changes: Mapping[str, Job | None]) -> dict[str, Job]:
    """A job that began or ended while Slurm was asked is as its prolog or epilog says."""
    jobs = dict(store.jobs)
    for job_id, job in changes.items():
        if jobs.get(job_id) == before.jobs.get(job_id):
            if job is None:
                jobs.pop(job_id, None)
            else:
                jobs[job_id] = job
    return jobs


def main(arguments: Sequence[str]) -> int:
    """`prolog`, `epilog`: status 0 whatever happens. `sweep`: once. Without an argument: shows who has which GPU."""
    prefix = os.environ.get("GPU_FLEET_PREFIX", "")
    directory = Path(prefix + "/run/gpu-fleet/jobs")
    textfile = Path(prefix + "/var/lib/gpu-fleet/textfile/jobs.prom")
    if not arguments:
        print(listed(read(directory / "jobs.json"), time.time()), end="")
        return 0
    try:
        store = _done(arguments[0], directory)
        replace(textfile, metrics(store, time.time()))
    except (OSError, SlurmError) as error:
        _log(f"{arguments[0]}: {error}")
    return 0


def _done(verb: str, directory: Path) -> Store:
    now = time.time()
    if verb == "sweep":
        return _sweep(directory, now)
    job_id, job = started(os.environ, now)

    def change(store: Store) -> Store:
        jobs = {of: one for of, one in store.jobs.items() if of != job_id}
        if verb == "prolog":
            jobs[job_id] = job
        return store._replace(jobs=jobs, node=os.environ.get("SLURMD_NODENAME") or store.node)

    return changed(directory, change)


def _sweep(directory: Path, now: float) -> Store:
    before = read(directory / "jobs.json")
    # Until a prolog says it, the node has the host's name, which may change.
    named = before._replace(node=before.node or socket.gethostname().partition(".")[0])
    changes, error = swept(named, now)
    with_order = before
    try:
        with_order = with_devices(before)
    except SlurmError as failed:
        error = error or str(failed)
    if error and error != before.error:  # once, and not every 15 s
        _log(error)
    return changed(
        directory,
        lambda store: Store(corrected(store, before, changes), with_order.devices, with_order.daemon, store.node, error),
    )


def _log(text: str) -> None:
    print(f"gpu-fleet-jobs: {text}", file=sys.stderr)
    syslog.openlog("gpu-fleet-jobs")
    syslog.syslog(syslog.LOG_WARNING, text)
