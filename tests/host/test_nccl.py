"""Ranks that NCCL's RAS and Inspector name.

The answers and records here come from no job: they are made from the formats in NVIDIA/nccl at 2.30 (the text also at 2.24),
src/ras/client_support.cc and plugins/profiler/inspector/inspector_json.cc, read 2026-11-29.
"""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gpu_fleet.on_host import jobs, nccl_late, nccl_ranks, nccl_ras
from gpu_fleet.on_host.jobs import Job, Store
from gpu_fleet.on_host.nccl_late import Operation
from gpu_fleet.on_host.nccl_ras import Rank, RasError
from gpu_fleet.on_host.slurm_gpus import Gpu

RANKS = 32
GPUS = [Gpu(f"GPU-{number}", str(number)) for number in range(8)]


def host(rank: int) -> str:
    return f"10.255.0.{1 + rank // 8}"


def rank_of(number: int) -> Rank:
    return Rank(str(number), host(number), 1000 + number, str(number % 8))


def as_json(counts: Mapping[int, int], missing: Mapping[int, Mapping[str, bool]] = {}, errors: Mapping[int, int] = {}) -> str:
    """Of one communicator of 32 ranks on four hosts; those without a count are missing."""

    def place(rank: int) -> dict[str, Any]:
        return {"rank": rank, "host": host(rank), "pid": 1000 + rank, "cuda_dev": rank % 8, "nvml_dev": rank % 8}

    flags = {"finalize_called": False, "destroy_flag": False, "abort_flag": False}
    ranks = [
        {
            **place(rank),
            "status": {"init_state": 0, "async_error": errors.get(rank, 0), **flags},
            "collective_counts": {"Broadcast": 0, "Reduce": 0, "AllGather": 12, "ReduceScatter": 0, "AllReduce": count},
        }
        for rank, count in counts.items()
    ]
    communicator = {
        "hash": "0xae94423cfbb2ef4a",
        "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
        "size": RANKS,
        "ranks_count": len(ranks),
        "missing_ranks_count": len(missing),
        "ranks": ranks,
        "missing_ranks": [{**place(rank), "status": status} for rank, status in missing.items()],
    }
    head = {
        "nccl_version": "2.29.1",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2026-11-29 06:00:00",
    }
    tail = {"ras": {"collection_time_sec": 0.0, "timeouts_count": 0}}
    return json.dumps({**head, "communicators_count": 1, "communicators": [communicator], **tail}, indent=2)


def named(last: str, before: str | None = None) -> list[tuple[str, Rank, str]]:
    return nccl_ras.found(nccl_ras.parsed(last), nccl_ras.parsed(before) if before else None)


def test_a_dead_rank_a_silent_one_and_one_that_has_left() -> None:
    counts = {rank: 6650 for rank in range(RANKS) if rank not in (3, 21, 30)}
    missing = {
        3: {"unresponsive": True, "considered_dead": False},
        21: {"unresponsive": True, "considered_dead": True},
        30: {"unresponsive": False, "considered_dead": False},
    }
    assert named(as_json(counts, missing)) == [("dead", rank_of(21), ""), ("silent", rank_of(3), ""), ("left", rank_of(30), "")]


def test_a_rank_is_behind_only_if_it_has_not_moved_between_two_answers() -> None:
    before = as_json({rank: 6649 if rank in (7, 9) else 6650 for rank in range(RANKS)})
    after = as_json({rank: 6649 if rank == 7 else 6660 if rank != 9 else 6655 for rank in range(RANKS)})
    assert named(after, before) == [("behind", rank_of(7), "AllReduce 6649, most ranks 6660")]
    assert named(as_json(dict.fromkeys(range(RANKS), 6650)), before) == []
    first = as_json(dict.fromkeys(range(RANKS), 6649))
    assert [rank.rank for _, rank, _ in named(after, first)] == ["7"], "it stopped after the first answer"


def test_of_a_program_that_differs_on_one_rank_that_rank_is_named_and_not_all_others() -> None:
    answer = as_json({rank: 101 if rank == 5 else 100 for rank in range(RANKS)})
    assert named(answer, answer) == [("ahead", rank_of(5), "AllReduce 101, most ranks 100")]


def test_errors_of_ranks() -> None:
    assert named(as_json(dict.fromkeys(range(RANKS), 1), errors={4: 1, 5: 6, 6: 7})) == [
        ("error", rank_of(4), "CUDA error"),
        ("error", rank_of(5), "error of a peer"),
    ]


TEXT = """\
NCCL version 2.27.7 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12090

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        31   RUNNING  INCOMPLETE,ERROR,MISMATCH
    1         8         4         1         4        32   RUNNING      OK

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 1021 on node 10.255.0.3 managing GPU 0 (NVML 5)

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 21 -- GPU 0 (NVML 5) managed by process 1021 on node 10.255.0.3

#0-0 (cf264af53edbe986) ERROR
  Asynchronous error on 2 ranks
  2 ranks reported Remote process error
  Rank 4 -- GPU 4 managed by process 1004 on node 10.255.0.1
  Rank 6 -- GPU 6 managed by process 1006 on node 10.255.0.1

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different status
  30 ranks have status RUNNING
  Rank 30 has status NOCOMM -- GPU 6 managed by process 1030 on node 10.255.0.4
  Communicator ranks have different AllReduce operation counts
  28 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 7 -- GPU 7 managed by process 1007 on node 10.255.0.1
  Rank 9 -- GPU 1 managed by process 1009 on node 10.255.0.2

  Communicator ranks have different Broadcast operation counts
  30 ranks have launched up to operation 4
  Rank 8 has not launched any operations -- GPU 0 managed by process 1008 on node 10.255.0.2

"""


def test_the_text_of_an_nccl_without_json() -> None:
    later = TEXT.replace("  2 ranks have launched up to operation 6649\n", "  Rank 7 has launched up to operation 6649 --{}\n", 1)
    later = later.replace("{}\n  Rank 7 --", "").replace("  Rank 9 -- GPU 1 managed by process 1009 on node 10.255.0.2\n", "", 1)
    assert named(later, TEXT) == [
        ("dead", Rank("", "10.255.0.3", 1021, "5"), ""),
        ("silent", rank_of(21), ""),
        ("error", rank_of(4), "Remote process error"),
        ("error", rank_of(6), "Remote process error"),
        ("behind", rank_of(7), "AllReduce 6649, most ranks 6650"),
        ("behind", rank_of(8), "Broadcast 0, most ranks 4"),
        ("left", rank_of(30), ""),
    ]
    answer = nccl_ras.parsed(TEXT)
    assert (answer.version, answer.communicators) == ("2.27.7", 9)


def test_the_text_of_the_first_nccl_with_ras_has_no_process_of_a_missing_rank() -> None:
    text = "Communicators... (0.00s)\n\n#0-0 (9e17) INCOMPLETE\n  Missing communicator data from 2 ranks\n"
    text += "  The missing ranks: 21,22\n\nWarnings\n========\n\n#0-0 (9e17) MISMATCH\n"
    text += "  Communicator ranks have different collective operation counts\n  3 ranks have launched up to operation 9\n"
    text += "  Rank 0 has launched up to operation 8 -- GPU 0 managed by process 1000 on node 10.255.0.1\n"
    assert named(text) == [
        ("silent", Rank("21"), ""),
        ("silent", Rank("22"), ""),
        ("behind", rank_of(0), "collective 8, most ranks 9"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "HTTP/1.1 400 Bad Request\r\n",
            TEXT[:700],
            as_json({0: 1})[:900],
            '{"communicators": 3}',
            '{"communicators": [3]}',
        ),
        '{"communicators": ' + "[" * 100_000,
        as_json({0: 1}).replace('"pid": 1000', '"pid": "x"'),
        as_json({0: 1}).replace('"pid": 1000', '"pid": 1e999'),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_whole_answer_is_an_error_and_nobody_is_named(text: str) -> None:
    with pytest.raises(RasError):
        nccl_ras.parsed(text)


def test_what_a_job_writes_into_an_answer_is_cleaned() -> None:
    answer = as_json({0: 1, 1: 2, 2: 2}).replace('"AllReduce"', '"\\u001b[2J' + "A" * 500 + '"').replace("10.255", "\\u0007;")
    (_, rank, why), *_ = named(answer)
    assert (why + rank.host).isprintable()
    assert len(why) < 100


# --- the port and the command ------------------------------------------------------------------------------------------------


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def serve(server: socket.socket, answers: Sequence[bytes], received: list[bytes]) -> None:
    def run() -> None:
        for answer in answers:
            connection, _ = server.accept()
            with connection:
                while not b"".join(received).endswith(b"STATUS\n"):
                    received.append(connection.recv(1000))
                connection.sendall(b"SERVER PROTOCOL 2\nOK\n" + answer)
                received.append(b"|")

    Thread(target=run, daemon=True).start()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Job 4711 has the last four GPUs of this host, and numbers them from 0; job 4712 has the first."""
    two = {"4711": Job("alice", "vision", "train", [4, 5, 6, 7], 1.0), "4712": Job("bob", "nlp", "train", [0, 1], 1.0)}
    monkeypatch.setenv("GPU_FLEET_PREFIX", str(tmp_path))
    monkeypatch.setattr(nccl_ranks, "PAUSE_S", 0)
    store = Store(jobs=two, devices=GPUS, node="gpu-001")
    jobs.changed(tmp_path / "run/gpu-fleet/jobs", tmp_path / "jobs.prom", lambda _: store)
    return store


def test_the_port_is_asked_twice_and_only_reads(
    store: Store, listening: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    received: list[bytes] = []
    first = as_json({rank: 100 if rank == 7 else 101 for rank in range(RANKS)})
    last = as_json({rank: 100 if rank == 7 else 102 for rank in range(RANKS)})
    serve(listening, [first.encode(), last.encode()], received)
    assert nccl_ranks.main(["--port", str(listening.getsockname()[1])]) == 1
    assert {*b"".join(received).split(b"|")} == {b"CLIENT PROTOCOL 2\nSET FORMAT json\nVERBOSE STATUS\n", b""}
    assert capsys.readouterr().out == (
        "job not known: 1 communicators, NCCL 2.29.1\n"
        "behind  10.255.0.1  NVML 7  process 1007  rank 7, AllReduce 100, most ranks 102\n"
    )


def test_an_answer_that_does_not_end_is_given_up(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nccl_ras, "LONGEST_S", 0.3)
    held: list[socket.socket] = []
    Thread(target=lambda: held.append(listening.accept()[0]), daemon=True).start()
    assert nccl_ranks.main(["--port", str(listening.getsockname()[1])]) == 2
    assert "timed out" in capsys.readouterr().err
    monkeypatch.setattr(nccl_ras, "MOST_BYTES", 1000)
    serve(listening, [b"x" * 5000], [])
    assert nccl_ranks.main(["--port", str(listening.getsockname()[1])]) == 2
    held[0].close()


def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert nccl_ranks.main(["--port", str(port)]) == 2
    assert f"port {port} of this host" in capsys.readouterr().err
    assert nccl_ranks.main(["--port", "x"]) == nccl_ranks.main(["a", "b", "c"]) == nccl_ranks.main(["--help"]) == 2


def test_a_process_on_this_host_has_its_job_by_its_control_group_and_its_gpu_by_the_numbers_of_that_job(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nccl_ranks, "_is_here", lambda address: address == "10.255.0.1")
    groups = {"/proc/1000/cgroup": "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n"}
    monkeypatch.setattr(nccl_ranks, "text_of", lambda path: groups.get(str(path), ""))
    counts = {rank: 5 for rank in (0, 1, 2, 8)}
    missing = {3: {"unresponsive": True, "considered_dead": True}, 9: {"unresponsive": True, "considered_dead": True}}
    file = tmp_path / "answer.json"
    file.write_text("SERVER PROTOCOL 2\nOK\n" + as_json(counts, missing))
    assert nccl_ranks.main([str(file)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "job 4711 of alice (vision): 1 communicators, NCCL 2.29.1",
        f"dead    {socket.gethostname()} (this host)  GPU 7 GPU-7  process 1003  rank 3, RAS has not reached it for a minute",
        "dead    10.255.0.2  NVML 1  process 1009  rank 9, RAS has not reached it for a minute",
    ]
    file.write_text(as_json(counts))
    assert nccl_ranks.main([str(file)]) == 0


def test_a_number_that_may_mean_two_gpus_is_none() -> None:
    store = Store(jobs={"1": Job("", "", "", [1, 2], 1.0)}, devices=GPUS)

    def of(*numbers: str) -> dict[str, str]:
        return {
            number: gpu.gpu for number, gpu in nccl_ranks.gpus_of("1", [Rank("", "", 0, one) for one in numbers], store).items()
        }

    assert of("1") == {}, "GPU 1, or the second of the job"
    assert of("0", "1") == {"0": "1", "1": "2"}
    assert of("1", "2") == {"1": "1", "2": "2"}
    assert of("7") == {}


def test_without_control_groups_the_only_job_of_the_host_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_ranks, "text_of", lambda path: "")
    job = Job("", "", "", [0], 1.0)
    assert nccl_ranks.job_of({1}, Store(jobs={"1": job})) == "1"
    assert nccl_ranks.job_of({1}, Store(jobs={"1": job, "2": job})) == nccl_ranks.job_of(set(), Store(jobs={"1": job})) == ""


def test_addresses_of_this_host() -> None:
    assert nccl_ranks._is_here("127.0.0.1")
    assert not any(map(nccl_ranks._is_here, ("203.0.113.7", "", "0.0.0.0", "::", "name", "\1", "1" * 400)))


# --- the records of the Inspector --------------------------------------------------------------------------------------------


def record(rank: int, number: int, took_us: float, ranks: int = RANKS, coll: str = "AllReduce", **more: str) -> str:
    said = {
        "header": {"id": "0x7f8c496ae9f661", "comm_name": "unknown", "rank": rank, "n_ranks": ranks, "nnodes": ranks // 8 + 1},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": 1764395000000000 + number,
            "hostname": f"gpu-{rank // 8:03d}",
            "pid": 1000 + rank,
        },
        "coll_perf": {
            **{"coll": coll, "coll_sn": number, "coll_msg_size_bytes": 1 << 28, "coll_exec_time_us": int(took_us)},
            **{"coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 1.0, "coll_busbw_gbs": 2.0, **more},
        },
    }
    return json.dumps(said, separators=(",", ":"))


def tape(seed: int, ranks: int, late: Sequence[int], operations: int = 300) -> Iterator[tuple[int, int, float]]:
    """Rank, operation and microseconds. Each rank arrives at a moment of its own, those that are late after them in two of three
    operations; the last lets all go."""
    chance = random.Random(seed)
    jitter, transfer = chance.uniform(20, 2000), chance.uniform(50, 5000)
    by = chance.uniform(0.6, 3) * (transfer + jitter)
    for number in range(operations):
        arrived = [chance.uniform(0, jitter) + (by if rank in late and chance.random() < 0.67 else 0) for rank in range(ranks)]
        for rank in range(ranks):
            yield rank, number, max(arrived) - arrived[rank] + transfer * chance.uniform(1, 1.02)


def late_ranks(seed: int, ranks: int, late: Sequence[int]) -> set[int]:
    key = ("0x7f", "AllReduce")
    return {
        one.rank
        for one in nccl_late.found(Operation(key, number, rank, ranks, "", us) for rank, number, us in tape(seed, ranks, late))[0]
    }


def test_late_ranks_of_generated_jobs_are_named_and_no_others() -> None:
    right = wrong = missed = 0
    for seed in range(100):
        chance = random.Random(seed)
        ranks = chance.choice((4, 4, 8, 16))
        late = set(chance.sample(range(ranks), chance.choice((0, 0, 1, 1, ranks // 4))))
        named_ = late_ranks(seed, ranks, sorted(late))
        right, wrong, missed = right + len(late & named_), wrong + len(named_ - late), missed + len(late - named_)
    assert right / (right + wrong) >= 0.95
    assert right / (right + missed) >= 0.9


def test_a_host_that_is_late_is_named_whole() -> None:
    assert late_ranks(1, 32, range(8, 16)) == set(range(8, 16))


def test_records_that_say_nothing_about_arrival_are_left_out() -> None:
    assert nccl_late.parsed(record(0, 1, 5, coll="Broadcast")) is None, "the root of a broadcast leaves first"
    assert nccl_late.parsed(record(0, 1, 5, coll_timing_source="collective_cpu")) is None
    assert nccl_late.parsed(record(0, 1, 5)) is not None
    for broken in (record(0, 1, 5)[:200], "", "[]", "7", record(0, 1, 5).replace('"rank":0', '"rank":1e999'), "[" * 100_000):
        assert nccl_late.parsed(broken) is None
    assert nccl_late.parsed(record(0, 1, 5).replace('"coll_exec_time_us":5', '"coll_exec_time_us":NaN')) is None


def test_a_directory_of_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files: dict[int, list[str]] = {}
    for rank, number, took_us in tape(3, 8, [5]):
        files.setdefault(rank, []).append(record(rank, number, took_us, 8))
    for rank, lines in files.items():
        if rank != 7:
            (tmp_path / f"gpu-000-pid{1000 + rank}.log").write_text("\n".join(lines) + "\n" + lines[0][:40])
    os.mkfifo(tmp_path / "waits.log")
    (tmp_path / "link.log").symlink_to("/dev/zero")
    assert nccl_late.main([str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.out.startswith("late  gpu-000  process 1005  rank 5 of 8: ")
    assert said.out.count("\n") == 1
    assert said.err == "note: AllReduce of communicator 0x7f8c496ae9f661: 1 of 8 ranks have no records\n"


def test_too_few_records_are_not_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert nccl_late.main([str(tmp_path)]) == nccl_late.main([str(tmp_path / "none")]) == nccl_late.main([]) == 2
    (tmp_path / "a.log").write_text("\n".join(record(*one, 4) for one in tape(1, 4, [], operations=200)))
    assert nccl_late.main([str(tmp_path)]) == 2
    assert "200 operations are known of enough ranks, 300 are needed" in capsys.readouterr().err
    (tmp_path / "a.log").write_text("\n".join(record(*one, 4) for one in tape(1, 4, [])))
    assert nccl_late.main([str(tmp_path)]) == 0
