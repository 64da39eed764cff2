"""Jobs as hosts show them, and the GPU-hours of `make usage`, compared with the record of a real Slurm (bench/jobs.py)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import alerts
from bench.jobs import Held, Outcome, run
from gpu_fleet.operations.mimir import Mimir
from gpu_fleet.operations.usage import hours
from lab.showcase import rules
from lab.showcase.remote_write import Labels, ended, push
from lab.showcase.servers import Servers

JOBS = 60
# Each second of the run becomes a minute of the store's, which is what usage is recorded by.
SLOWER = 60
RECORDED = ("gpu:job:info", "cluster:gpus_by_use:count")
WHERE = {"datacenter": "d", "cluster": "c"}


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return run(JOBS)


@pytest.fixture(scope="module")
def store(outcome: Outcome, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mimir, float, float]]:
    """What the hosts showed, in a real Mimir, with what our rules make of it; and when it begins and ends there."""
    servers = Servers(tmp_path_factory.mktemp("store"), ["mimir"])
    try:
        servers.wait()
        began = min(shown[0].at for shown in outcome.shown.values())
        seconds = int(max(shown[-1].at for shown in outcome.shown.values()) - began)
        start = (time.time() - 60) // 60 * 60 - seconds * SLOWER
        end = start + seconds * SLOWER
        push(f"{servers.mimir}/api/v1/push", series(outcome, began, start, seconds))
        chosen = [rule for group in alerts.rule_groups("mimir") for rule in group.rules if rule.get("record") in RECORDED]
        rules.record(servers.mimir, chosen, start, end, SLOWER)
        yield Mimir(f"{servers.mimir}/prometheus", {}), start, end
    finally:
        servers.stop()


def series(outcome: Outcome, began: float, start: float, seconds: int) -> dict[Labels, list[tuple[float, float | None]]]:
    """Of each node its sixteen GPUs at work, and who has them: a lost prolog or epilog, a killed slurmd and a reboot are a large
    share of a few minutes, and nothing of a month."""
    found: dict[Labels, list[tuple[float, float]]] = {}

    def add(name: str, second: int, value: float, **labels: str) -> None:
        key = {"__name__": name, **WHERE, **{label: text for label, text in labels.items() if text}}
        found.setdefault(tuple(sorted(key.items())), []).append((start + second * SLOWER, value))

    for node, shown in outcome.shown.items():
        known = {uuid for one in shown for uuid, *_ in one.held}
        for second in range(seconds + 1):
            add("host:gpus_inventory:count", second, len(known), instance=node, model="H100")
            add("host:gpu_listed:ratio", second, 1, instance=node)
            for gpu, uuid in enumerate(sorted(known)):
                add("gpu:info", second, 1, instance=node, uuid=uuid, gpu=str(gpu), model="H100")
                add("gpu:utilization:ratio", second, 0.9, instance=node, uuid=uuid, gpu=str(gpu), model="H100")
        disturbed = {job.job_id for job in outcome.jobs if job.is_disturbed}
        at_second = {int(one.at - began): [held for held in one.held if held[1] not in disturbed] for one in shown}
        held: list[Held] = []
        for second in range(seconds + 1):
            held = at_second.get(second, held)
            for uuid, job_id, user, account in held:
                about = {"job_id": job_id, "user": user, "account": account, "partition": "train"}
                add("gpu_fleet_job_info", second, 1, instance=node, uuid=uuid, **about)
    return {labels: list(ended(samples, SLOWER, start + seconds * SLOWER)) for labels, samples in found.items()}


def test_every_job_is_shown_on_its_gpus_while_sacct_says_that_it_ran(outcome: Outcome) -> None:
    assert len(outcome.jobs) >= JOBS * 0.7, "some are cancelled by the kill and by the reboot before they began"
    assert {(job.user, job.account) for job in outcome.jobs} == {("alice", "vision"), ("bob", "vision"), ("carol", "speech")}
    assert {job.state.split()[0] for job in outcome.jobs} >= {"COMPLETED"} and len({job.node for job in outcome.jobs}) == 2
    assert list(outcome.wrong()) == []
    unseen = [job for job in outcome.unseen() if job.state == "COMPLETED"]
    assert len(unseen) <= JOBS * 0.1, "some of those whose prolog was lost"
    assert [job for job in unseen if job.ended - job.began > 25] == [], "a sweep finds them: one comes every 15 s"


def test_the_gpu_hours_of_make_usage_are_those_of_sacct(
    outcome: Outcome, store: tuple[Mimir, float, float], tmp_path: Path
) -> None:
    mimir, start, end = store
    used, inventory, _ = hours(mimir, '{datacenter="d",cluster="c"}', [(start, end)])
    shown = Counter[tuple[str, str]]()
    for (_, state, account, user, _), of_days in used.items():
        if state in ("job", "idle"):
            shown[user, account] += sum(of_days.values())
    undisturbed = [job for job in outcome.jobs if not job.is_disturbed]
    truth, seen = outcome.seconds(undisturbed)
    expected = {whose: shown_s * SLOWER / 3600 for whose, shown_s in seen.items()}
    assert dict(shown) == pytest.approx(expected, rel=0.1), (used, "seconds of the store are whole, those of hosts are not")
    assert len(undisturbed) >= JOBS / 2
    late = Counter[tuple[str, str]]()  # a prolog takes seconds where the machine of the tests is busy, and so does an epilog
    for job in undisturbed:
        late[job.user, job.account] += 5 * job.gpus
    assert {whose: (truth[whose], seen[whose]) for whose in truth if abs(truth[whose] - seen[whose]) > late[whose]} == {}
    total = sum(sum(of_days.values()) for of_days in used.values())
    assert total == pytest.approx(inventory, rel=0.005), "job, idle and unallocated GPUs are the inventory"
