"""Which stand-in replaces which program, and the environment in which Pulumi finds them.

They have a PULUMI_HOME of their own, so that Pulumi finds none of them unless a command was started in this environment; and they
refuse every stack that is not of the lab (permission.py). The toolchain knows nothing of them.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

from gpu_fleet import toolchain
from gpu_fleet.host.parts import PROGRAMS as HOST_PROGRAMS
from gpu_fleet.operations.artifacts import artifact_of, fill, release_of
from gpu_fleet.stackfile.stand_ins import LAB_STACKS
from gpu_fleet.toolchain import PROGRAMS, Cache, ToolchainError
from gpu_fleet.toolchain.install import Installer, architecture
from gpu_fleet.toolchain.progress import Progress
from gpu_fleet.toolchain.pulumi_home import place
from lab.grafana.release import pack_grafana

REPO = Path(__file__).resolve().parents[2]
STAND_INS: Mapping[str, Path] = {
    **{
        name: REPO / "lab/standins/bin" / name
        for name in (
            "pulumi-language-python",
            "pulumi-resource-command",
            "pulumi-resource-grafana",
        )
    },
    "nvidia_gpu_exporter": REPO / "lab/gpu/bin/nvidia_gpu_exporter",
    "grafana": REPO / "lab/grafana/bin/grafana",
}
# How long a program counts as unavailable: a machine without internet seldom gets it within the day, and every `make dev` would
# wait for the answer.
RETRY_S = 24 * 3600
REFUSED = "NO_STAND_INS"
_CHECKOUT = "GPU_FLEET_CHECKOUT"  # whose stand-ins the programs of the PULUMI_HOME become: the cache is shared by checkouts


def install(names: Collection[str], *, quiet: bool = False, retry_upstream: bool = False, keep_go_caches: bool = False) -> None:
    """Installs real programs where available, and prints which stand-ins replace the others. `quiet`: only what changed. Raises
    ToolchainError."""
    progress = Progress(quiet=quiet)
    file = Cache().root / "stand-ins.json"
    noted = {} if retry_upstream else _read(file)
    fresh = {
        name: why
        for name, (why, at) in noted.items()
        if name in STAND_INS and time.time() - at < RETRY_S and toolchain.located(name) is None
    }
    missing: dict[str, str] = {}
    if wanted := [name for name in names if name not in fresh]:
        installer = Installer(progress=progress, retry_upstream=retry_upstream, keep_go_caches=keep_go_caches, of_lab=True)
        missing = installer.install(wanted, optional=STAND_INS)
    now = time.time()
    for name, why in {**{name: why for name, why in fresh.items() if name in names}, **missing}.items():
        text = f"stand-in {STAND_INS[name].relative_to(REPO)}: {why}"
        progress.line(PROGRAMS[name].title, text, is_installed=name in fresh)
    if missing:
        _write(file, {**{name: noted[name] for name in fresh}, **{name: (why, now) for name, why in missing.items()}})


def find(name: str) -> Path:
    """The program, or its stand-in where it is not installed. Raises NotInstalled for one that has none."""
    return in_use().get(name) or toolchain.find(name)


def in_use() -> dict[str, Path]:
    """The stand-ins of programs that are not installed. Raises ToolchainError where none may be used (`make test OFFICIAL=1`)."""
    found = {name: path for name, path in STAND_INS.items() if toolchain.located(name) is None}
    if found and os.environ.get(REFUSED) == "1":
        raise ToolchainError(
            f"{REFUSED}=1 refuses stand-ins, and these programs are not installed: {', '.join(found)}.\n"
            f"Install them: python -m gpu_fleet.toolchain install --retry-upstream {' '.join(found)}"
        )
    return found


def environment(*stacks: str) -> dict[str, str]:
    """The toolchain's, with stand-ins for what it lacks. `stacks`: those that may use them; default: as inherited."""
    real, cache, replaced = toolchain.environment(), Cache(), in_use()
    home = cache.root / "lab-pulumi-home"
    plugins = {name: program.plugin for name, program in PROGRAMS.items() if program.plugin}
    there = [name for name in plugins if name in replaced or toolchain.located(name)]
    place(home, {plugins[name]: (name, _target(name, replaced)) for name in there})
    keep_no_logs(home)
    grafana = [str(replaced["grafana"].parent)] if "grafana" in replaced else []
    return {
        **real,
        "PATH": os.pathsep.join(dict.fromkeys([*grafana, *real["PATH"].split(os.pathsep)])),
        "PULUMI_HOME": str(home),
        _CHECKOUT: str(REPO),
        LAB_STACKS: ",".join(stacks) or os.environ.get(LAB_STACKS, ""),
    }


def gather(directory: Path, names: Collection[str] = HOST_PROGRAMS, *, present: Mapping[str, str] = MappingProxyType({})) -> None:
    """A directory of artifacts for simulated hosts: releases where they are installed, else builds of another version and
    stand-ins, marked as such. Raises ToolchainError.

    `present`: where the hosts have programs already, by name. What is placed then starts those: Alloy's 400 MB would be sent to
    and unpacked on each host, and hashed, for 1.75 s of CPU, whenever a host is checked.
    """
    programs, simulated = {}, []
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            archive = Path(scratch) / f"{name}.tar.gz"
            if name in present:
                simulated.append(name)
                program = Path(scratch, name)
                program.write_text(f'#!/bin/sh\nexec {shlex.quote(present[name])} "$@"\n')
            else:
                try:
                    program = artifact_of(name, release_of(name), archive)
                except ToolchainError:
                    if name in STAND_INS and os.environ.get(REFUSED) == "1":
                        raise
                    simulated.append(name)
                    program = pack_grafana(archive) if name == "grafana" else find(name)
            programs[name] = {architecture(): program}
        fill(directory, programs, simulated=simulated)


def _target(name: str, replaced: Mapping[str, Path]) -> str:
    """What the program of a PULUMI_HOME becomes, as shell text."""
    if name in replaced:
        return f'"${{{_CHECKOUT}:?}}/{replaced[name].relative_to(REPO)}"'
    return shlex.quote(str(toolchain.find(name)))


def keep_no_logs(home: Path) -> None:
    """Pulumi compresses a log of every property of every resource in each run: half of the engine's CPU seconds, and half a
    gigabyte after an hour of tests. There is no switch; where it cannot write the log it runs without (pulumi 3.259.0,
    pkg/logging/encrypted.go and pkg/cmd/pulumi/pulumi.go, read 2026-11-22).
    """
    logs = home / "logs"
    if logs.is_dir():
        shutil.rmtree(logs, ignore_errors=True)
    if not logs.exists():
        logs.touch()


def _read(file: Path) -> dict[str, tuple[str, float]]:
    """Name to why it was unavailable, and when (Unix time)."""
    try:
        return {name: (str(why), float(at)) for name, (why, at) in json.loads(file.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write(file: Path, noted: Mapping[str, tuple[str, float]]) -> None:
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.write_text(json.dumps(noted, indent=2) + "\n")
    fresh.rename(file)
