"""Runs nvidia_gpu_exporter, which runs nvidia-smi every 15 s, by way of nvidia_query.py.

Left to itself, the exporter asks for every field that nvidia-smi knows when it starts. When nvidia-smi fails or is slow then,
as it does until the driver is loaded, the exporter falls back to an older list, without most fields that show failures, for as
long as it runs (internal/nvidiasmi/resolve.go of 1.14). So it is given a list, once nvidia-smi answers. Until then it runs as
well, so that the failure is seen. It is started again when nvidia-smi answers, and when another driver was installed or loaded.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Iterator, Mapping, NamedTuple, Sequence

from . import nvidia_query
from .files import text_of
from .nvidia_query import RECOVERY_ACTION, REMAPPED_ROWS, RESET_REQUIRED, Older
from .tools import CollectError, Stopped, Tools

EVERY_S = 15
HELP_S = 10
STOP_S = 10  # for the exporter to end

# What rules and dashboards read; the fields that identify a GPU are always asked for. Of two names for one field the newer comes
# first. Left out are fields that have caused trouble: inforom.checksum_validation takes seconds under load (issue 332 of the
# exporter), remapped_rows.histogram.* fills the kernel log of a vGPU guest (issue 384).
_FIELDS = """
  utilization.gpu utilization.memory utilization.encoder utilization.decoder
  memory.total memory.used memory.free memory.reserved
  temperature.gpu temperature.gpu.tlimit temperature.memory
  power.draw enforced.power.limit
  clocks.current.sm clocks.current.memory
  clocks_event_reasons.hw_slowdown|clocks_throttle_reasons.hw_slowdown
  clocks_event_reasons.hw_thermal_slowdown|clocks_throttle_reasons.hw_thermal_slowdown
  clocks_event_reasons.hw_power_brake_slowdown|clocks_throttle_reasons.hw_power_brake_slowdown
  clocks_event_reasons.sw_thermal_slowdown|clocks_throttle_reasons.sw_thermal_slowdown
  clocks_event_reasons.sw_power_cap|clocks_throttle_reasons.sw_power_cap
  clocks_event_reasons_counters.hw_thermal_slowdown clocks_event_reasons_counters.sw_power_cap
  ecc.errors.corrected.volatile.total ecc.errors.uncorrected.volatile.total
  ecc.errors.uncorrected.aggregate.sram.thresholdExceeded
  remapped_rows.uncorrectable remapped_rows.pending remapped_rows.failure retired_pages.pending
  gpu_recovery_action fabric.state
  pcie.link.gen.current pcie.link.gen.max pcie.link.width.current pcie.link.width.max
"""
# These the exporter adds (infoFields of the same file).
_IDENTITY = """
  uuid name driver_model.current driver_model.pending vbios_version driver_version pci.bus_id serial compute_cap
  pci.sub_device_id index
"""


_LISTEN = "--web.listen-address="
FIELDS, IDENTITY = _FIELDS.split(), _IDENTITY.split()


class Fields(NamedTuple):
    """`asked`: what the exporter asks for; of these and IDENTITY, `unknown` are those that this driver does not have."""

    asked: Sequence[str]
    unknown: Sequence[str]
    older: Older


class State(NamedTuple):
    """`nvidia_smi`: its path; empty where there is none. `fails`: why it does not answer; then nothing is asked for."""

    nvidia_smi: str
    fields: Fields
    fails: str = ""

    def environment(self) -> Mapping[str, str]:
        older = [name for name, has in self.fields.older._asdict().items() if has]
        return {
            nvidia_query.SMI: self.nvidia_smi,
            nvidia_query.FAILS: self.fails,
            nvidia_query.UNKNOWN_FIELDS: ",".join(self.fields.unknown),
            nvidia_query.OLDER_NAMES: " ".join(older),
        }


def fields_of(help_text: str, help_of_rows: str) -> Fields:
    """By what `--help-query-gpu` and `--help-query-remapped-rows` list: 535, 550 and 555 have the older names alone."""
    known = set(re.findall(r'"([^"\n]+)"', help_text))
    older = Older(
        remapped_rows=REMAPPED_ROWS[-1] not in known and f'"{REMAPPED_ROWS[-1]}"' in help_of_rows,
        reset_status=RECOVERY_ACTION not in known and RESET_REQUIRED in known,
    )
    by_older_names = [*(REMAPPED_ROWS if older.remapped_rows else ()), *([RECOVERY_ACTION] if older.reset_status else ())]
    asked, unknown = [], []
    for names in FIELDS:
        name = next((name for name in names.split("|") if name in known), "")
        if not name and names in by_older_names:
            unknown.append(names)
        if name or names in by_older_names:
            asked.append(name or names)
    return Fields(asked, [*unknown, *(name for name in IDENTITY if name not in known)], older)


def look(tools: Tools) -> State:
    """Whether nvidia-smi answers, asked as the exporter will ask."""
    nothing = Fields((), (), Older())
    try:
        smi = tools.find("nvidia-smi")
    except CollectError as error:
        return State("", nothing, str(error))
    try:
        helps = [tools.ask(HELP_S, [smi, f"--help-query-{of}"], with_stderr=False).text for of in ("gpu", "remapped-rows")]
        fields = fields_of(*helps)
        asked = [*fields.asked, *IDENTITY]
        rows, rest = nvidia_query.answer(nvidia_query.asker(tools, smi), asked, ["--format=csv"], fields.unknown, fields.older)
    except CollectError as error:
        return State(smi, nothing, str(error))
    if not rows:
        return State(smi, nothing, "\n".join(rest) or "nvidia-smi prints nothing")
    return State(smi, fields) if fields.asked else State(smi, nothing, "nvidia-smi --help-query-gpu lists none of the fields")


def driver(nvidia_smi: str) -> Sequence[object]:
    """What differs when another driver has been installed or loaded."""
    found: list[object] = [text_of(Path(os.environ.get("GPU_FLEET_ROOT", "") + "/sys/module/nvidia/version"))]
    with contextlib.suppress(OSError):
        file = Path(nvidia_smi or "/nowhere").stat()
        found += [file.st_ino, file.st_mtime_ns, file.st_size]
    return found


class Signals:
    """Ends a wait when a child ends or we are asked to stop."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._wakes, written = os.pipe()
        os.set_blocking(self._wakes, False)
        os.set_blocking(written, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: setattr(tools, "stopping", True))
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def wait_for(self, child: subprocess.Popen[bytes], within_s: float) -> None:
        """Returns early when it has ended or we are to stop."""
        until = time.monotonic() + within_s
        while child.poll() is None and not self._tools.stopping and time.monotonic() < until:
            select.select([self._wakes], [], [], max(0.0, until - time.monotonic()))
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakes, 4096)


def main(arguments: list[str]) -> int:
    """`arguments`: more flags of the exporter; with --web.listen-address it listens there instead of where hosts scrape it."""
    if not any(argument.startswith(_LISTEN) for argument in arguments):
        arguments = [f"{_LISTEN}{os.environ['GPU_FLEET_GPU_EXPORTER_LISTEN']}", *arguments]
    with tempfile.TemporaryDirectory(prefix="gpu-fleet-") as directory:
        os.environ[nvidia_query.RECORD] = record = f"{directory}/hanging"
        tools = Tools(Path(record))
        signals = Signals(tools)
        try:
            while True:
                state = look(tools)
                known = driver(state.nvidia_smi)
                if state.fails:
                    print(f"nvidia-smi does not answer: {state.fails}", file=sys.stderr, flush=True)
                child = subprocess.Popen(_command(state, arguments), env={**os.environ, **state.environment()})
                try:
                    for _ in _intervals(child, signals, tools):
                        if driver(state.nvidia_smi) != known or (state.fails and not look(tools).fails):
                            break
                    else:
                        return 0 if tools.stopping else child.returncode % 256
                finally:
                    _end(child)
        except Stopped:
            return 0


def _intervals(child: subprocess.Popen[bytes], signals: Signals, tools: Tools) -> Iterator[None]:
    """After every interval, until the exporter ends or we are to stop."""
    while True:
        signals.wait_for(child, EVERY_S)
        if child.poll() is not None or tools.stopping:
            return
        yield


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
    try:
        child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _command(state: State, arguments: Sequence[str]) -> Sequence[str]:
    prefix = os.environ.get("GPU_FLEET_PREFIX", "")
    query = [sys.executable, "-I", "-S", "-B", str(Path(__file__).parents[1]), "nvidia_query"]
    # It collects in the background: a scrape neither waits for a slow nvidia-smi nor times out with it. The backend is 1.14's
    # default; that of 2.0 is nvml, which ends without libnvidia-ml.so.1. In quotes, because the command is split into words.
    return [
        f"{prefix}/opt/gpu-fleet/bin/nvidia_gpu_exporter",
        "--collect.backend=exec",
        "--nvidia-smi-command=" + " ".join(f'"{word}"' for word in query),
        f"--query-field-names={','.join(state.fields.asked) or 'uuid'}",
        f"--collect.interval={EVERY_S}s",
        "--collect.timeout=25s",
        *arguments,
    ]
