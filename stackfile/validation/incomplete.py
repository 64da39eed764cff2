"""Sections that lack their counterpart: the stack deploys, but alerts or dashboards stay without data."""

from __future__ import annotations

from collections.abc import Iterator

from stackfile.naming import PROJECT
from stackfile.problems import Problem
from stackfile.validation.subject import Stack

_PUSH_PATH = "/api/v1/push"


def check(stack: Stack) -> Iterator[Problem]:
    """Adds warnings, no problems."""
    rulers = stack.file.rulers
    if "rulers" in stack.broken or (rulers and rulers.mimir):
        return
    if stack.has_hosts or stack.file.kubernetes:
        _warn(stack, "has no mimir, so a host or node that never reports raises no alert: the ruler has no inventory")
    if stack.file.grafana:
        _warn(stack, "has no mimir, so Grafana gets no data source for metrics and its dashboards stay empty")
    yield from ()


def _warn(stack: Stack, what: str) -> None:
    stack.listing.warnings.append(f"{PROJECT}:rulers: {what}. Add to the stack file:\n{_lines(stack)}")


def _lines(stack: Stack) -> str:
    """The missing section, with the server of gpu-fleet:metrics where there is one."""
    metrics = stack.file.metrics
    url = metrics.url.removesuffix(_PUSH_PATH) if metrics else "https://mimir.example.com"
    values = {
        "url": url,
        "tenant": metrics.tenant if metrics else None,
        "username": metrics.username if metrics else None,  # its password is a secret of its own, rulersPassword
    }
    text = ", ".join(f"{key}: {value}" for key, value in values.items() if value)
    if stack.file.rulers and stack.file.rulers.loki:
        return f"  {PROJECT}:rulers:\n    mimir: {{{text}}}"
    return f"  {PROJECT}:rulers: {{mimir: {{{text}}}}}"
