"""Slurm and the readiness of this host: HealthCheckProgram and Prolog.

`health-check` drains the node when the host is not ready, and resumes it when it is again, if it was drained by us. It changes
nothing without `slurm: drain` in the stack file, and drains no more than a share of the cluster: a fault of our own, or of a
driver's release, must not empty it. It asks the controller only when the host is not ready, or was drained by us, and every ten
minutes whether jobs may start: the health checks of 10,000 nodes are no load.

`prolog` logs why a job starts on a host that is not ready. It refuses nothing: a prolog that fails drains the node and leaves the
job of the user held.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from .files import replace, text_of
from .metrics import READINESS, Metrics
from .ready import FAIL, PASS, WARN, current, is_ahead
from .slurm_tools import SlurmError, log, node, run

PROGRAM = "gpu-fleet-ready"
OURS = "gpu-fleet: "  # begins the reason of a node that we drained
SETTLED_S = 2  # hosts that fail at once are checked within milliseconds of each other
MOST_REASON = 200
LOOKS_S = 600  # between two looks at the node's state while nothing is wrong: 10,000 nodes ask 17 times a second in all
_NO_JOBS = {
    *("DRAIN", "DOWN", "FAIL", "FAILING", "FUTURE", "MAINT", "NOT_RESPONDING"),
    *("POWERED_DOWN", "POWERING_DOWN", "REBOOT_ISSUED"),
}


class Settings(NamedTuple):
    """`drains`: otherwise it only says what it would do. `most_percent`: of the cluster's nodes, and at least one node."""

    node: str
    drains: bool
    most_percent: float


def health_check(report: Mapping[str, Any], settings: Settings, record: Path) -> str:
    """What was done, in words; empty: nothing. `record`: exists while the node is drained by us. Raises SlurmError."""
    is_ready = report["state"] in (PASS, WARN)
    if is_ready:
        record.with_name("slurm-limit").unlink(missing_ok=True)
    if any(one["code"] == "maintenance" for one in report["reasons"]):
        return ""
    if report["state"] == FAIL:
        return _drained(report, settings, record)
    return _resumed(settings, record) if is_ready and record.exists() else ""


def _drained(report: Mapping[str, Any], settings: Settings, record: Path) -> str:
    reason = OURS + "; ".join(one["text"] for one in report["reasons"] if one["state"] == FAIL)
    reason = re.sub(r"[^\x20-\x7e]|['\"\\]", "", reason)[:MOST_REASON]
    states, _ = _node(settings.node)
    if "DRAIN" in states or "DOWN" in states:
        return ""
    count, before = _ours(settings.node)
    most = max(1, int(count * settings.most_percent / 100))
    refused = f"not drained: of {count} nodes no more than {most} may be drained by us: {reason}"
    if len(before) >= most:
        _note(record.with_name("slurm-limit"), reason)
        return refused
    if not settings.drains:
        return f"dry run: would drain {settings.node}: {reason}"
    _note(record, reason)  # before: a drain without a record, after a kill between the two, would stay for ever
    try:
        run("scontrol", "update", f"NodeName={settings.node}", "State=DRAIN", f"Reason={reason}")
    except SlurmError:
        if not _is_ours(*_node(settings.node)):  # the controller may have heard it, and answered too late
            record.unlink(missing_ok=True)
        raise
    time.sleep(SETTLED_S)
    _, after = _ours(settings.node)
    at_once = sorted({*after, settings.node} - before)
    if at_once.index(settings.node) >= most - len(before):
        run("scontrol", "update", f"NodeName={settings.node}", "State=UNDRAIN")
        record.unlink(missing_ok=True)
        _note(record.with_name("slurm-limit"), reason)
        return refused
    record.with_name("slurm-limit").unlink(missing_ok=True)
    return f"drained {settings.node}: {reason}"


def _resumed(settings: Settings, record: Path) -> str:
    states, reason = _node(settings.node)
    if not _is_ours(states, reason):
        record.unlink(missing_ok=True)  # somebody resumed it, or drains it for a reason of their own
        return ""
    if not settings.drains:
        return f"dry run: would resume {settings.node}"
    run("scontrol", "update", f"NodeName={settings.node}", "State=UNDRAIN")
    record.unlink(missing_ok=True)
    return f"resumed {settings.node}: it is ready again"


def _is_ours(states: str, reason: str) -> bool:
    return "DRAIN" in states and reason.startswith(OURS)


def look(report: Mapping[str, Any], settings: Settings, file: Path) -> None:
    """Writes whether Slurm starts jobs on this node, whoever decided it. Raises SlurmError."""
    looked = file.stat().st_mtime if file.exists() else 0
    if report["state"] == FAIL or time.time() - looked > LOOKS_S or is_ahead(looked):
        states, _ = _node(settings.node)
        replace(file, str(int(not _NO_JOBS & set(re.findall(r"[A-Z_]+", states)))))


def _node(name: str) -> tuple[str, str]:
    """State, with its flags (IDLE+DRAIN), and reason."""
    text = run("scontrol", "show", "node", name, "--oneliner")
    state = re.search(r"\bState=(\S+)", text)
    reason = re.search(r"\bReason=(.*?)(?: \[[^\]]*\])?(?: Comment=.*)?$", text.strip())
    if not state:
        raise SlurmError(f"scontrol show node {name}: no state in its answer")
    return state[1], reason[1] if reason else ""


def _ours(node: str) -> tuple[int, set[str]]:
    """How many nodes have GPUs, in hidden partitions too, and which nodes we drained. 24.11 keeps the reason of a resumed node.

    Of nodes without GPUs no share is taken: where a few of a thousand have GPUs it would be all of these. A site whose gres.conf
    has no GPUs counts all its nodes.
    """
    said = run("sinfo", "--local", "--all", "--noheader", "--Node", "--format=%N|%T|%G|%E")
    rows = [line.split("|", 3) for line in said.splitlines()]
    nodes = {row[0].strip(): row[1:] for row in rows if len(row) == 4}
    with_gpus = {name for name, (_, gres, _) in nodes.items() if re.search(r"\bgpu\b", gres)}
    drained = {name for name, (state, _, reason) in nodes.items() if "drain" in state and reason.startswith(OURS)}
    return len(with_gpus if node in with_gpus else nodes), drained


def metrics(directory: Path) -> str:
    """Whether we drained the node, and since when; or why we did not."""
    drained, limit = directory / "slurm-drained", directory / "slurm-limit"
    found = Metrics(known=READINESS, prefix="gpu_fleet_")
    if drained.exists():
        found.add("ready_drained_timestamp_seconds", int(drained.stat().st_mtime))
    found.add("ready_drain_refused", int(limit.exists()))
    starts = text_of(directory / "slurm-schedulable")
    if starts:
        found.add("ready_schedulable", int(starts))
    return found.render()


def main(arguments: Sequence[str]) -> int:
    """`health-check`, `prolog`. Both exit with 0: what they found is in the log."""
    prefix = os.environ.get("GPU_FLEET_PREFIX", "")
    report = current(prefix)
    if list(arguments) == ["prolog"]:
        if report["state"] not in (PASS, WARN):
            job = os.environ.get("SLURM_JOB_ID", "?")
            texts = "; ".join(one["text"] for one in report["reasons"])
            log(PROGRAM, f"job {job} starts on a host that is not ready: {report['state']}: {texts}")
        return 0
    settings = Settings(
        node=node(),
        drains=os.environ.get("GPU_FLEET_READY_SLURM") == "drain",
        most_percent=float(os.environ.get("GPU_FLEET_READY_MOST_DRAINED") or 5),
    )
    directory = Path(prefix + "/var/lib/gpu-fleet/ready")
    try:
        done = health_check(report, settings, directory / "slurm-drained")
        look(report, settings, directory / "slurm-schedulable")
    except (OSError, SlurmError) as error:  # the first: a full disk, also below
        done = str(error)
    said = directory / "slurm-said"
    if done and done != text_of(said):  # once, and not every minute
        log(PROGRAM, done)
    replace(said, done)
    replace(Path(prefix + "/var/lib/gpu-fleet/textfile/ready_slurm.prom"), metrics(directory))
    return 0


def _note(file: Path, text: str) -> None:
    if not file.exists():
        replace(file, f"{int(time.time())} {text}\n")
