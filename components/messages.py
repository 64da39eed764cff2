"""What this program says to people through Pulumi: warnings, errors, and the exception that it ends with, which Pulumi's language
host passes on the same way. They quote stack files, inventories and other files, and nothing in those is a command.

The official plugins have messages of their own, which reach the engine without us."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pulumi

from gpu_fleet.safetext.terminal import printable


@functools.cache
def make_messages_safe() -> None:
    """Once, before anything is read.

    The SDK's own debug lines are left out: a dozen for each resource, of which the engine is sent every one, asked for or not
    (--debug). With 1,000 hosts they were a third of what this program costs (https://github.com/pulumi/pulumi/issues/7292)."""
    for name in ("info", "warn", "error"):
        setattr(pulumi.log, name, _safe(getattr(pulumi.log, name)))
    pulumi.log.debug = _left_out


def _safe(log: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(log)  # with its parameters, for which sdk_patches.py looks
    def safe(msg: str, *arguments: Any, **options: Any) -> None:
        log(printable(str(msg)), *arguments, **options)

    return safe


def _left_out(*_: object, **__: object) -> None:
    pass
