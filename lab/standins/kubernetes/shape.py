"""What of a live object a program is answerable for: the fields it gave, as they are now."""

from __future__ import annotations

from typing import Any


def like(given: Any, live: Any) -> Any:
    """`live`, of its objects only the keys that `given` has. Lists of another length are taken as they are."""
    match given, live:
        case dict(), dict():
            return {key: like(value, live[key]) for key, value in given.items() if key in live}
        case list(), list() if len(given) == len(live):
            return [like(one, other) for one, other in zip(given, live, strict=True)]
    return live
