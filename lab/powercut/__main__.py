"""Cuts the power of hosts, or kills their runs, at random instants, and prints a table."""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path

from gpu_fleet.provider.host import BOOTSTRAP
from gpu_fleet.toolchain import system
from gpu_fleet.toolchain.progress import Progress
from lab.hosts import image
from lab.powercut import subject
from lab.powercut.disks import KINDS, detach, new_disk, shelf
from lab.powercut.trial import (
    BY_ENGINE,
    CUTS_PER_RUN,
    KILLS,
    KILLS_OF_PULL,
    POWER,
    SCENARIOS,
    Laboratory,
    Scenario,
    Trial,
    errors_in,
)
from lab.powercut.waits import IS_IDLE, until

_OUTSIDE = "LAB_POWERCUT_OUTSIDE"  # the process number of this program, before it has a number space of its own
_BUSY = 8.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.powercut", description=__doc__)
    parser.add_argument("--cuts", type=int, default=200, metavar="N")
    parser.add_argument("--kills", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the instants; printed, to see one again")
    parser.add_argument("--scenario", choices=[scenario.name for scenario in SCENARIOS], help="this one alone")
    parser.add_argument("--workers", type=int, default=2)
    wanted = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("Loop devices, mounts and namespaces need root: run it again with sudo.")
    if _OUTSIDE not in os.environ:
        for left in image.directory().glob("powercut-*"):
            if not Path(f"/proc/{left.name.split('-')[1]}").exists():  # a run that was killed
                detach(left.name)
                shutil.rmtree(left)
        # Mounts and process numbers of our own: whatever ends this process, no mount and no process stays.
        os.environ[_OUTSIDE] = str(os.getpid())
        spaces = ["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"]
        again = ["unshare", *spaces, sys.executable, "-m", "lab.powercut", *sys.argv[1:]]
        os.execvp("unshare", again)  # noqa: S606
    progress = Progress()
    system.require(("mkfs.ext4", "mkfs.xfs", "losetup", "debootstrap"), progress)
    layers = tuple(image.ensure(image.CONTAINER, progress))
    print(f"seed {wanted.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix=f"powercut-{os.environ[_OUTSIDE]}-", dir=image.directory()) as directory:
        work = Path(directory)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, partial(_end, work))
        shared = work / "shared"
        shared.mkdir()
        subject.prepare(shared, BOOTSTRAP)
        with shelf(work) as at:
            for kind in KINDS:
                print(f"{kind}: {what_a_cut_leaves(at, work, kind)}", flush=True)
            laboratory = Laboratory(at, work, shared, layers)
            scenarios = [scenario for scenario in SCENARIOS if wanted.scenario in (None, scenario.name)]
            trials = list(_all(laboratory, plan(scenarios, wanted.cuts, wanted.kills, wanted.seed), wanted.workers))
        shutil.rmtree(shared)
    return report(trials)


def _end(work: Path, number: int, frame: object) -> None:
    """At once, whatever the trials wait for. Mounts end with this process, which is number 1 of its space."""
    assert os.getpid() == 1, "the next line is for the processes of this space alone"
    os.kill(-1, signal.SIGKILL)
    detach(work.name)
    shutil.rmtree(work, ignore_errors=True)
    os._exit(128 + number)


def what_a_cut_leaves(at: Path, work: Path, kind: str) -> str:
    """The method itself: a copy has what was synced, and not what was not."""
    disk = new_disk(at, f"{work.name}-proof-{kind}", kind)
    where = work / f"proof-{kind}"
    with disk.mounted(where):
        (where / "synced").write_text("x" * 5000)
        with (where / "synced").open() as file:
            os.fsync(file.fileno())
        (where / "not-synced").write_text("x" * 5000)
        copy = disk.copy(f"{work.name}-proof-copy-{kind}")
    with copy.mounted(where):
        synced = (where / "synced").read_text() == "x" * 5000
        lost = not (where / "not-synced").exists() or (where / "not-synced").read_text() != "x" * 5000
    if not (synced and lost):
        raise SystemExit(
            f"A copy of an image of {kind} is not what a power cut leaves: synced is {synced}, not synced is lost {lost}."
        )
    return "a file that was synced is in the copy, one that was not is not"


@dataclass(frozen=True)
class Job:
    """A run whose power is cut `cuts` times, or a run that is killed."""

    kind: str
    scenario: Scenario
    cause: str
    rng: random.Random
    cuts: int = 0

    def trials(self, laboratory: Laboratory) -> Iterator[Trial]:
        if self.cause == POWER:
            yield from laboratory.cut(self.kind, self.scenario, self.rng, self.cuts)
        else:
            yield laboratory.kill(self.kind, self.scenario, self.cause, self.rng)


def plan(scenarios: Sequence[Scenario], cuts: int, kills: int, seed: int) -> list[Job]:
    """Few trials cover several scenarios and causes, many cover all of them equally."""
    rng = random.Random(seed)
    combinations = [(kind, scenario) for scenario in scenarios for kind in KINDS]
    rng.shuffle(combinations)
    following = cycle(combinations)
    per_run = max(1, min(CUTS_PER_RUN, cuts // len(combinations)))
    jobs = [
        Job(*next(following), POWER, random.Random(rng.random()), min(per_run, cuts - first)) for first in range(0, cuts, per_run)
    ]
    for number in range(kills):
        kind, scenario = next(following)
        causes = KILLS_OF_PULL if scenario.name == "pull" else KILLS
        cause = causes[(number + number // len(combinations)) % len(causes)]
        jobs.append(Job(kind, scenario, cause, random.Random(rng.random())))
    return jobs


def _all(laboratory: Laboratory, jobs: Sequence[Job], workers: int) -> Iterator[Trial]:
    for kind, scenario in {(job.kind, job.scenario) for job in jobs}:
        _wait_for_cpu()
        laboratory.template(kind, scenario)
    if any(job.cause in BY_ENGINE for job in jobs):
        _wait_for_cpu()
        laboratory.prepare_engine()
    with ThreadPoolExecutor(workers) as pool:
        for done in as_completed([pool.submit(_trials, laboratory, job) for job in jobs]):
            for trial in done.result():
                print(f"{trial}: {trial.found}", flush=True)
                for wrong in trial.wrong:
                    print(f"WRONG {trial}, done {trial.was_done}, slowed down {_slowdown():.0f} times: {wrong}", flush=True)
                yield trial


def _trials(laboratory: Laboratory, job: Job) -> list[Trial]:
    unable = Trial(job.kind, job.cause, job.scenario.name, 0.0, was_done=False, found="error")
    trials = []
    with errors_in(unable):
        _wait_for_cpu()
        for trial in job.trials(laboratory):
            trials.append(trial)
    return [*trials, unable] if unable.wrong else trials


def _wait_for_cpu() -> None:
    """At idle priority: a host that gets too little CPU time exceeds our own time limits, which would be no finding."""
    if IS_IDLE:
        until(lambda: _slowdown() <= _BUSY, "for a machine that is less busy")


def _slowdown() -> float:
    """How much longer 20 ms of CPU time take now."""
    began, used = time.monotonic(), time.thread_time()
    while time.thread_time() - used < 0.02:
        pass
    return (time.monotonic() - began) / 0.02


def report(trials: list[Trial]) -> int:
    by_row: dict[tuple[str, str, str], list[Trial]] = {}
    for trial in trials:
        by_row.setdefault((trial.scenario, trial.disk, trial.cause), []).append(trial)
    print(f"\n{'scenario':<12} {'disk':<5} {'cut or killed':<13} {'trials':>6} {'done before':>11} {'wrong':>6}  what was found")
    for (scenario, disk, cause), own in by_row.items():
        found = ", ".join(f"{number} {what}" for what, number in Counter(trial.found for trial in own).most_common())
        done, wrong = sum(trial.was_done for trial in own), sum(bool(trial.wrong) for trial in own)
        print(f"{scenario:<12} {disk:<5} {cause:<13} {len(own):>6} {done:>11} {wrong:>6}  {found}")
    wrong = sum(bool(trial.wrong) for trial in trials)
    print(f"{len(trials)} trials, {wrong} wrong; {_cpu_s() / max(1, len(trials)):.1f} s of CPU time each")
    return 1 if wrong else 0


def _cpu_s() -> float:
    """Of this process and of all that it waited for."""
    return sum(sum(resource.getrusage(of)[:2]) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


if __name__ == "__main__":
    raise SystemExit(main())
