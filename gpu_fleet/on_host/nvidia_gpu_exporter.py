"""Runs nvidia_gpu_exporter, and answers it when it asks nvidia-smi, every 15 s.

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
from typing import Mapping, NamedTuple, Sequence

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

    def answer(self, tools: Tools, asked: Sequence[str], options: Sequence[str]) -> nvidia_query.Answer:
        """No rows where it fails."""
        reason = self.fails or tools.hanging()
        if reason:
            return nvidia_query.Answer((), [reason])
        ask = nvidia_query.asker(tools, self.nvidia_smi)
        try:
            return nvidia_query.answer(ask, asked, options, self.fields.unknown, self.fields.older)
        except CollectError as error:
            return nvidia_query.Answer((), [str(error)])


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
    hanging = tools.hanging()
    if hanging:
        return State(smi, nothing, hanging)
    try:
        helps = [tools.ask(HELP_S, [smi, f"--help-query-{of}"], with_stderr=False).text for of in ("gpu", "remapped-rows")]
    except CollectError as error:
        return State(smi, nothing, str(error))
    state = State(smi, fields_of(*helps))
    rows, rest = state.answer(tools, [*state.fields.asked, *IDENTITY], ["--format=csv"])
    if not rows:
        return State(smi, nothing, "\n".join(rest) or "nvidia-smi prints nothing")
    return state if state.fields.asked else State(smi, nothing, "nvidia-smi --help-query-gpu lists none of the fields")


def driver(nvidia_smi: str) -> Sequence[object]:
    """What differs when another driver has been installed or loaded."""
    found: list[object] = [text_of(Path(os.environ.get("GPU_FLEET_ROOT", "") + "/sys/module/nvidia/version"))]
    with contextlib.suppress(OSError):
        file = Path(nvidia_smi or "/nowhere").stat()
        found += [file.st_ino, file.st_mtime_ns, file.st_size]
    return found


class Queries:
    """What the exporter asks for, by way of libexec/ask-nvidia-smi, which writes the arguments to one pipe and reads the answer
    from the other. A Python of its own for each query would take ten times the CPU time. Pipes are of one start of the exporter:
    the next one would take what the last one had asked for as its own answer, and end."""

    def __init__(self, directory: Path) -> None:
        self._asks, self._answers = directory / "asks", directory / "answers"
        for pipe in (self._asks, self._answers):
            os.mkfifo(pipe, 0o600)
        self.asks = os.open(self._asks, os.O_RDWR | os.O_NONBLOCK)  # also for writing, so that it never ends

    def close(self) -> None:
        """Who still waits for an answer gets none."""
        os.close(self.asks)
        with contextlib.suppress(OSError):
            os.close(os.open(self._answers, os.O_WRONLY | os.O_NONBLOCK))

    def environment(self) -> Mapping[str, str]:
        return {"GPU_FLEET_NVIDIA_SMI_ASKS": str(self._asks), "GPU_FLEET_NVIDIA_SMI_ANSWERS": str(self._answers)}

    def pending(self) -> Sequence[str]:
        """The arguments of the newest; the exporter has given up on earlier ones."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self.asks, 1 << 16).decode("utf-8", "replace").rstrip("\n").rpartition("\n")[2].split()
        return ()

    def answer(self, lines: Sequence[str]) -> None:
        """Unless whoever asked has been ended meanwhile."""
        until = time.monotonic() + 1
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                pipe = os.open(self._answers, os.O_WRONLY | os.O_NONBLOCK)
                with os.fdopen(pipe, "w", encoding="utf-8") as file:
                    file.writelines(f"{line}\n" for line in lines)
                return
            time.sleep(0.005)


class Wait:
    """Until something is asked, a child ends, or we are to stop."""

    def __init__(self, tools: Tools) -> None:
        self._wakes, written = os.pipe()
        for end in (self._wakes, written):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: setattr(tools, "stopping", True))
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def at_most(self, seconds: float, asks: int) -> None:
        select.select((self._wakes, asks), [], [], max(0.0, seconds))
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakes, 4096)


def main(arguments: list[str]) -> int:
    """`arguments`: more flags of the exporter; with --web.listen-address it listens there instead of where hosts scrape it."""
    if not any(argument.startswith(_LISTEN) for argument in arguments):
        arguments = [f"{_LISTEN}{os.environ['GPU_FLEET_GPU_EXPORTER_LISTEN']}", *arguments]
    with tempfile.TemporaryDirectory(prefix="gpu-fleet-") as directory:
        tools = Tools(Path(directory, "hanging"))
        wait = Wait(tools)
        try:
            while True:
                state = look(tools)
                if state.fails:
                    _say(f"nvidia-smi does not answer: {state.fails}")
                with tempfile.TemporaryDirectory(dir=directory) as pipes, contextlib.closing(Queries(Path(pipes))) as queries:
                    child = subprocess.Popen(_command(state, arguments), env={**os.environ, **queries.environment()})
                    try:
                        is_again = serve(state, child, tools, queries, wait)
                    finally:
                        _end(child)
                if not is_again:
                    return 0 if tools.stopping else child.returncode % 256
        except Stopped:
            return 0


def serve(state: State, child: subprocess.Popen[bytes], tools: Tools, queries: Queries, wait: Wait) -> bool:
    """Answers the exporter until it ends or we are to stop. Whether it has to be started again."""
    known, looked, said = driver(state.nvidia_smi), time.monotonic(), state.fails
    while child.poll() is None and not tools.stopping:
        wait.at_most(looked + EVERY_S - time.monotonic(), queries.asks)
        asked = queries.pending()
        if asked:
            rows, rest = state.answer(tools, asked[0].rpartition("=")[2].split(","), asked[1:])
            queries.answer(rows)
            if rest and said != rest[0]:
                _say(*rest)
            said = rest[0] if rest else ""
        if time.monotonic() >= looked + EVERY_S:
            if driver(state.nvidia_smi) != known or (state.fails and not look(tools).fails):
                return True
            looked = time.monotonic()
    return False


def _say(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr, flush=True)


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
    # It collects in the background: a scrape neither waits for a slow nvidia-smi nor times out with it. The backend is 1.14's
    # default; that of 2.0 is nvml, which ends without libnvidia-ml.so.1. In quotes, because the command is split into words.
    return [
        f"{prefix}/opt/gpu-fleet/bin/nvidia_gpu_exporter",
        "--collect.backend=exec",
        f'--nvidia-smi-command="{prefix}/opt/gpu-fleet/libexec/ask-nvidia-smi"',
        f"--query-field-names={','.join(state.fields.asked) or 'uuid'}",
        f"--collect.interval={EVERY_S}s",
        "--collect.timeout=25s",
        *arguments,
    ]
