"""Sections that lack their counterpart: the stack deploys, but alerts or dashboards stay without data."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.problems import Problem
from gpu_fleet.stackfile.validation.subject import Stack
from gpu_fleet.stackfile.values import ruler_of


def check(stack: Stack) -> Iterator[Problem]:
    """Adds warnings, no problems."""
    rulers = stack.file.rulers
    if "rulers" in stack.broken or (rulers and rulers.mimir):
        return
    cluster = stack.file.kubernetes
    has_rules = cluster is not None and cluster.prometheus_operator != "none" and cluster.prometheus_rules is not False
    metrics, grafana = stack.file.metrics, stack.file.grafana
    if metrics and not ruler_of(metrics.url) and "metrics" not in stack.broken:
        stack.listing.warnings.append(
            f"{PROJECT}:metrics.url: {metrics.url} has no ruler that this stack could write rules to. Load them there: "
            "`make rules FOR=prometheus STACK=s` writes the recording rules that dashboards and alerts need, the alerts and the "
            "inventory"
        )
        return
    if stack.has_hosts or (cluster and not has_rules):
        _warn(stack, "has no mimir, so a host or node that never reports raises no alert: the ruler has no inventory")
    if grafana and grafana.metrics_data_source is None:
        _warn(stack, "has no mimir, so nothing records the series that the dashboards show, and they stay empty")
    yield from ()


def _warn(stack: Stack, what: str) -> None:
    stack.listing.warnings.append(f"{PROJECT}:rulers: {what}. Add to the stack file:\n{_lines(stack)}")


def _lines(stack: Stack) -> str:
    """The missing section, with the server of gpu-fleet:metrics where there is one."""
    metrics = stack.file.metrics
    values = {
        "url": (metrics and ruler_of(metrics.url)) or "https://mimir.example.com",
        "tenant": metrics.tenant if metrics else None,
        "username": metrics.username if metrics else None,  # its password is a secret of its own, rulersPassword
    }
    text = ", ".join(f"{key}: {value}" for key, value in values.items() if value)
    if stack.file.rulers and stack.file.rulers.loki:
        return f"  {PROJECT}:rulers:\n    mimir: {{{text}}}"
    return f"  {PROJECT}:rulers: {{mimir: {{{text}}}}}"
