"""What of a live object a program is answerable for: the fields it gave, as they are now."""

from __future__ import annotations

import base64
from typing import Any


def like(given: Any, live: Any) -> Any:
    """`live`, of its objects only the keys that `given` has. Lists of another length are taken as they are."""
    match given, live:
        case dict(), dict():
            return {key: like(value, live[key]) for key, value in given.items() if key in live}
        case list(), list() if len(given) == len(live):
            return [like(one, other) for one, other in zip(given, live, strict=True)]
    return live


def live_inputs(given: dict[str, Any], live: dict[str, Any]) -> dict[str, Any]:
    """The inputs that would give the live object. A Secret's `stringData` is written and never read: it comes from `data`."""
    found = like(given, live)
    if live.get("kind") == "Secret" and given.get("stringData"):
        data = live.get("data") or {}
        found["stringData"] = {key: base64.b64decode(data[key]).decode() for key in given["stringData"] if key in data}
    return found


def cleaned(live: dict[str, Any]) -> dict[str, Any]:
    """Without the record of who set what, which is long and of no use to a program."""
    metadata = {key: value for key, value in live["metadata"].items() if key != "managedFields"}
    return {**live, "metadata": metadata}
