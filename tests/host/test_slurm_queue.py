"""Slurm's queue, from answers of Slurm 22.05 with AccountingStorageTRES unset; tests/hosts/test_slurm.py asks real ones."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from gpu_fleet.on_host import slurm_queue, textfile

NOW = 1_795_831_800
# Recorded on 2026-11-28 with squeue, sinfo and sdiag of 22.05.8; accounts, starts, the second partition and its nodes are added.
SQUEUE = """\
train|vision|PENDING|Resources|0-9%2|1795831600|1795831740|N/A|n/a|1|1|cpu=1,mem=1M,node=1,billing=1|N/A|gres:gpu:8|N/A|N/A|
train,dev|vision|PENDING|Priority|N/A|1795831600|1795831700|N/A|n/a|2|16|cpu=16,mem=1M,node=1,billing=16|N/A|N/A|gres:gpu:1|N/A|
train|speech|PENDING|BeginTime|N/A|1795831600|1795835303|N/A|n/a|1|1|cpu=1,mem=1M,node=1,billing=1|gres:gpu:2|N/A|N/A|N/A|
train|speech|PENDING|JobHeldUser|N/A|1795831600|N/A|N/A|n/a|1|1|cpu=1,mem=1M,node=1,billing=1|gres:gpu:2|N/A|N/A|N/A|
train|speech|RUNNING|None|N/A|1795831600|1795831703|1795831760|gpu-b|1|1|cpu=1,node=1,billing=1|gres:gpu:3|N/A|N/A|N/A|
train|(null)|RUNNING|None|N/A|1795831600|1795831703|1795831703|gpu-b|2|2|cpu=2,node=2,billing=2,gres/gpu=8,gres/gpu:h100=8|N/A|gres:gpu:4|N/A|N/A|
"""
SINFO = """\
gpu-a|train|mixed|gpu:8|gpu:7|none|
gpu-b|train|allocated+drain|gpu:h100:8(S:0-1)|gpu:h100:4(IDX:0-3)|fan | broken: it's "bad|
gpu-c|train|idle+drain|gpu:8,shard:16|gpu:0,shard:0|gpu-fleet: XID 79|
gpu-c|dev|idle+drain|gpu:8,shard:16|gpu:0,shard:0|gpu-fleet: XID 79|
gpu-d|dev|idle|gpu:a100:2,gpu:1g.10gb:7|gpu:a100:0,gpu:1g.10gb:0|none|
gpu-e|dev|down+not_responding|gpu:8|gpu:0|Not responding|
"""
SDIAG = """\
Server thread count:  3
Jobs submitted: 15
Jobs started:   2

Main schedule statistics (microseconds):
\tLast cycle:   666
\tMax cycle:    700

Backfilling stats
\tLast cycle: 9
"""


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that Slurm's programs answer with."""
    for name, text in (("squeue", SQUEUE), ("sinfo", SINFO), ("sdiag", SDIAG)):
        (tmp_path / f"{name}.txt").write_text(text)
        program = tmp_path / name
        program.write_text(
            f'#!/bin/sh\necho "{name} $1 $SLURM_TIME_FORMAT $SLURM_BITSTR_LEN" >>{tmp_path}/asked\ncat {program}.txt\n'
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("GPU_FLEET_PREFIX", str(tmp_path))
    monkeypatch.setattr(slurm_queue.time, "time", lambda: NOW)
    (tmp_path / "var/lib/gpu-fleet/textfile").mkdir(parents=True)
    return tmp_path


def said(answers: Path) -> dict[str, str]:
    assert slurm_queue.main([]) == 0
    text = (answers / "var/lib/gpu-fleet/textfile/slurm_queue.prom").read_text()
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def test_it_says_how_long_the_controller_took_to_answer(answers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = itertools.chain([NOW], itertools.repeat(NOW + 4.2))
    monkeypatch.setattr(slurm_queue.time, "time", lambda: next(moments))
    assert said(answers)["gpu_fleet_slurm_duration_seconds"] == "4.2"


def test_partitions_have_jobs_gpus_and_waits(answers: Path) -> None:
    found = said(answers)

    def of(name: str, **labels: str) -> str:
        return found[f"{name}{{{','.join(f'{key}=%{value}%' for key, value in labels.items())}}}".replace("%", '"')]

    assert of("slurm_partition_jobs_pending", partition="train") == "13"
    assert of("slurm_partition_jobs_hold", partition="train") == "2"
    assert of("slurm_partition_jobs_running", partition="train") == "2"
    assert of("slurm_partition_jobs_pending", partition="dev") == "1", "a job that may start in either waits in both"
    gpus = {
        state: of("gpu_fleet_slurm_partition_gpus", partition="train", state=state) for state in ("allocated", "idle", "unusable")
    }
    assert gpus == {"allocated": "11", "idle": "1", "unusable": "12"}
    assert of("gpu_fleet_slurm_partition_gpus_pending", partition="train") == str(10 * 8 + 16)
    assert of("gpu_fleet_slurm_partition_wait_seconds", partition="train", quantile="0.5") == "60"
    assert of("gpu_fleet_slurm_partition_wait_seconds", partition="train", quantile="1") == "100"
    assert of("gpu_fleet_slurm_gpus", state="idle") == "10", "a node of two partitions counts once"
    assert of("gpu_fleet_slurm_gpus", state="unusable") == "20"


def test_an_array_that_the_scheduler_has_not_looked_at_yet_waits_since_it_was_submitted(answers: Path) -> None:
    row = f"train|vision|PENDING|None|0-4|{NOW - 30}|N/A|N/A|n/a|1|1|cpu=1,mem=1M,node=1,billing=1|N/A|gres:gpu:8|N/A|N/A|"
    (answers / "squeue.txt").write_text(f"{row}\n")  # recorded with 22.05.8
    found = said(answers)
    assert found['slurm_partition_jobs_hold{partition="train"}'] == "0"
    assert found['gpu_fleet_slurm_partition_gpus_pending{partition="train"}'] == "40"
    assert found['gpu_fleet_slurm_partition_wait_seconds{partition="train",quantile="1"}'] == "30"


def test_accounts_reasons_nodes_and_the_controller(answers: Path) -> None:
    found = said(answers)
    accounts = {name: value for name, value in found.items() if name.startswith("gpu_fleet_slurm_account_gpus")}
    assert accounts == {
        'gpu_fleet_slurm_account_gpus{account="",state="running"}': "8",
        'gpu_fleet_slurm_account_gpus{account="speech",state="held"}': "4",
        'gpu_fleet_slurm_account_gpus{account="speech",state="running"}': "3",
        'gpu_fleet_slurm_account_gpus{account="vision",state="pending"}': "96",
    }
    assert found['gpu_fleet_slurm_jobs_pending{reason="Resources"}'] == "10"
    nodes = sorted(re.findall(r'node="(.*?)",state="(.*?)",reason="(.*)"', "\n".join(found)))
    assert nodes == [
        ("gpu-a", "mixed", ""),
        ("gpu-b", "draining", "fan | broken: it's \\\"bad"),
        ("gpu-c", "drained", "gpu-fleet: XID 79"),
        ("gpu-d", "idle", ""),
        ("gpu-e", "down", "Not responding"),
    ]
    controller = ("slurm_sdiag_jobs_started", "slurm_schedule_cycle_last", "slurm_server_thread_cnt")
    assert [found[name] for name in controller] == ["2", "666", "3"]
    assert 0 <= float(found["gpu_fleet_slurm_duration_seconds"]) < 10
    # Without --local a federation that shows itself (fed_display) has the jobs and nodes of its other clusters too.
    assert (answers / "asked").read_text().splitlines() == ["squeue --local %s 0", "sinfo --local %s 0", "sdiag  %s 0"]


@pytest.mark.parametrize(
    ("reason", "eligible", "use"),
    [
        ("None", "N/A", "pending"),  # an array that the scheduler has not looked at yet
        ("Priority", "1795831700", "pending"),
        ("Resources", "1795831700", "pending"),
        ("None", "1795835303", "held"),  # --begin, just submitted
        ("Dependency", "N/A", "held"),
        ("JobHeldAdmin", "N/A", "held"),
        # Requeued by an administrator or after a prolog that failed: eligible once more after two minutes, and held.
        ("job requeued in held state", "1795831700", "held"),
        ("launch failed requeued held", "1795831700", "held"),
        ("JobArrayTaskLimit", "1795831700", "held"),
        ("QOSMaxGRESPerUser", "1795831700", "held"),
        ("AssocGrpGRES", "1795831700", "held"),
        ("Licenses", "1795831700", "held"),
        ("ReqNodeNotAvail, UnavailableNodes:gpu-[001-002]", "1795831700", "held"),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", "1795831700", "held"),
    ],
)
def test_a_job_that_idle_nodes_cannot_start_is_held(answers: Path, reason: str, eligible: str, use: str) -> None:
    """Otherwise SlurmQueueStuck would call a queue stuck in which each job waits for its own user's limit."""
    (answers / "squeue.txt").write_text(
        f"train|vision|PENDING|{reason}|N/A|1795831600|{eligible}|N/A|n/a|1|1|cpu=1|gres:gpu:8|N/A|N/A|N/A|\n"
    )
    found = said(answers)
    assert found[f'gpu_fleet_slurm_account_jobs{{account="vision",state="{use}"}}'] == "1"


def test_reasons_are_whole_sentences_without_names_of_nodes(answers: Path) -> None:
    for reason in ("launch failed requeued held", "ReqNodeNotAvail, UnavailableNodes:gpu-[001-002]"):
        row = f"train|vision|PENDING|{reason}|N/A|1795831600|1795831700|N/A|n/a|1|1|cpu=1|gres:gpu:8|N/A|N/A|N/A|\n"
        (answers / "squeue.txt").write_text(row)
        assert said(answers)[f'gpu_fleet_slurm_jobs_pending{{reason="{reason.partition(",")[0]}"}}'] == "1"


@pytest.mark.parametrize(
    ("used", "gpus"),
    [
        ("gpu:8", 8),
        ("gpu:h100:4(IDX:0-3)", 4),
        # 24.11 and 26.05 where GresTypes has shards too.
        ("gpu:(null):8(IDX:0-7),shard:(null):0(0/4,0/4,0/4,0/4,0/4,0/4,0/4,0/4)", 8),
        ("gpu:8(IDX:0-7),shard:0(-/4,-/4,-/4,-/4,-/4,-/4,-/4,-/4)", 8),
        ("gpu:0,shard:0,mps:0", 0),
        # Jobs of 2, 6, 4 and 3 shards beside one of a GPU; 24.11, 26.05, and 22.05 with the first of them.
        ("gpu:(null):1(IDX:2),shard:(null):15(4/4,4/4,0/4,4/4,3/4,0/4,0/4,0/4)", 5),
        ("gpu:1(IDX:2),shard:15(4/4,4/4,-/4,4/4,3/4,0/4,0/4,0/4)", 5),
        ("gpu:0,shard:(null):1(IDX:0)", 1),
        ("gpu:0,mps:(null):150(100/100,50/100,0/100)", 2),
    ],
)
def test_gpus_in_use_whatever_else_a_node_shares(answers: Path, used: str, gpus: int) -> None:
    (answers / "sinfo.txt").write_text(f"n1|train|mixed|gpu:8,shard:32|{used}|none|\n")
    assert said(answers)['gpu_fleet_slurm_gpus{state="allocated"}'] == str(gpus)


def test_a_node_that_slurm_has_powered_down_is_not_down(answers: Path) -> None:
    states = {
        "idle+cloud+powered_down": "powered_down",
        "idle+cloud+not_responding+powering_down": "powered_down",
        "allocated+cloud+not_responding+powering_up": "powering_up",
        "down+cloud+powered_down+not_responding": "down",
    }
    for slurm, state in states.items():
        (answers / "sinfo.txt").write_text(f"n1|cloud|{slurm}|gpu:8|gpu:0|none|\n")
        found = said(answers)
        assert found[f'gpu_fleet_slurm_node_info{{node="n1",state="{state}",reason=""}}'] == "1"
        free = "unusable" if state == "down" else "powered_down"
        gpus = {one: found.get(f'gpu_fleet_slurm_gpus{{state="{one}"}}') for one in ("unusable", "powered_down")}
        assert gpus == {"unusable": "0", "powered_down": None, free: "8"}, "jobs start there: Slurm powers it up"


def began(at: int, waited: int, state: str = "RUNNING", account: str = "vision", node: str = "gpu-a") -> str:
    """As 24.11 shows jobs."""
    return f"train|{account}|{state}|None|N/A|{at - waited - 9}|{at - waited}|{at}|{node}|1|1|cpu=1|gres:gpu:1|N/A|N/A|N/A|\n"


def waits(answers: Path, now: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(slurm_queue.time, "time", lambda: now)
    said(answers)
    text = (answers / "var/lib/gpu-fleet/textfile/slurm_queue_waits.prom").read_text()
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name.removeprefix("gpu_fleet_slurm_"): value for name, value in found.items()}


def test_jobs_that_began_are_counted_once_with_their_wait(answers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, never = began(NOW - 100, 5000), began(NOW + 20, 9000, "CANCELLED", node="n/a")
    (answers / "squeue.txt").write_text(before)
    assert waits(answers, NOW, monkeypatch) == {"start_wait_timestamp_seconds": str(NOW - 15)}, "began before we looked"
    just = began(NOW + 50, 86400)
    (answers / "squeue.txt").write_text(before + began(NOW, 60) + began(NOW + 30, 61, "COMPLETED", account='a"b') + never + just)
    found = waits(answers, NOW + 60, monkeypatch)
    assert found['start_wait_seconds_count{partition="train"}'] == "2", "the last one may be one of several of that second"
    assert found['start_wait_seconds_sum{partition="train"}'] == "121"
    assert found['account_starts_total{account="a\\"b"}'] == found['account_starts_total{account="vision"}'] == "1"
    assert found['account_start_wait_seconds_total{account="vision"}'] == "60"
    buckets = {le: found[f'start_wait_seconds_bucket{{partition="train",le="{le}"}}'] for le in ("60", "600", "86400", "+Inf")}
    assert buckets == {"60": "1", "600": "2", "86400": "2", "+Inf": "2"}
    found = waits(answers, NOW + 120, monkeypatch)
    assert found['start_wait_seconds_count{partition="train"}'] == "3"
    assert found['start_wait_seconds_bucket{partition="train",le="86400"}'] == "3"
    assert found['account_starts_total{account="a\\"b"}'] == "1"


def test_waits_are_counted_again_when_the_clock_was_set_back(answers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (answers / "squeue.txt").write_text("")
    waits(answers, NOW + 3600, monkeypatch)
    waits(answers, NOW, monkeypatch)
    (answers / "squeue.txt").write_text(began(NOW + 30, 60))
    assert waits(answers, NOW + 60, monkeypatch)['start_wait_seconds_count{partition="train"}'] == "1"


def test_counters_of_waits_stay_while_the_controller_is_away_and_miss_nothing(
    answers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (answers / "squeue.txt").write_text("")
    waits(answers, NOW, monkeypatch)
    answer = (answers / "squeue").read_text()
    (answers / "squeue").write_text("#!/bin/sh\nexit 1\n")
    away = waits(answers, NOW + 60, monkeypatch)
    assert away == {"start_wait_timestamp_seconds": str(NOW - 15)}
    (answers / "squeue").write_text(answer)
    (answers / "squeue.txt").write_text(began(NOW + 30, 7) + began(NOW + 200, 8))
    assert waits(answers, NOW + 240, monkeypatch)['start_wait_seconds_sum{partition="train"}'] == "15"


def test_many_partitions_accounts_and_nodes_have_a_bounded_number_of_series(answers: Path) -> None:
    row = SQUEUE.splitlines()[4]
    (answers / "squeue.txt").write_text("".join(row.replace("speech", f"account-{n}") + "\n" for n in range(5000)))
    (answers / "sinfo.txt").write_text("".join(f"n{n}|p{n}|idle|gpu:8|gpu:0|none|\n" for n in range(9000)))
    found = said(answers)
    assert len([name for name in found if "node_info" in name]) == slurm_queue.MOST_NODES
    assert len(found) < slurm_queue.MOST_NODES + 2000
    assert found['gpu_fleet_slurm_account_jobs{account="other",state="running"}'] == "4900"
    assert found['gpu_fleet_slurm_gpus{state="idle"}'] == "72000", "those without a series of their own count too"


def test_a_controller_that_does_not_answer_leaves_no_old_numbers(answers: Path) -> None:
    said(answers)
    (answers / "sinfo").write_text("#!/bin/sh\necho 'slurm_load_partitions: Unable to contact slurm controller' >&2\nexit 1\n")
    found = said(answers)
    assert found == {"gpu_fleet_slurm_success": "0", "gpu_fleet_slurm_timestamp_seconds": str(NOW)}
    file = answers / "var/lib/gpu-fleet/textfile/slurm_queue.prom"
    assert "# says: sinfo: slurm_load_partitions: Unable to contact slurm controller" in file.read_text()


def test_a_host_that_no_longer_asks_keeps_no_file(answers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said(answers)
    empty = answers / "python/collect"
    empty.mkdir(parents=True)
    monkeypatch.setattr(textfile, "COLLECTORS", empty)
    textfile.write_all(answers / "var/lib/gpu-fleet/textfile", textfile.Tools(answers / "hanging"))
    assert list((answers / "var/lib/gpu-fleet/textfile").iterdir()) == []


@pytest.mark.parametrize(
    ("array", "tasks"), [("N/A", 1), ("7", 1), ("0-9", 10), ("0-9%2", 10), ("1,3,5-7", 5), ("0-100:25", 5), ("0-99:2,200%5", 51)]
)
def test_an_array_counts_its_tasks(array: str, tasks: int) -> None:
    assert slurm_queue._tasks(array) == tasks
