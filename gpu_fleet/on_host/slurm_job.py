"""What Slurm's controller says of one job: whose it is, and its GPUs on a node, by Slurm's numbers."""

from __future__ import annotations

import re
from typing import NamedTuple, Sequence

from .slurm_tools import columns, expanded, run

# Not COMPLETING: its account no longer pays, though the node may clean up for long after its slurmd was killed.
_ALIVE = {"CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"}
_ASKED = ("JobID", "State", "UserName", "Account", "Partition", "NodeList")  # nothing that a user writes
_DETAILS = re.compile(r"\bJOB_GRES=\S+\s+((?:Nodes=\S+ CPU_IDs=\S* Mem=\S* GRES=\S*\s+)+)MinCPUsNode=")


class Said(NamedTuple):
    """`numbers`: Slurm's, of its GPUs on the node."""

    user: str
    account: str
    partition: str
    numbers: Sequence[int]


def asked(job_id: str, node: str, *, with_gpus: bool) -> Said | None:
    """What the controller says of a job; None when it is not, or no longer, on this node. Its GPUs are one question more."""
    asked = ("--local", "--all", "--noheader", "--states=all", f"--job={job_id}", columns(_ASKED))
    text = run("squeue", *asked, fine="Invalid job id")
    # An array's or a heterogeneous job's id gives a line for each of its parts.
    rows = [line.split("|") for line in text.splitlines()]
    row = next((row for row in rows if row[0].strip() == job_id and len(row) > len(_ASKED)), None)
    if row is None:
        return None
    _, state, user, account, partition, nodes = map(str.strip, row[: len(_ASKED)])
    if state not in _ALIVE or node not in expanded(nodes):
        return None
    numbers = _gpus_on(job_id, node) if with_gpus else []
    return Said(user, "" if account in ("(null)", "N/A") else account, partition, numbers)


def _gpus_on(job_id: str, node: str) -> list[int]:
    """Slurm's numbers. Users write into this answer too (the job's name, command and comment, with lines of their own): none are
    known where two places look like Slurm's."""
    text = run("scontrol", "--local", "show", "job", job_id, "--details", "--oneliner")
    # An array's or a heterogeneous job's id gives each of its parts.
    of_job = [part for part in re.split(r"^(?=JobId=)", text, flags=re.MULTILINE) if re.match(rf"JobId={job_id}\s", part)]
    places = [place for part in of_job for place in _DETAILS.findall(part)]
    numbers: list[int] = []
    for nodes, gres in re.findall(r"Nodes=(\S+).*? GRES=(\S*)", places[0]) if len(places) == 1 else ():
        if node in expanded(nodes):
            for listed in re.findall(r"\bgpu\b[^(,]*\(IDX:([\d,-]+)\)", gres):
                numbers += numbers_of(listed)
            numbers += shared(gres)
    return numbers


def shared(gres: str) -> list[int]:
    """Slurm's numbers of the GPUs of which something is given as shards or by MPS.

    `gres`: shard:3(0/4,2/4,1/4), how much of how much of each GPU; Slurm 22.05: shard:2(IDX:0). Of a GPU that is given as a
    whole Slurm 26.05 has -/4. Source: run with 22.05, 24.11 and 26.05, 2026-11-28.
    """
    found: list[int] = []
    for numbers, shares in re.findall(r"\b(?:shard|mps)\b[^(,]*(?:\(null\)[^(,]*)?\((?:IDX:([\d,-]+)|([\d/,-]+))\)", gres):
        found += numbers_of(numbers)
        found += [number for number, share in enumerate(shares.split(",")) if share.partition("/")[0].strip("-0")]
    return found


def numbers_of(text: str) -> list[int]:
    """0,2-3: each of them."""
    found = re.findall(r"(\d+)(?:-(\d+))?", text)
    return [number for first, last in found for number in range(int(first), int(last or first) + 1)][:64]
