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
import time
from pathlib import Path
from typing import Callable, Iterator, Mapping, NamedTuple, Sequence

from . import loop, slurm_gpus
from .files import replace
from .metrics import JOBS, Metrics
from .slurm_gpus import Gpu
from .slurm_job import asked, numbers_of
from .slurm_tools import SlurmError, log, node, printable, run, slurmd

PROGRAM = "gpu-fleet-jobs"
INTERVAL_S = 15
SETTLED_S = 10  # from a job's prolog to its first process
LONGEST_S = 300  # between two questions about a job without processes
MOST_JOBS = 512
# What `scontrol listpids` prints although it exits with 1: the header of 22.05, no step, and the socket of a slurmstepd that was
# killed, which stays until slurmd has cleaned up.
_LISTED = r"^PID\s+JOBID|No job steps exist|Unable to connect to slurmstepd: Connection refused"
MOST_TEXT = 64


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
        if 0 <= now - self.started < SETTLED_S:
            return False
        since = now - self.asked  # below 0: the clock was set back
        return since < 0 or since >= min(max(INTERVAL_S - 1, self.asked - self.unseen), LONGEST_S)


class Store(NamedTuple):
    """What is remembered until the next boot. `devices`: in Slurm's order; `files`: theirs, of this start of slurmd (`daemon`).

    `error`: why the last sweep did not work.
    """

    jobs: dict[str, Job] = {}  # noqa: RUF012  nobody changes it in place
    devices: Sequence[Gpu] = ()
    daemon: str = ""
    node: str = ""
    error: str = ""
    files: Sequence[Sequence[str]] | None = None  # None: slurmd was not asked yet


def started(environment: Mapping[str, str], now: float) -> tuple[str, Job]:
    """From the variables that slurmd gives to a prolog. Raises SlurmError."""
    job = Job(
        user=_text(environment.get("SLURM_JOB_USER", "")),
        account=_text(environment.get("SLURM_JOB_ACCOUNT", "")),
        partition=_text(environment.get("SLURM_JOB_PARTITION", "")),
        numbers=numbers_of(environment.get("SLURM_JOB_GPUS", "")),
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
            said = asked(job_id, store.node, with_gpus=known is None)
            new = said and Job(_text(said.user), _text(said.account), _text(said.partition), said.numbers, started=now)
            changes[job_id] = known._replace(asked=now) if known and said else new
    except SlurmError as error:
        return changes, str(error)
    return changes, ""


def _with_processes() -> set[str]:
    """Jobs that have processes on this host. `scontrol listpids` asks slurmd's own processes here, not the controller."""
    return set(re.findall(r"^\s*-?\d+\s+(\d+)\s", run("scontrol", "listpids", fine=_LISTED), re.MULTILINE))


def with_devices(store: Store) -> Store:
    """slurmd is asked once, the driver each time. Raises SlurmError."""
    root = Path(os.environ.get("GPU_FLEET_ROOT") or "/")  # where the file system begins, for the tests
    pid, since = slurmd()
    daemon = f"{pid} {since}"
    if daemon == store.daemon and store.files is not None:
        return store._replace(devices=slurm_gpus.known(store.files, root, store.devices))
    files = slurm_gpus.files(run("slurmd", "-G"))
    before = store.devices if store.files in (None, files) else ()
    return store._replace(devices=slurm_gpus.known(files, root, before), daemon=daemon, files=files)


def held(store: Store) -> Iterator[tuple[str, Job, Gpu]]:
    for job_id, job in store.jobs.items():
        for number in job.numbers:
            if number < len(store.devices):
                yield job_id, job, store.devices[number]


def _without_device(store: Store) -> str:
    """Why jobs have GPUs that nobody is shown; empty where all are known."""
    for job_id, job in store.jobs.items():
        for number in sorted(job.numbers, reverse=True):
            has = f"job {job_id} has Slurm's GPU {number}"
            if number >= len(store.devices):
                return f"{has}, and slurmd -G lists {len(store.devices)} with a device file"
            if not any(store.devices[number]):
                return f"{has}, and the driver does not list its device file"
    return ""


def metrics(store: Store, now: float) -> str:
    found = Metrics([" ".join(store.error.split())] if store.error else (), known=JOBS, prefix="gpu_fleet_")
    for job_id, job, gpu in filter(lambda one: any(one[2]), held(store)):
        found.add("job_info", 1, gpu.uuid, gpu.gpu, gpu.gpu_instance, job_id, job.user, job.account, job.partition)
    found.add("jobs_success", int(not store.error))
    found.add("jobs_timestamp_seconds", int(now))
    return found.render()


def listed(store: Store, now: float) -> str:
    """For people."""
    rows = [
        (
            *(f"GPU {gpu.gpu or '?'}", gpu.uuid, gpu.gpu_instance and f"instance {gpu.gpu_instance}"),
            *(f"job {job_id}", job.user, job.account, job.partition, f"{max(0, now - job.started) / 60:.0f} min"),
        )
        for job_id, job, gpu in sorted(held(store), key=lambda one: (one[2].gpu.zfill(4), one[2].gpu_instance, one[0]))
    ]
    return "".join("  ".join(filter(None, row)) + "\n" for row in rows) or "no job has a GPU of this host\n"


def _id(environment: Mapping[str, str]) -> str:
    job_id = environment.get("SLURM_JOB_ID", "")
    if not job_id.isdigit():
        raise SlurmError("SLURM_JOB_ID is not set: Slurm starts this program")
    return job_id


def _text(value: str) -> str:
    return printable(value, MOST_TEXT)


# --- the store ----------------------------------------------------------------------------------------------------------------


def changed(directory: Path, textfile: Path, change: Callable[[Store], Store]) -> None:
    """Prologs of several jobs come at once, and the sweep between them: nobody waits inside, and the metrics are written there,
    or an older store's would come last."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (directory / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        file = directory / "jobs.json"
        store = change(read(file))
        jobs = {job_id: job._asdict() for job_id, job in store.jobs.items()}
        replace(file, json.dumps([jobs, *store[1:]]), 0o600)
        replace(textfile, metrics(store, time.time()))


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
    """`prolog`, `epilog`: status 0 whatever happens. `sweep`: once, `loop`: every 15 s. Without an argument: shows who has which
    GPU."""
    prefix = os.environ.get("GPU_FLEET_PREFIX", "")
    directory = Path(prefix + "/run/gpu-fleet/jobs")
    textfile = Path(prefix + "/var/lib/gpu-fleet/textfile/jobs.prom")
    if not arguments:
        print(listed(read(directory / "jobs.json"), time.time()), end="")
        return 0
    if list(arguments) == ["loop"]:
        loop.every(INTERVAL_S, lambda: _write("sweep", directory, textfile), ["jobs", "loop"], lambda: False)
    _write(arguments[0], directory, textfile)
    return 0


def _write(verb: str, directory: Path, textfile: Path) -> None:
    try:
        changed(directory, textfile, _swept(directory) if verb == "sweep" else _told(verb))
    except (OSError, SlurmError) as error:
        log(PROGRAM, f"{verb}: {error}")


def _told(verb: str) -> Callable[[Store], Store]:
    """By slurmd, in the environment of a prolog or an epilog."""
    job_id, job = started(os.environ, time.time())

    def change(store: Store) -> Store:
        jobs = {of: one for of, one in store.jobs.items() if of != job_id}
        if verb == "prolog":
            jobs[job_id] = job
        return store._replace(jobs=jobs, node=os.environ.get("SLURMD_NODENAME") or store.node)

    return change


def _swept(directory: Path) -> Callable[[Store], Store]:
    before = read(directory / "jobs.json")
    # Until a prolog says it, the node has the host's name, which may change.
    named = before._replace(node=before.node or node())
    changes, error = swept(named, time.time())
    found = before
    try:
        found = with_devices(before)
    except SlurmError as failed:
        error = error or str(failed)
    error = error or _without_device(found)
    if error and error != before.error:  # once, and not every 15 s
        log(PROGRAM, error)
    return lambda store: found._replace(jobs=corrected(store, before, changes), node=store.node, error=error)
