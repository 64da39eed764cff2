"""What nvidia-smi prints for a query, as nvidia_gpu_exporter can read it.

The exporter takes every line of a query for a GPU, and reports none at all when one of them is something else or the exit
status is not 0. nvidia-smi prints warnings among the rows, a sentence or cells of errors in place of a GPU that it cannot read,
and then exits with 15. So an answer is the header and the rows of the GPUs that could be read, and nothing where there are none.

Fields that this driver does not know are not asked for: one of them, and nvidia-smi refuses the whole query. They come back as
[N/A], or as what these drivers call otherwise: remapped rows are in a query of their own, and the recovery action in two fields
that say whether a reset is needed.
"""

from __future__ import annotations

import re
from typing import Callable, Mapping, NamedTuple, Sequence

from .nvidia_smi import NO_HANDLE, only_readable
from .tools import Tools

PATIENCE_S = 20  # of a whole query; waking up a GPU without persistence mode takes seconds

RESET_REQUIRED, DRAIN_AND_RESET = "reset_status.reset_required", "reset_status.drain_and_reset_recommended"
RECOVERY_ACTION = "gpu_recovery_action"
REMAPPED_ROWS = ("remapped_rows.uncorrectable", "remapped_rows.pending", "remapped_rows.failure")
_UUID = re.compile(r"[A-Z]+-[0-9a-zA-Z-]+")
QUERY = "--query-gpu="

Ask = Callable[[Sequence[str]], str]


class Older(NamedTuple):
    """What the driver has under older names: remapped rows, the need of a reset."""

    remapped_rows: bool = False
    reset_status: bool = False


class Answer(NamedTuple):
    """`rows`: the header and the GPUs, as lines in the order of the fields that were asked for. `rest`: all other lines."""

    rows: Sequence[str]
    rest: Sequence[str]


def answer(ask: Ask, asked: Sequence[str], options: Sequence[str], unknown: Sequence[str], older: Older) -> Answer:
    """`ask`: what nvidia-smi prints. `asked`: fields; `options`: what follows them. Raises what `ask` raises."""
    fields = [name for name in asked if name not in unknown]
    if older.reset_status:
        fields += [RESET_REQUIRED, DRAIN_AND_RESET]
    query = [f"{QUERY}{','.join(fields)}", *options]
    only: Sequence[str] = ()
    text = ask(query)
    if text.startswith(NO_HANDLE):  # of a lost GPU: see only_readable
        listing = ask(["-L"])
        only = only_readable(listing)
        if only:
            text = "\n".join([ask([*only, *query]), *(line for line in listing.splitlines() if "Unable" in line)])
    remapped: Mapping[tuple[str, str], str] = {}
    if older.remapped_rows:
        names = ",".join(REMAPPED_ROWS)
        remapped = _remapped_rows(ask([*only, f"--query-remapped-rows=gpu_uuid,{names}", "--format=csv,noheader"]))
    return _sorted_out(text, asked, fields, remapped)


def _remapped_rows(text: str) -> Mapping[tuple[str, str], str]:
    """By uuid and field."""
    found = {}
    for line in text.splitlines():
        uuid, *cells = _cells(line)
        if len(cells) == len(REMAPPED_ROWS):
            found.update({(uuid, name): cell for name, cell in zip(REMAPPED_ROWS, cells)})
    return found


def _sorted_out(text: str, asked: Sequence[str], fields: Sequence[str], remapped: Mapping[tuple[str, str], str]) -> Answer:
    rows: list[str] = []
    rest = []
    seen = set()
    for line in text.splitlines():
        cells = _cells(line)
        cell = dict(zip(fields, cells)) if len(cells) == len(fields) else {}
        uuid = cell.get("uuid", "")
        if not rows and uuid == "uuid":
            rows.append(", ".join(cell.get(name, name) for name in asked))
        # A GPU that could not be read has words in all of its cells.
        elif rows and _UUID.fullmatch(uuid) and uuid not in seen:
            seen.add(uuid)
            rows.append(", ".join(cell[name] if name in cell else _older(name, cell, remapped) for name in asked))
        elif line.strip():
            rest.append(line)
    return Answer(rows if seen else (), rest)


def _cells(line: str) -> Sequence[str]:
    """Of 535 to 555 a state is a word before it: `state  Completed` in fabric.state."""
    return [re.sub(r"^stat(e|us) +", "", cell) for cell in re.split(r" *, *", line.rstrip("\r"))]


def _older(name: str, cell: Mapping[str, str], remapped: Mapping[tuple[str, str], str]) -> str:
    if (cell["uuid"], name) in remapped:
        return remapped[cell["uuid"], name]
    if name != RECOVERY_ACTION or RESET_REQUIRED not in cell:
        return "[N/A]"
    if cell[RESET_REQUIRED] == "Yes":
        return "GPU Reset"
    if cell[DRAIN_AND_RESET] == "Yes":
        return "Drain and Reset"
    return "None" if cell[RESET_REQUIRED] == "No" else "[N/A]"


def asker(tools: Tools, nvidia_smi: str, within_s: float = PATIENCE_S) -> Ask:
    """Says so where nvidia-smi does not answer in time."""

    def ask(arguments: Sequence[str]) -> str:
        text, status = tools.ask(within_s, [nvidia_smi, *arguments])
        return text if status is not None else f"{text}\nnvidia-smi did not answer within {within_s:.0f} s"

    return ask
