"""The interface of every resource type, and the types of its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from gpu_fleet.provider.schema import InputError
from gpu_fleet.provider.values import UNKNOWN, property_path

Inputs = Mapping[str, Any]
Outputs = dict[str, Any]


@dataclass(frozen=True)
class Checked:
    """The inputs as they are stored in the state: `changed` values replace or extend the given ones, `dropped` ones are left
    out."""

    changed: Mapping[str, Any] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    errors: tuple[InputError, ...] = ()


@dataclass(frozen=True)
class Change:
    """One difference. `path` in the engine's property path syntax; `of_inputs` is False for a difference of outputs."""

    path: str
    kind: Literal["add", "update", "delete"]
    replaces: bool = False
    of_inputs: bool = True


@dataclass(frozen=True)
class Current:
    """What Read found. `id` is empty when the resource no longer exists; `inputs` and `outputs` None: as in the state."""

    id: str
    outputs: Outputs | None = None
    inputs: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Call:
    """One operation as a resource sees it. `progress` lines replace each other, `info` and `warning` lines stay. `sending`
    says what is about to be changed and what to do when the call is stopped before the answer: until then it has changed
    nothing."""

    urn: str
    is_preview: bool
    timeout_s: float | None
    progress: Callable[[str], None]
    info: Callable[[str], None]
    warning: Callable[[str], None]
    sending: Callable[[str, str], None]


@dataclass
class ResourceError(Exception):
    """An error that the user can fix. Nothing was changed, or the message says what was."""

    message: str

    def __str__(self) -> str:
        return self.message


@dataclass
class Unhealthy(Exception):
    """The resource exists and is not as declared: it stays in the state, the next `up` retries, deletion cleans up."""

    id: str
    outputs: Outputs
    reason: str

    def __str__(self) -> str:
        return self.reason


class Resource(Protocol):
    """One resource type. Every method but `check` gets the inputs as `check` returned them."""

    type_name: str
    replaces_by_deleting_first: bool

    def check(self, inputs: Inputs) -> Checked: ...
    async def diff(self, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> list[Change]: ...
    async def create(self, inputs: Inputs, call: Call) -> tuple[str, Outputs]: ...
    async def read(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> Current: ...
    async def update(self, id_: str, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> Outputs: ...
    async def delete(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> None: ...


def changes(old: Inputs, new: Inputs, path: str = "") -> Iterator[Change]:
    """Every difference between two objects, down to single values; an unknown value always counts as one."""
    for key in sorted({*old, *new}):
        here, before, after = property_path(path, key), old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from changes(before, after, here)
        elif after is UNKNOWN or before != after:
            yield Change(here, "add" if before is None else "delete" if after is None else "update")
