"""Are jobs shown on the right GPUs, at the right time? Compared with Slurm's own record of completed jobs. Needs root.

Many short jobs on a real Slurm, some of whose prologs and epilogs never run; a slurmd is killed, and a node reboots.

    python -m bench.jobs [--jobs 1000] [--variant slurm|newer-slurm]
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from gpu_fleet.host.parts import PROGRAMS
from gpu_fleet.host.parts.jobs import HOOKS, SAID, Jobs
from lab.hosts import VARIANTS, Host, Site
from lab.hosts.host import PRESENT
from lab.hosts.slurm import USER, Slurm, uuids
from lab.standins.programs import gather
from tests.hosts.placed import PlacedHost

LOST = 20  # one of so many prologs, and epilogs, never runs
LATE_S = 35  # from the end of a job: two sweeps, the first of which may come before the controller knows
_HOOK = '#!/bin/sh\n[ "$(($(od -An -N1 -tu1 /dev/urandom) % {lost}))" = 0 ] || exec {hook}\n'
_SHOWN = re.compile(r'^gpu_fleet_job_info\{uuid="([^"]*)".*?job_id="(\d+)"', re.MULTILINE)
_DONE = re.compile(r"JobId=(\d+) .*?JobState=(\S+) .*?StartTime=(\S+) EndTime=(\S+) .*?NodeList=(\S+)")


@dataclass
class Seen:
    """`first`, `last`: when a job was shown on a node."""

    first: float
    last: float
    gpus: set[str] = field(default_factory=set)


class Observer(threading.Thread):
    """Reads what Alloy would read, twice a second."""

    def __init__(self, node: Host) -> None:
        super().__init__(daemon=True)
        self.node, self.seen, self.stopping = node, dict[str, Seen](), False

    def run(self) -> None:
        while not self.stopping:
            try:
                text = (self.node.inside / SAID.lstrip("/")).read_text()
            except Exception:  # it reboots
                text = ""
            now = time.time()
            for uuid, job_id in _SHOWN.findall(text):
                seen = self.seen.setdefault(job_id, Seen(now, now))
                seen.last = now
                seen.gpus.add(uuid)
            time.sleep(0.5)


def measure(jobs: int, variant: str) -> Iterator[str]:
    """Lines of a report."""
    with tempfile.TemporaryDirectory() as directory, Site.up(dict.fromkeys(("slurm-a", "slurm-b"), VARIANTS[variant])) as site:
        artifacts, nodes = Path(directory), list(site.hosts.values())
        gather(artifacts, PROGRAMS, present=PRESENT)
        for node in nodes:
            errors = PlacedHost(node, artifacts, options={"jobs": Jobs()}).apply().errors
            assert errors == {}, errors
            for name, hook in zip(("prolog", "epilog"), HOOKS, strict=True):
                node.ssh(f"cat >/root/{name} && chmod 755 /root/{name}", stdin=_HOOK.format(lost=LOST, hook=hook))
            node.ssh("mkdir -m 1777 /var/truth")
        slurm = Slurm(nodes[0], nodes)
        record = {"JobCompType": "jobcomp/filetxt", "JobCompLoc": "/var/log/slurm/done"}
        slurm.start({"Prolog": "/root/prolog", "Epilog": "/root/epilog", **record})
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
        yield from _compared(slurm, observers)


def _submit(slurm: Slurm, jobs: int) -> None:
    chosen = random.Random(1)  # noqa: S311
    script = "echo $SLURM_JOB_GPUS >/var/truth/$SLURM_JOB_ID; sleep"
    options = "--output=/dev/null --no-requeue --nodes=1"
    lines = [
        f"sbatch {options} --gpus={chosen.choice((1, 1, 2, 4))} --wrap '{script} {chosen.randint(1, 20)}'" for _ in range(jobs)
    ]
    slurm.controller.ssh(f"cd /tmp && runuser -u {USER} -- sh >/dev/null", stdin="\n".join(lines), timeout_s=600)


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


def _compared(slurm: Slurm, observers: list[Observer]) -> Iterator[str]:
    done = slurm.ask("cat /var/log/slurm/done")
    late, gone, wrong, unseen, count = [], [], [], [], 0
    for job_id, state, start, end, name in _DONE.findall(done):
        observer = next(one for one in observers if one.node.name == name)
        began, ended = (datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() for text in (start, end))
        truth = _gpus(observer.node, job_id)
        seen = observer.seen.get(job_id)
        count += 1
        if seen is None:
            unseen.append(f"{job_id} ({state}, {ended - began:.0f} s)")
            continue
        late.append(seen.first - began)
        gone.append(seen.last - ended)
        if (truth and seen.gpus != truth) or seen.first < began - 1 or seen.last > ended + LATE_S:
            shown = f"{seen.first - began:+.1f} to {seen.last - ended:+.1f} s"
            wrong.append(f"{job_id} ({state}): {shown}, {seen.gpus} for {truth}")
    yield f"{count} jobs; wrong intervals: {len(wrong)}; never shown: {len(unseen)} {', '.join(unseen)}"
    for what, values in (("shown after", late), ("gone after", gone)):
        values.sort()
        median, p99 = (values[len(values) * share // 100] for share in (50, 99))
        yield f"{what}: median {median:.1f} s, p99 {p99:.1f} s, most {values[-1]:.1f} s"
    yield from wrong


def _gpus(node: Host, job_id: str) -> set[str]:
    """As the job's own environment had them; none where it was killed before it could say."""
    said = node.ssh(f"cat /var/truth/{job_id}", check=False).stdout.strip()
    return uuids(node, [int(position) for position in said.split(",") if position])


def main(arguments: list[str]) -> int:
    what = "Compares the jobs that hosts show with what Slurm records."
    parser = argparse.ArgumentParser(prog="python -m bench.jobs", description=what)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--variant", default="newer-slurm", choices=("slurm", "newer-slurm"))
    given = parser.parse_args(arguments)
    for line in measure(given.jobs, given.variant):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
