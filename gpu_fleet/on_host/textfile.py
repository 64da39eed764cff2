"""Runs every collector of this host and writes its samples to gpu_COLLECTOR.prom in node_exporter's textfile directory.

Once, or every 15 s with the argument `loop`. Files are replaced atomically. When a collector fails, its file has no GPU series
and ..._success is 0: stale values would look like a healthy GPU. When even the writing stops, ..._timestamp_seconds no longer
changes.
"""

from __future__ import annotations

import importlib
import os
import signal
import time
from pathlib import Path

from . import loop
from .files import replace
from .metrics import Metrics
from .tools import CollectError, Stopped, Tools

INTERVAL_S = 15
COLLECTORS = Path(__file__).parent / "collect"


def main(arguments: list[str]) -> int:
    directory = Path(os.environ.get("GPU_FLEET_PREFIX", "") + "/var/lib/gpu-fleet/textfile")
    tools = Tools(directory / ".gpu_hanging")
    # After the tool at work: a user who has a process cannot be removed, and supervisor does not stop other sessions.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: setattr(tools, "stopping", True))
    try:
        if arguments == ["loop"]:
            loop.every(INTERVAL_S, lambda: write_all(directory, tools), ["textfile", "loop"], lambda: tools.stopping)
        else:
            write_all(directory, tools)
    except Stopped:
        pass
    return 0


def write_all(directory: Path, tools: Tools) -> None:
    names = sorted(path.stem for path in COLLECTORS.glob("[a-z]*.py"))
    for name in names:
        write(directory, tools, name)
    # The file of a collector, of the readiness or of jobs that this host no longer has would stay forever.
    for written in directory.glob("gpu_*.prom"):
        if written.name[len("gpu_") : -len(".prom")] not in names:
            written.unlink()
    for program in ("ready", "jobs", "slurm_queue"):
        if not (COLLECTORS.parent / f"{program}.py").exists():
            for written in directory.glob(f"{program}*.prom"):
                written.unlink()


def write(directory: Path, tools: Tools, name: str) -> None:
    began = time.time()
    metrics = Metrics()
    try:
        reason = tools.hanging()
        if reason:
            raise CollectError(reason)
        importlib.import_module(f"on_host.collect.{name}").collect(tools, metrics)
        success = 1
    except Stopped:
        raise
    except Exception as error:
        said = [*metrics.said, *(str(error) or repr(error)).splitlines()]
        metrics, success = Metrics(said), 0
        if isinstance(error, CollectError) and error.unreadable is not None:
            metrics.add("unreadable", error.unreadable)
    ended = time.time()
    metrics.add("collector_success", success, name)
    metrics.add("collector_duration_seconds", round(ended - began, 3), name)
    metrics.add("collector_timestamp_seconds", int(ended), name)
    replace(directory / f"gpu_{name}.prom", metrics.render())
