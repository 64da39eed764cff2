"""What waits for the embedded backend. Stacks without one import this too, and not the backend itself with its SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pulumi

if TYPE_CHECKING:
    from components.backend.backend import Backend


def once_up(backend: Backend | None, url: str) -> pulumi.Input[str]:
    """The URL, known only once the embedded backend runs: whatever uses it waits for that through its dependency."""
    return backend.ready.apply(lambda _: url) if backend else url
