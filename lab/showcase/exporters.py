"""The exporter output of one simulated machine at a point in time, from the same stand-ins that the lab's hosts run.

The moment is the environment variable of lab.gpu's clock. nvidia-smi runs in this process: as a program of its own it would take
most of the time.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from gpu_fleet.host.part import ROOTFS
from lab.gpu import fixtures
from lab.gpu.amd import exporter as amd_exporter
from lab.gpu.dcgm import counters, fields
from lab.gpu.dcgm.body import Renderer
from lab.gpu.machine import CLOCK_VARIABLE, Machine, clock

Body = Callable[[], str]

_POD_OF_GPU: Final = (
    {"namespace": "research", "pod": "llama-finetune-0", "container": "trainer"},
    {"namespace": "research", "pod": "llama-finetune-1", "container": "trainer"},
    {"namespace": "serving", "pod": "chat-6c9f7d-x2x8k", "container": "vllm"},
    {},  # not configured
)


@contextlib.contextmanager
def at(moment_s: float) -> Iterator[None]:
    """The simulated machines' clock stands at `moment_s`."""
    before = os.environ.get(CLOCK_VARIABLE)
    os.environ[CLOCK_VARIABLE] = str(moment_s)
    try:
        yield
    finally:
        if before is None:
            del os.environ[CLOCK_VARIABLE]
        else:
            os.environ[CLOCK_VARIABLE] = before


def exporter(mode: str, state: Path, started_s: float) -> tuple[Body, float]:
    """The content of /metrics, and the seconds between two readings: slow tools are read less often."""
    match mode:
        case "dcgm-4.8":
            return _dcgm_standard(state, started_s), 150
        case "dcgm-4.9":
            return lambda: fixtures.dcgm_body(state, (4, 9, 0), started_s=started_s), 150
        case "kubernetes":
            return lambda: _with_pods(fixtures.dcgm_body(state, (4, 9, 0), started_s=started_s)), 150
        case "smi-exec" | "smi-nvml":
            return _smi(state, mode.removeprefix("smi-")), 300
        case "amd-exporter":
            return lambda: amd_exporter.render(Machine.load(state), {"GPUConfig": {"Labels": ["GPU_UUID"]}}), 150
        case "textfile-nvidia":
            return lambda: _textfile(state, ("nvidia", "links")), 1800
        case "textfile-amd":
            return lambda: _textfile(state, ("amd",)), 1800
    raise ValueError(mode)


def _dcgm_standard(state: Path, started_s: float) -> Body:
    """By the list that hosts get."""
    generation = (4, 8, 3)
    known = fields.known(generation)
    rows = (ROOTFS / "etc/dcgm-exporter/standard.csv").read_text().splitlines()
    asked = [row for row in rows if row.split(",")[0] in known or row.startswith("DCGM_EXP_")]
    renderer = Renderer(counters.parse(asked, known, generation), generation, started_s=started_s)
    return lambda: renderer.render(Machine.load(state))


def _textfile(state: Path, collectors: tuple[str, ...]) -> str:
    body = fixtures.textfile_body(state, collectors)
    return body.replace(f" {fixtures.FROZEN_AT_S:.0f}\n", f" {clock():.0f}\n")


def _with_pods(body: str) -> str:
    """As dcgm-exporter with --kubernetes: the pod that holds a GPU is in the labels of the GPU's series."""

    def attributed(found: re.Match[str]) -> str:
        pod = "".join(f',{name}="{value}"' for name, value in _POD_OF_GPU[int(found[1])].items())
        return f"{found[0][:-1]}{pod}}}"

    return re.sub(r'\{gpu="(\d+)",[^}]*\}', attributed, body)


def _smi(state: Path, backend: str) -> Body:
    throughput = ["--collect.pcie-throughput"] if backend == "nvml" else []
    return fixtures.exporter_in_process(state, "--collect.backend", backend, "--collect.compute-apps", *throughput)
