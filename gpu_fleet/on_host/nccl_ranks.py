"""`gpu-fleet-jobs ranks`: which ranks of a job NCCL's RAS names, on which host and GPU, and whose job it is.

RAS knows addresses, processes and the numbers of NVML as a process sees them. Whose a process is says the name of its control
group, which slurmd sets; a job that sees its own GPUs alone numbers them from 0.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from . import jobs, nccl_ras, output
from .files import text_of
from .nccl_ras import Answer, Rank, RasError, clean
from .slurm_gpus import Gpu

USAGE = "gpu-fleet-jobs ranks [FILE|- [LATER_FILE]] | ranks --port PORT"
PAUSE_S = 5
MOST_LINES = 64
_WHAT = {
    "dead": "RAS has not reached it for a minute",
    "silent": "RAS does not reach it",
    "left": "answers, and is not in this communicator",
}


def main(arguments: Sequence[str]) -> int:
    """0: no rank is named; 1: some are; 2: not known."""
    store = jobs.read(Path(os.environ.get("GPU_FLEET_PREFIX", "") + "/run/gpu-fleet/jobs/jobs.json"))
    try:
        first, last = _answers(arguments)
    except (OSError, RasError) as error:
        print(f"gpu-fleet-jobs ranks: {error}", file=sys.stderr)
        return 2
    named = nccl_ras.found(last, first)
    print("".join(f"{line}\n" for line in listed(last, named, store, is_single=first is None)), end="")
    return 1 if named else 0


def _answers(arguments: Sequence[str]) -> tuple[Answer | None, Answer]:
    port = str(nccl_ras.PORT)
    if arguments[:1] == ["--port"]:
        port, arguments = "".join(arguments[1:2]), arguments[2:]
    if len(arguments) > 2 or not port.isdigit() or int(port) > 65535 or any(one.startswith("--") for one in arguments):
        raise RasError(f"expected: {USAGE}")
    if arguments:
        *before, last = [nccl_ras.parsed(_text(name)) for name in arguments]
        return (before[0] if before else None), last
    before_ = nccl_ras.parsed(nccl_ras.asked(int(port)))
    time.sleep(PAUSE_S)
    return before_, nccl_ras.parsed(nccl_ras.asked(int(port)))


def _text(name: str) -> str:
    with sys.stdin.buffer if name == "-" else Path(name).open("rb") as file:
        said = file.read(nccl_ras.MOST_BYTES + 1)
    if len(said) > nccl_ras.MOST_BYTES:
        raise RasError(f"{name}: more than {nccl_ras.MOST_BYTES >> 20} MiB")
    return said.decode("utf-8", "replace")


def listed(answer: Answer, named: Sequence[tuple[str, Rank, str]], store: jobs.Store, *, is_single: bool) -> Iterator[str]:
    """For people: the job, then one line for each rank and reason."""
    here = {rank.host for rank in answer.ranks if _is_here(rank.host)}
    on_this = [rank for rank in answer.ranks if rank.host in here]
    job_id = job_of({rank.pid for rank in on_this}, store)
    job = store.jobs.get(job_id)
    whose = f"job {job_id}" + (f" of {job.user} ({job.account})" if job else "") if job_id else "job not known"
    yield f"{whose}: {answer.communicators} communicators" + (f", NCCL {answer.version}" if answer.version else "")
    gpus = gpus_of(job_id, on_this, store)
    rows: dict[tuple[str, ...], list[str]] = {}  # a process is in several communicators, and has another rank in each
    for kind, rank, why in named:
        gpu = gpus.get(rank.gpu) if rank.host in here else None
        place = f"GPU {gpu.gpu} {gpu.uuid}".strip() if gpu else f"NVML {rank.gpu}" if rank.gpu else ""
        reasons = rows.setdefault((kind, rank.host, place, f"process {rank.pid}" if rank.pid else ""), [])
        reasons += [
            text for text in (f"rank {rank.rank}" if rank.rank else "", why or _WHAT.get(kind, "")) if text not in ("", *reasons)
        ]
    names = _names({row[1] for row in rows} - here)
    for (kind, host, place, process), reasons in list(rows.items())[:MOST_LINES]:
        where = f"{socket.gethostname()} (this host)" if host in here else names.get(host, host)
        yield "  ".join(filter(None, (f"{kind:6}", where, place, process, ", ".join(reasons[:8]))))
    if len(rows) > MOST_LINES:
        yield f"and {len(rows) - MOST_LINES} more"
    if not rows:
        yield "no rank is named: all answer, and have launched the same collectives or still launch them"
    elif is_single and {"behind", "ahead"} & {row[0] for row in rows}:
        yield "one answer alone: ranks that are behind or ahead may be so in passing"


def job_of(pids: set[int], store: jobs.Store) -> str:
    """Of the processes on this host; else the only job that is recorded here. Empty where it is not known."""
    texts = (text_of(Path(f"/proc/{pid}/cgroup")) for pid in pids if pid)
    jobs_found = {found for text in texts for found in re.findall(r"/job_(\d+)(?:/|$)", text, re.MULTILINE)}
    if not jobs_found and pids:
        jobs_found = set(store.jobs)
    return jobs_found.pop() if len(jobs_found) == 1 else ""


def gpus_of(job_id: str, ranks: Sequence[Rank], store: jobs.Store) -> Mapping[str, Gpu]:
    """By NVML's number in the process. Empty where the numbers have two meanings: of all GPUs, or of those of the job."""
    devices = sorted((gpu for of, _, gpu in jobs.held(store) if of == job_id and gpu.gpu.isdigit()), key=lambda gpu: int(gpu.gpu))
    numbers = {number for rank in ranks for number in rank.gpu.split(",") if number}
    of_host = {gpu.gpu: gpu for gpu in devices}
    of_job = {str(number): gpu for number, gpu in enumerate(devices)}
    readings = [reading for reading in (of_host, of_job) if numbers <= set(reading)]
    if not readings or any(reading[number] != readings[0][number] for reading in readings for number in numbers):
        return {}
    return readings[0]


def _is_here(address: str) -> bool:
    """May a socket have it?"""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        is_any = not any(socket.inet_pton(family, address))  # a name is an error: none is looked up
        with socket.socket(family, socket.SOCK_DGRAM) as own:
            own.bind((address, 0))
    except (OSError, ValueError):
        return False
    return not is_any


def _names(addresses: set[str]) -> Mapping[str, str]:
    """Those that this host's resolver knows within three seconds."""
    known = [address for address in sorted(addresses) if re.fullmatch(r"[0-9a-fA-F.:]+", address)][:MOST_LINES]
    try:
        said = output.run(("getent", "hosts", *known), 3, errors=subprocess.DEVNULL).stdout if known else b""
    except subprocess.TimeoutExpired as late:
        said = late.stdout or b""
    except (OSError, output.TooMuch):
        said = b""
    rows = (line.split() for line in said.decode("utf-8", "replace").splitlines())
    return {row[0]: clean(row[1]) for row in rows if len(row) > 1}
