"""What is kept: one JSON file, written whole and atomically. It holds secrets, so only its owner reads it."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import secrets
from pathlib import Path
from typing import Any

# How long a change may wait for others while the server runs: a destroy deletes two hundred things from a file of megabytes.
SAVED_WITHIN_S = 0.25
DEFAULT_RECEIVER = "grafana-default-email"
DEFAULT_POLICY = {"receiver": DEFAULT_RECEIVER, "group_by": ["grafana_folder", "alertname"]}


def _empty() -> dict[str, Any]:
    """A new Grafana: no folders, and the default contact point and policy that every organisation has."""
    return {
        "last_id": 0,
        "folders": {},
        "dashboards": {},
        "datasources": {},
        "rule_groups": {},
        "contact_points": [
            {"uid": "", "name": DEFAULT_RECEIVER, "type": "email", "settings": {"addresses": "<example@email.com>"}}
        ],
        "policy": dict(DEFAULT_POLICY),
        "mute_timings": {},
        "templates": {},
    }


class Store:
    """`data` may be changed freely between two saves; whoever changes it calls `save`.

    Raises ValueError for a file that is no JSON, OSError for one that cannot be read or made.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            kept = json.loads(file.read_text()) if file.exists() else {}
        except ValueError as error:
            raise ValueError(f"{file} is no JSON ({error}); move it away to start with nothing") from None
        self.data: dict[str, Any] = {**_empty(), **kept}
        self._due: asyncio.TimerHandle | None = None

    def save(self) -> None:
        """Soon: the server writes several changes at once. It calls `write` when it ends."""
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(SAVED_WITHIN_S, self.write)

    def write(self) -> None:
        if self._due is None:
            return
        self._due.cancel()
        self._due = None
        new = self._file.with_suffix(".new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(json.dumps(self.data))  # json.dump encodes in Python, ten times slower
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(self._file)

    def next_id(self) -> int:
        self.data["last_id"] += 1
        return self.data["last_id"]


def new_uid() -> str:
    return secrets.token_hex(7)  # Grafana's own have 14 characters


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
