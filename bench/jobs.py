"""Are jobs shown on the right GPUs, at the right time, and do their GPU-hours add up? sacct decides. Needs root.

Many short jobs of three users on a real Slurm with accounting, some of whose prologs and epilogs never run; a slurmd is killed,
and a node reboots. tests/hosts/test_sacct.py runs it with fewer jobs.

    python -m bench.jobs [--jobs 1000]
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from gpu_fleet.host.parts import PROGRAMS
from gpu_fleet.host.parts.jobs import HOOKS, SAID, Jobs
from lab.hosts import VARIANTS, Host, Site
from lab.hosts.host import PRESENT
from lab.hosts.slurm import Slurm, uuids
from lab.standins.programs import gather
from tests.hosts.placed import PlacedHost

USERS = {"alice": "vision", "bob": "vision", "carol": "speech"}
LOST = 20  # one of so many prologs, and epilogs, never runs
LATE_S = 35  # from the end of a job: two sweeps, the first of which may come before the controller knows
_HOOK = """#!/bin/sh
[ "$(($(od -An -N1 -tu1 /dev/urandom) % {lost}))" = 0 ] || exec {hook}
: >"/var/truth/$SLURM_JOB_ID.lost"
"""
_SHOWN = re.compile(
    r'^gpu_fleet_job_info\{uuid="([^"]*)".*?job_id="(\d+)",user="([^"]*)",account="([^"]*)"', re.MULTILINE
)  # as Held
_SACCT = (
    "SLURM_TIME_FORMAT=%s sacct --allusers --allocations --noheader --parsable2 --starttime=now-1day --endtime=now "
    "--state=CD,CA,F,NF,TO --format=JobIDRaw,User,Account,State,Start,End,AllocTRES,NodeList"
)

Held = tuple[str, str, str, str]  # uuid, job, user, account


@dataclass(frozen=True)
class Shown:
    """What one node said at one time."""

    at: float
    held: frozenset[Held]


@dataclass(frozen=True)
class Job:
    """As sacct has it. `uuids`: as its own environment had them; none where it was killed before it could say.
    `lost`: its prolog or its epilog never ran."""

    job_id: str
    user: str
    account: str
    state: str
    began: float
    ended: float
    gpus: int
    node: str
    uuids: frozenset[str]
    lost: bool

    @property
    def is_disturbed(self) -> bool:
        """By a lost prolog or epilog, the killed slurmd or the reboot: it may be shown a sweep late, which is as much as its
        whole time. Slurm ends jobs of a lost node minutes after it went: nothing needs to be shown of them."""
        return self.lost or self.state != "COMPLETED"


@dataclass(frozen=True)
class Outcome:
    """`shown`: by node, twice a second."""

    jobs: Sequence[Job]
    shown: Mapping[str, Sequence[Shown]]

    def of(self, job: Job) -> list[tuple[float, set[Held]]]:
        """When it was shown, and how."""
        found = ((one.at, {held for held in one.held if held[1] == job.job_id}) for one in self.shown[job.node])
        return [(at, held) for at, held in found if held]

    def wrong(self) -> Iterator[str]:
        """Jobs on other GPUs, of somebody else, or at another time than sacct says."""
        for job in self.jobs:
            seen = self.of(job)
            if not seen:
                continue
            shown = set[Held]().union(*(held for _, held in seen))
            gpus, owners = {uuid for uuid, *_ in shown}, {(user, account) for _, _, user, account in shown}
            early, late = seen[0][0] - job.began, seen[-1][0] - job.ended
            is_right = gpus == job.uuids if job.uuids else len(gpus) == job.gpus
            if not is_right or owners != {(job.user, job.account)} or early < -1 or late > LATE_S:
                yield f"{early:+.1f} to {late:+.1f} s, {sorted(gpus)} of {owners}, instead of {job}"

    def unseen(self) -> list[Job]:
        return [job for job in self.jobs if not self.of(job)]

    def seconds(self, jobs: Collection[Job]) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
        """GPU-seconds of these jobs by user and account: of sacct, and shown."""
        truth, shown = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for job in jobs:
            truth[job.user, job.account] += round(job.gpus * (job.ended - job.began))
        chosen = {job.job_id for job in jobs}
        for of_node in self.shown.values():
            for before, after in pairwise(of_node):
                for _, job_id, user, account in before.held:
                    if job_id in chosen:
                        shown[user, account] += round(1000 * (after.at - before.at))
        return truth, Counter({whose: milliseconds // 1000 for whose, milliseconds in shown.items()})


class Observer(threading.Thread):
    """Reads what Alloy would read, twice a second."""

    def __init__(self, node: Host) -> None:
        super().__init__(daemon=True)
        self.node, self.shown, self.stopping = node, list[Shown](), False

    def run(self) -> None:
        while not self.stopping:
            try:
                text = (self.node.inside / SAID.lstrip("/")).read_text()
            except Exception:  # it reboots
                text = ""
            self.shown.append(Shown(time.time(), frozenset(_SHOWN.findall(text))))
            time.sleep(0.5)


def run(jobs: int) -> Outcome:
    hosts = dict.fromkeys(("slurm-a", "slurm-b"), VARIANTS["slurm-accounting"])
    with tempfile.TemporaryDirectory() as directory, Site.up(hosts) as site:
        artifacts, nodes = Path(directory), list(site.hosts.values())
        gather(artifacts, PROGRAMS, present=PRESENT)
        for node in nodes:
            errors = PlacedHost(node, artifacts, options={"jobs": Jobs()}).apply().errors
            assert errors == {}, errors
            for name, hook in zip(("prolog", "epilog"), HOOKS, strict=True):
                node.ssh(f"cat >/root/{name} && chmod 755 /root/{name}", stdin=_HOOK.format(lost=LOST, hook=hook))
            node.ssh("mkdir -m 1777 /var/truth")
        slurm = Slurm(nodes[0], nodes, USERS)
        slurm.start({"Prolog": "/root/prolog", "Epilog": "/root/epilog"})
        observers = [Observer(node) for node in nodes]
        for observer in observers:
            observer.start()
        _submit(slurm, jobs)
        _harm(slurm, jobs)
        while slurm.ask("squeue --noheader --format=%A").strip():
            time.sleep(1)
        time.sleep(LATE_S)
        for observer in observers:
            observer.stopping = True
        return Outcome(list(_recorded(slurm)), {observer.node.name: observer.shown for observer in observers})


def _submit(slurm: Slurm, jobs: int) -> None:
    chosen = random.Random(1)  # noqa: S311
    script = "echo $SLURM_JOB_GPUS >/var/truth/$SLURM_JOB_ID; sleep"
    options = "--output=/dev/null --no-requeue --nodes=1"
    for user in slurm.users:
        lines = [
            f"sbatch {options} --gpus={chosen.choice((1, 1, 2, 4))} --wrap '{script} {chosen.randint(3, 20)}'"
            for _ in range(jobs // len(slurm.users))
        ]
        slurm.controller.ssh(f"cd /tmp && runuser -u {user} -- sh >/dev/null", stdin="\n".join(lines), timeout_s=600)


def _harm(slurm: Slurm, jobs: int) -> None:
    """After a third of the jobs a slurmd is killed with all that it started, after two thirds a node reboots."""
    node = slurm.nodes[1]
    for share, harm in ((2 / 3, Slurm.kill), (1 / 3, _reboot)):
        while len(slurm.ask("squeue --noheader --format=%A").split()) > jobs * share:
            time.sleep(1)
        harm(slurm, node)


def _reboot(slurm: Slurm, node: Host) -> None:
    node.reboot()
    slurm.boot(node)


def _recorded(slurm: Slurm) -> Iterator[Job]:
    for line in slurm.ask(_SACCT).splitlines():
        job_id, user, account, state, began, ended, tres, name = line.split("|")
        gpus = re.search(r"gres/gpu=(\d+)", tres)
        if gpus:  # it began
            node = next(node for node in slurm.nodes if node.name == name)
            truth = frozenset(_gpus(node, job_id))
            lost = (node.inside / f"var/truth/{job_id}.lost").exists()
            yield Job(job_id, user, account, state, float(began), float(ended), int(gpus[1]), name, truth, lost)


def _gpus(node: Host, job_id: str) -> set[str]:
    file = node.inside / f"var/truth/{job_id}"
    said = file.read_text().strip() if file.exists() else ""
    return uuids(node, [int(position) for position in said.split(",") if position])


def report(outcome: Outcome) -> Iterator[str]:
    wrong, unseen = list(outcome.wrong()), outcome.unseen()
    missed = ", ".join(f"{job.job_id} ({job.state}, {job.ended - job.began:.0f} s)" for job in unseen)
    yield f"{len(outcome.jobs)} jobs; wrong intervals: {len(wrong)}; never shown: {len(unseen)} {missed}"
    yield f"never shown, with its prolog and epilog: {sum(not job.is_disturbed for job in unseen)}"
    seen = [(job, outcome.of(job)) for job in outcome.jobs if job not in unseen]
    for what, values in (
        ("shown after", sorted(shown[0][0] - job.began for job, shown in seen)),
        ("gone after", sorted(shown[-1][0] - job.ended for job, shown in seen)),
    ):
        median, p99 = (values[len(values) * share // 100] for share in (50, 99))
        yield f"{what}: median {median:.1f} s, p99 {p99:.1f} s, most {values[-1]:.1f} s"
    for name, chosen in (("all", outcome.jobs), ("undisturbed", [job for job in outcome.jobs if not job.is_disturbed])):
        truth, shown = outcome.seconds(chosen)
        for whose, seconds in truth.items():
            yield f"{name}: {' '.join(whose)}: {seconds} GPU-seconds, shown {shown[whose]}"
    yield from wrong


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.jobs", description="Compares the jobs that hosts show with sacct's.")
    parser.add_argument("--jobs", type=int, default=1000)
    for line in report(run(parser.parse_args(arguments).jobs)):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
