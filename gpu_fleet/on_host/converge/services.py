"""The service manager of a host, as the rest of the program sees it."""

from __future__ import annotations

import abc
from typing import NamedTuple, Sequence

SUPERVISOR_CONFIG = "/etc/gpu-fleet/supervisord.conf"
MOST_RESTARTS = 5  # of a service that is waited for; more restarts will not help


class End(NamedTuple):
    """Exit status and last words of a unit's program; empty: unknown."""

    status: str = ""
    words: str = ""


class Override(NamedTuple):
    """What else changes a unit and stays: a foreign drop-in, and its settings."""

    path: str
    settings: str


class Waiting:
    """What a wait for units has seen of them. `gave_up`: one will not be started again."""

    def __init__(self) -> None:
        self.gave_up = False
        self.runs: set[str] = set()
        self.seen: set[str] = set()
        self.restarts = 0


class Services(abc.ABC):
    """Units are named without suffix; `type` is `service` or `timer`. `started`: this run started the manager, and with it all
    units. `definitions_change`: this part has changed what `definitions` reads, `has_read`: and it has read that."""

    name = ""

    def __init__(self) -> None:
        self.started = False
        self.definitions_change = False
        self.has_read = False

    @abc.abstractmethod
    def missing(self, changing: Sequence[str]) -> str:
        """Why the manager itself cannot be used now. `changing`: paths of files that this run is about to place."""

    @abc.abstractmethod
    def prepare(self) -> None:
        """Starts it."""

    @abc.abstractmethod
    def definitions(self, units: Sequence[tuple[str, str]] = ()) -> None:
        """Makes it read the changed unit files of these units, and forget those that were removed. Raises Pending where that
        would harm somebody."""

    @abc.abstractmethod
    def difference(self, unit: str, type: str) -> str:
        """How the unit differs from enabled and running."""

    @abc.abstractmethod
    def is_running(self, unit: str, type: str) -> bool: ...

    @abc.abstractmethod
    def enable(self, unit: str, type: str) -> None:
        """Before the three below; `definitions` comes between."""

    @abc.abstractmethod
    def start(self, unit: str, type: str) -> None: ...

    @abc.abstractmethod
    def restart(self, unit: str, type: str) -> None: ...

    @abc.abstractmethod
    def reload(self, unit: str, type: str) -> None: ...

    @abc.abstractmethod
    def stop(self, unit: str, type: str) -> None: ...

    @abc.abstractmethod
    def is_steady(self, unit: str, type: str, waiting: Waiting) -> bool:
        """Runs, and has not just been restarted."""

    @abc.abstractmethod
    def leave(self) -> None:
        """Called when the last of our units was removed."""

    @abc.abstractmethod
    def log(self, unit: str) -> list[str]:
        """Its last lines."""

    @abc.abstractmethod
    def end(self, unit: str) -> End: ...

    def override_directories(self, unit: str, type: str) -> list[str]:
        """Drop-in directories, where other files could change the unit; these are removed."""
        return []

    def harm(self, units: Sequence[tuple[str, str]]) -> str:
        """Whom reading changed unit files of these units would harm, after `difference`."""
        return ""

    def has_unread(self, units: Sequence[tuple[str, str]]) -> bool:
        """Are the files of these units newer than what it has read?"""
        return False

    def overrides(self, unit: str, type: str) -> list[Override]:
        """What else changes the unit, after `difference`."""
        return []


def last_words(text: str) -> str:
    """Of the lines of a log the last, but none about what went well: a program that was started again meanwhile has written fifty
    of them since it said why it ended."""
    last = said = ""
    for line in text.split("\n"):
        if line.strip():
            last = line
            if not any(f"level={level}" in line for level in ("info", "INFO", "debug", "DEBUG")):
                said = line
    return said or last
