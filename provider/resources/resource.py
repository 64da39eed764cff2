"""What every resource type offers, and the words it answers in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from provider.schema import Mistake
from provider.values import UNKNOWN

Inputs = Mapping[str, Any]
Outputs = dict[str, Any]


@dataclass(frozen=True)
class Checked:
    """The inputs as they go into the state: `changed` values replace or join those given, `dropped` ones are left out."""

    changed: Mapping[str, Any] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    mistakes: tuple[Mistake, ...] = ()


@dataclass(frozen=True)
class Change:
    """One difference. `path` as the engine writes property paths; `of_inputs` is False for one that only outputs show."""

    path: str
    kind: Literal["add", "update", "delete"]
    replaces: bool = False
    of_inputs: bool = True


@dataclass(frozen=True)
class Current:
    """What a resource is now. `id` is empty when it does not exist any more; `inputs` and `outputs` None: as in the state."""

    id: str
    outputs: Outputs | None = None
    inputs: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Call:
    """One operation as a resource sees it: `tell` reports progress, `note` and `warn` leave a line for good."""

    urn: str
    is_preview: bool
    timeout_s: float | None
    tell: Callable[[str], None]
    note: Callable[[str], None]
    warn: Callable[[str], None]


@dataclass
class ResourceError(Exception):
    """Something a person can mend; nothing was changed."""

    message: str

    def __str__(self) -> str:
        return self.message


@dataclass
class Unhealthy(Exception):
    """The resource is there and not as it should be: it stays in the state, the next `up` tries again, deletion cleans up."""

    id: str
    outputs: Outputs
    reason: str

    def __str__(self) -> str:
        return self.reason


class Resource(Protocol):
    """One resource type. Inputs reach every method but `check` as `check` left them."""

    type_name: str
    replaces_by_deleting_first: bool

    def check(self, inputs: Inputs) -> Checked: ...
    async def diff(self, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> list[Change]: ...
    async def create(self, inputs: Inputs, call: Call) -> tuple[str, Outputs]: ...
    async def read(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> Current: ...
    async def update(self, id_: str, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> Outputs: ...
    async def delete(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> None: ...


def changes(old: Inputs, new: Inputs, path: str = "") -> Iterator[Change]:
    """Every difference between two objects, down to single values; an unknown value may always be another one."""
    for key in sorted({*old, *new}):
        here, before, after = property_path(path, key), old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from changes(before, after, here)
        elif after is UNKNOWN or before != after:
            yield Change(here, "add" if before is None else "delete" if after is None else "update")


def property_path(parent: str, key: str) -> str:
    """`connection.port`, `files["/etc/x"]`."""
    if re.fullmatch(r"[A-Za-z_$][\w$]*", key):
        return f"{parent}.{key}" if parent else key
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'{parent}["{escaped}"]'
