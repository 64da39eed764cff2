"""Command line and server of the dcgm-exporter stand-in.

It takes the real one's flags and environment names. Those about virtual GPUs and DRA are accepted and change nothing; a remote
host engine is asked for nothing, but has to be there. DCGM_LAB_GENERATION picks the release it stands for, DCGM_LAB_PODS names
the file that stands for the kubelet.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from pathlib import Path

from lab.gpu.dcgm import counters, fields
from lab.gpu.dcgm.body import Renderer
from lab.gpu.dcgm.pods import FILE_VARIABLE, Pods
from lab.gpu.machine import STATE_VARIABLE, Machine, NoMachine, clock
from lab.gpu.serve import CannotListen, serve

GENERATIONS = {"4.8.2": "4.5.3-4.8.2", "4.8.3": "4.6.0-4.8.3", "4.8.4": "4.6.1-4.8.4", "4.9.0": "4.7.0-4.9.0"}
GENERATION_VARIABLE = "DCGM_LAB_GENERATION"
HOST_ENGINE_PORT = 5555
SHIPPED = Path(__file__).parent

# flag, short form, environment name, default; a boolean default makes a switch
_FLAGS: tuple[tuple[str, str, str, str | bool], ...] = (
    ("collectors", "f", "DCGM_EXPORTER_COLLECTORS", ""),
    ("address", "a", "DCGM_EXPORTER_LISTEN", ":9400"),
    ("collect-interval", "c", "DCGM_EXPORTER_INTERVAL", "30000"),
    ("kubernetes", "k", "DCGM_EXPORTER_KUBERNETES", False),
    ("use-old-namespace", "o", "DCGM_EXPORTER_USE_OLD_NAMESPACE", False),
    ("cpu-devices", "p", "DCGM_EXPORTER_CPU_DEVICES_STR", "f"),
    ("configmap-data", "m", "DCGM_EXPORTER_CONFIGMAP_DATA", "none"),
    ("remote-hostengine-info", "r", "DCGM_REMOTE_HOSTENGINE_INFO", ""),
    ("kubernetes-enable-pod-labels", "", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", False),
    ("kubernetes-enable-pod-uid", "", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", False),
    ("kubernetes-pod-label-allowlist-regex", "", "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX", ""),
    ("kubernetes-gpu-id-type", "", "DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE", "uid"),
    ("devices", "d", "DCGM_EXPORTER_DEVICES_STR", "f"),
    ("no-hostname", "n", "DCGM_EXPORTER_NO_HOSTNAME", False),
    ("switch-devices", "s", "DCGM_EXPORTER_OTHER_DEVICES_STR", "f"),
    ("fake-gpus", "", "DCGM_EXPORTER_USE_FAKE_GPUS", False),
    ("xid-count-window-size", "x", "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE", "300000"),
    ("clock-events-count-window-size", "", "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE", "300000"),
    ("replace-blanks-in-model-name", "", "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME", False),
    ("debug", "", "DCGM_EXPORTER_DEBUG", False),
    ("log-format", "", "DCGM_EXPORTER_LOG_FORMAT", "text"),
    ("hpc-job-mapping-dir", "", "DCGM_HPC_JOB_MAPPING_DIR", ""),
    ("kubernetes-virtual-gpus", "", "KUBERNETES_VIRTUAL_GPUS", False),
    ("kubernetes-enable-dra", "", "KUBERNETES_ENABLE_DRA", False),
)


class Refused(Exception):
    """The exporter's log message before it exits with 1."""


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    try:
        name = os.environ.get(GENERATION_VARIABLE, "4.8.2")
        if name not in GENERATIONS:
            raise Refused(f"{GENERATION_VARIABLE}={name}: one of {', '.join(GENERATIONS)}")
        if arguments and arguments[0] in ("-v", "--version"):
            print(f"DCGM Exporter version {GENERATIONS[name]} (stand-in of gpu-fleet's lab)")
            return 0
        _serve(_options(arguments), name)
    except (Refused, counters.BadCounters, NoMachine) as error:
        _log("ERROR", str(error))
        return 1
    return 0


def renderer(collectors: Path | None, generation: str, **settings) -> Renderer:
    """`collectors`: a counter file; None for the list that the release ships."""
    number = tuple(int(part) for part in generation.split("."))
    path = collectors or SHIPPED / f"default-counters-{'4.9' if number >= (4, 9) else '4.8'}.csv"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise Refused(f"Could not read metrics file '{path}'; err: {error.strerror}") from None
    return Renderer(counters.parse(lines, fields.known(number), number), number, **settings)


def _options(arguments: list[str]) -> dict[str, str | bool]:
    by_name = {spelling: flag for flag in _FLAGS for spelling in (flag[0], flag[1]) if spelling}
    values = {name: _from_environment(variable, default) for name, _, variable, default in _FLAGS}
    left = list(arguments)
    while left:
        argument = left.pop(0)
        spelling, equals, value = argument.lstrip("-").partition("=")
        if not argument.startswith("-") or spelling not in by_name:
            raise Refused(f"Incorrect Usage: flag provided but not defined: -{spelling}")
        name, _, _, default = by_name[spelling]
        if isinstance(default, bool):
            values[name] = not equals or value == "true"
        elif equals or left:
            values[name] = value if equals else left.pop(0)
        else:
            raise Refused(f"Incorrect Usage: flag needs an argument: -{spelling}")
    return values


def _from_environment(variable: str, default: str | bool) -> str | bool:
    value = os.environ.get(variable)
    if value is None:
        return default
    return value.lower() in ("1", "true") if isinstance(default, bool) else value


class _Collection:
    """The machine as of the last collection: scraping faster than the interval repeats samples, as with the real one."""

    def __init__(self, state: str, every_s: float) -> None:
        self._state, self._every_s = state, every_s
        self._lock = threading.Lock()
        self._machine, self._read_s = Machine.load(state), time.monotonic()

    def machine(self) -> Machine:
        with self._lock:
            if time.monotonic() - self._read_s >= self._every_s:
                self._machine, self._read_s = Machine.load(self._state), time.monotonic()
            return self._machine


def _serve(options: dict[str, str | bool], generation: str) -> None:
    state = os.environ.get(STATE_VARIABLE)
    if not state:
        raise NoMachine(f"{STATE_VARIABLE} is not set: start it through the wrapper that lab.gpu.ensure makes")
    _reach_host_engine(str(options["remote-hostengine-info"]))
    collectors = Path(str(options["collectors"])) if options["collectors"] else None
    body = renderer(
        collectors,
        generation,
        started_s=clock(),
        window_ms=int(options["xid-count-window-size"]),
        hostname=not options["no-hostname"],
        pods=_pods(options),
    )
    collection = _Collection(state, int(options["collect-interval"]) / 1000)
    if collection.machine().vendor != "nvidia":
        raise NoMachine("dcgm-exporter: this machine has no NVIDIA GPU")

    host, _, port = str(options["address"]).rpartition(":")
    answers = {
        "/metrics": lambda: body.render(collection.machine()),
        "/health": lambda: "OK",
        "/": lambda: "GPU Exporter (stand-in)\n",
    }
    try:
        serve(host, int(port), answers, listening=lambda: _log("INFO", f"Starting webserver, listening on {options['address']}"))
    except CannotListen as error:
        raise Refused(f"Failed to listen and serve HTTP server: listen tcp {options['address']}: bind: {error}") from None


def _reach_host_engine(address: str) -> None:
    """`address`: empty for one inside the exporter, which is the usual case."""
    host, _, port = address.partition(":")
    try:
        if address:
            socket.create_connection((host, int(port or HOST_ENGINE_PORT)), timeout=5).close()
    except OSError as error:
        raise Refused(f"Unable to connect to remote nv-hostengine at {address}: {error}") from None


def _pods(options: dict[str, str | bool]) -> Pods | None:
    if not options["kubernetes"]:
        return None
    file = os.environ.get(FILE_VARIABLE)
    return Pods(
        Path(file) if file else None,
        with_labels=bool(options["kubernetes-enable-pod-labels"]),
        with_uid=bool(options["kubernetes-enable-pod-uid"]),
        allowed=[each for each in str(options["kubernetes-pod-label-allowlist-regex"]).split(",") if each],
    )


def _log(level: str, text: str) -> None:
    print(
        f'time={time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())} level={level} msg="{text}"', file=sys.stderr, flush=True
    )


def _help() -> str:
    lines = ["NAME:", "   dcgm-exporter - stand-in of gpu-fleet's lab over simulated GPUs, not NVIDIA's program", "", "OPTIONS:"]
    for name, short, variable, default in _FLAGS:
        spellings = f"--{name}" + (f", -{short}" if short else "")
        lines.append(f"   {spellings:<42} (default: {default}) [${variable}]")
    return "\n".join([*lines, f"   the release it stands for: ${GENERATION_VARIABLE}, one of {', '.join(GENERATIONS)}"])
