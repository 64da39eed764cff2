"""Cuts the power of hosts, or kills their runs, at random instants, and prints a table."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab.hosts import image
from lab.powercut import subject
from lab.powercut.disks import KINDS, new_disk, shelf
from lab.powercut.trial import CUTS_PER_RUN, SCENARIOS, Laboratory, Trial
from provider.host import BOOTSTRAP
from toolchain import system
from toolchain.progress import Progress

KILLS = ("host program", "connection")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.powercut", description=__doc__)
    parser.add_argument("--cuts", type=int, default=200, metavar="N")
    parser.add_argument("--kills", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the instants; printed, to see one again")
    parser.add_argument("--workers", type=int, default=2)
    wanted = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("Loop devices, mounts and namespaces need root: run it again with sudo.")
    if not os.environ.get("LAB_POWERCUT_INSIDE"):
        # A mount namespace of our own: whatever ends this process, no mount stays.
        os.environ["LAB_POWERCUT_INSIDE"] = "1"
        again = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", "lab.powercut", *sys.argv[1:]]
        os.execvp("unshare", again)  # noqa: S606
    progress = Progress()
    system.require(("mkfs.ext4", "mkfs.xfs", "losetup", "debootstrap"), progress)
    layers = tuple(image.ensure(image.CONTAINER, progress))
    print(f"seed {wanted.seed}", flush=True)
    for left in image.directory().glob("powercut-*"):
        if not Path(f"/proc/{left.name.split('-')[1]}").exists():
            shutil.rmtree(left)  # of a run that was killed
    with tempfile.TemporaryDirectory(prefix=f"powercut-{os.getpid()}-", dir=image.directory()) as directory:
        work = Path(directory)
        shared = work / "shared"
        shared.mkdir()
        subject.prepare(shared, BOOTSTRAP)
        with shelf(work) as at:
            for kind in KINDS:
                print(f"{kind}: {what_a_cut_leaves(at, work, kind)}", flush=True)
            laboratory = Laboratory(at, work, shared, layers)
            trials = list(_all(laboratory, wanted.cuts, wanted.kills, wanted.seed, wanted.workers))
        shutil.rmtree(shared)
    return report(trials)


def what_a_cut_leaves(at: Path, work: Path, kind: str) -> str:
    """The method itself: a copy has what was synced, and not what was not."""
    disk = new_disk(at, f"proof-{kind}", kind)
    where = work / f"proof-{kind}"
    with disk.mounted(where):
        (where / "synced").write_text("x" * 5000)
        with (where / "synced").open() as file:
            os.fsync(file.fileno())
        (where / "not-synced").write_text("x" * 5000)
        copy = disk.copy(f"proof-copy-{kind}")
    with copy.mounted(where):
        synced = (where / "synced").read_text() == "x" * 5000
        lost = not (where / "not-synced").exists() or (where / "not-synced").read_text() != "x" * 5000
    if not (synced and lost):
        raise SystemExit(
            f"A copy of an image of {kind} is not what a power cut leaves: synced is {synced}, not synced is lost {lost}."
        )
    return "a file that was synced is in the copy, one that was not is not"


def _all(laboratory: Laboratory, cuts: int, kills: int, seed: int, workers: int) -> Iterator[Trial]:
    rng = random.Random(seed)
    combinations = [(kind, scenario) for scenario in SCENARIOS for kind in KINDS]
    for kind, scenario in combinations:
        laboratory.template(kind, scenario)
    jobs: list[Callable[[], list[Trial]]] = []
    per_run = max(1, min(CUTS_PER_RUN, cuts // len(combinations)))
    for number in range(0, cuts, per_run):
        kind, scenario = combinations[number // per_run % len(combinations)]
        own = random.Random(rng.random())
        count = min(per_run, cuts - number)
        jobs.append(lambda kind=kind, scenario=scenario, own=own, count=count: [*laboratory.cut(kind, scenario, own, count)])
    for number in range(kills):
        kind, scenario = combinations[number % len(combinations)]
        # The bundle is pulled by the host itself: there is no connection to cut.
        how = KILLS[number // len(combinations) % 2] if scenario.name != "pull" else KILLS[0]
        own = random.Random(rng.random())

        def one(kind: str = kind, scenario=scenario, how: str = how, own: random.Random = own) -> list[Trial]:
            trial = laboratory.kill(kind, scenario, how, own)
            trial.kind = f"{kind}, {how} killed" if how != "connection" else f"{kind}, connection cut"
            return [trial]

        jobs.append(one)
    with ThreadPoolExecutor(workers) as pool:
        for trials in pool.map(lambda job: job(), jobs):
            for trial in trials:
                print(f"{trial.kind}, {trial.scenario}, at {trial.at_s:.2f} s: {trial.found}", flush=True)
                for wrong in trial.wrong:
                    print(
                        f"WRONG {trial.kind}, {trial.scenario}, at {trial.at_s:.2f} s, done {trial.was_done}: {wrong}", flush=True
                    )
                yield trial


def report(trials: list[Trial]) -> int:
    rows = Counter((trial.scenario, trial.kind) for trial in trials)
    print(f"\n{'scenario':<12} {'file system':<30} {'trials':>6} {'done before':>11} {'wrong':>6}  what was found")
    for (scenario, kind), count in rows.items():
        own = [trial for trial in trials if (trial.scenario, trial.kind) == (scenario, kind)]
        found = ", ".join(f"{number} {what}" for what, number in Counter(trial.found for trial in own).most_common())
        done = sum(trial.was_done for trial in own)
        print(f"{scenario:<12} {kind:<30} {count:>6} {done:>11} {sum(bool(trial.wrong) for trial in own):>6}  {found}")
    wrong = sum(bool(trial.wrong) for trial in trials)
    print(f"{len(trials)} trials, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
