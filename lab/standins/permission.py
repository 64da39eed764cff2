"""Each stand-in of a Pulumi program asks here, with the name of the stack, before it does anything for it.

A check in make or in the program alone would not do: a person may start `pulumi` in the environment of the dev stack and name
another one. The checks read the stack file, because a stand-in sees only its own part of a stack.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from pathlib import Path

from gpu_fleet.stackfile import stand_ins
from gpu_fleet.stackfile.stand_ins import StandInsRefused, is_of_lab

LAB_CLUSTER = "the lab's (`lab.kubernetes`)"


@functools.cache
def permit(program: str, stack: str) -> str:
    """Empty for a stack of the lab, else the warning of a trial. `stack`: without organization and project.

    Raises StandInsRefused.
    """
    given = os.environ.get("PULUMI_OPTION_CONFIG_FILE")  # of --config-file
    # The engine starts plugins in the directory of the program.
    return permit_all([program], stack, Path(given) if given else Path(f"Pulumi.{stack}.yaml"))


def permit_all(programs: Iterable[str], stack: str, file: Path) -> str:
    """The same for several stand-ins. `file`: the stack's."""
    if is_of_lab(stack):
        return ""
    # Not imported before they are needed: the engine waits for each plugin to start.
    from gpu_fleet.stackfile.config import ConfigErrors, hosts_of, keys_of_file
    from gpu_fleet.toolchain import PROGRAMS
    from gpu_fleet.toolchain.install import architecture

    chosen = [PROGRAMS[name] for name in programs]
    what = "the lab's stand-in of " + ", ".join(program.title for program in chosen)
    fix = "\n".join(
        [
            "Install the real one:",
            "    .venv/bin/python -m gpu_fleet.toolchain install --retry-upstream "
            + " ".join(program.name for program in chosen),
        ]
        + ["or, where upstream cannot be reached:"]
        + [f"    {program.by_hand(program.release.files[architecture()].url)}" for program in chosen]
    )
    try:
        values, secrets = keys_of_file(file) if file.is_file() else ({}, set())
        hosts = hosts_of(values, Path.cwd(), secrets).hosts.values()
    except ConfigErrors:
        hosts = []  # the program reports what is wrong and makes nothing
    warning = stand_ins.permit(stack, what, fix, hosts)
    if not file.is_file():
        raise StandInsRefused(
            f"{file}: not found. Without it, nothing shows that all of the stack is simulated, as {what} requires.\n{fix}"
        )
    if not _is_simulated_cluster(file):
        raise StandInsRefused(
            f"The stack {stack} cannot use {what}, not even with STAND_INS=1: gpu-fleet:kubernetes names a cluster that is not "
            f"{LAB_CLUSTER}.\n{fix}"
        )
    return warning


def _is_simulated_cluster(file: Path) -> bool:
    """Whether the stack has no Kubernetes cluster or one of the lab, known by the authority that signed its server."""
    import yaml

    from lab.kubernetes import kubeconfig

    config = (yaml.safe_load(file.read_text()) or {}).get("config") or {}
    if "gpu-fleet:kubernetes" not in config:
        return True
    section = config["gpu-fleet:kubernetes"] or {}
    if "gpu-fleet:kubeconfig" in config or not isinstance(section, dict):
        return False  # encrypted: it cannot be seen which cluster it is
    usual = os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config"
    return kubeconfig.is_of_lab(str(section.get("kubeconfig") or usual), str(section.get("context") or ""))
