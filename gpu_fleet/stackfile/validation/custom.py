"""The directory of a stack's own rules and dashboards: its files have names that are loaded, and the stack loads them.

Not done here: what is in the files (signals).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gpu_fleet.stackfile.custom import CONTENT, METRICS, files_of
from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.problems import Problem, listed, nearest, why_unreadable
from gpu_fleet.stackfile.validation.subject import Stack, problem
from gpu_fleet.stackfile.values import local_path

_KEY = "custom.directory"
# A file of rules becomes a PrometheusRule object: gpu-fleet-custom-NAME, at most 63 characters.
_FILE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,44}[a-z0-9])?")


def check(stack: Stack) -> Iterator[Problem]:
    if stack.file.custom is None or "custom" in stack.broken:
        return
    text = stack.file.custom.directory
    directory = local_path(stack.listing.base, text)
    try:
        entries = sorted(directory.iterdir())
    except OSError as error:
        what = "is not a directory" if isinstance(error, NotADirectoryError) else why_unreadable(error)
        yield problem(_KEY, f"{text} {what}", fix="create it, or correct the path: it starts in the directory of Pulumi.yaml")
        return
    known = [*CONTENT, METRICS]
    for entry in entries:
        if entry.name.startswith((".", "README")):
            continue
        if entry.name not in known:
            meant = nearest(entry.name, known)
            fix = f"rename it to {meant}" if meant else "move it elsewhere"
            yield problem(_KEY, f"{text}/{entry.name} is not loaded", listed(known, "and"), fix)
    for kind in CONTENT:
        yield from _names(text, directory, kind)
    if not any(files_of(directory, kind) for kind in CONTENT):
        yield problem(_KEY, f"{text} has neither rules nor dashboards", listed(f"{kind}/*{end}" for kind, end in CONTENT.items()))
    yield from _uses(stack, directory)


def _names(text: str, directory: Path, kind: str) -> Iterator[Problem]:
    for file in sorted((directory / kind).glob("*")):
        if file.suffix != CONTENT[kind]:
            yield problem(_KEY, f"{text}/{kind}/{file.name} is not loaded", f"files that end with {CONTENT[kind]}", "rename it")
        elif kind != "dashboards" and not _FILE_NAME.fullmatch(file.stem):
            expected = "lower-case letters, digits and -, at most 46 characters"
            yield problem(_KEY, f"{text}/{kind}/{file.name}: the name is part of a Kubernetes name", expected, "rename it")


def _uses(stack: Stack, directory: Path) -> Iterator[Problem]:
    """Files that nothing of this stack loads."""
    file = stack.file
    shows = file.grafana or (file.kubernetes and file.kubernetes.sidecar_dashboards)
    loads = {
        "rules": file.alerts or "alerts" in stack.broken,
        "loki": (file.alerts and file.rulers and file.rulers.loki) or stack.broken & {"alerts", "rulers"},
        "dashboards": shows or stack.broken & {"grafana", "kubernetes"},
    }
    needs = {
        "rules": f"{PROJECT}:alerts",
        "loki": f"{PROJECT}:alerts and {PROJECT}:rulers.loki",
        "dashboards": f"{PROJECT}:grafana or {PROJECT}:kubernetes.sidecarDashboards",
    }
    for kind, is_loaded in loads.items():
        if files_of(directory, kind) and not is_loaded:
            fix = f"add {needs[kind]}, or keep these files for the stack that has it"
            yield problem(_KEY, f"has {kind}/*{CONTENT[kind]}, which nothing in this stack loads", fix=fix)
