"""Readiness of Kubernetes nodes needs a cluster, and a store that answers queries."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_fleet.stackfile.problems import Problem
from gpu_fleet.stackfile.validation.subject import Stack, problem


def check(stack: Stack) -> Iterator[Problem]:
    section, metrics = stack.file.readiness, stack.file.metrics
    if section is None or "readiness" in stack.broken:
        return
    if stack.is_absent("kubernetes"):
        for key in sorted({"kubernetes", "image"} & section.model_fields_set):
            yield problem(
                f"readiness.{key}",
                "has no effect: the stack has no Kubernetes cluster",
                fix="remove it, or add gpu-fleet:kubernetes",
            )
    elif "kubernetes" not in stack.broken and "metrics" not in stack.broken and (metrics is None or metrics.queries is None):
        fix = "add it: the URL of the server that answers queries and has the results of our rules, or remove gpu-fleet:readiness"
        yield problem(
            "metrics.queryUrl", "is missing, and the readiness of Kubernetes nodes is what the store knows of them", fix=fix
        )
