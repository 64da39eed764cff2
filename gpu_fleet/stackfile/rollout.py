"""The section about staged rollouts: which hosts are changed first, and when the others follow."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, PlainValidator, WithJsonSchema

from gpu_fleet.stackfile.patterns import expand
from gpu_fleet.stackfile.problems import shown
from gpu_fleet.stackfile.values import Section, duration, duration_s, refuse

_CANARY = "how many hosts, 1 or more, or their names and patterns: [gpu-node-001, gpu-node-[010:012]]"
_BATCH = "how many hosts, 1 or more, or a percentage of them from 1% to 100%"


def _canary(value: Any) -> int | tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        return tuple(names)
    raise refuse(f"found {shown(value)}", expected=_CANARY, fix="write for example `canary: 1`")


def _batch(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if isinstance(value, str) and re.fullmatch(r"([1-9]\d?|100)%", value):
        return value
    raise refuse(f"found {shown(value)}", expected=_BATCH, fix="write for example `batch: 10%`")


_COUNT = {"type": "integer", "minimum": 1}
_CanaryHosts = Annotated[
    int | tuple[str, ...],
    PlainValidator(_canary),
    WithJsonSchema(
        {"anyOf": [_COUNT, {"type": "string"}, {"type": "array", "items": {"type": "string"}}], "x-expected": _CANARY}
    ),
]
_BatchSize = Annotated[
    int | str,
    PlainValidator(_batch),
    WithJsonSchema({"anyOf": [_COUNT, {"type": "string", "pattern": r"^([1-9]\d?|100)%$"}], "x-expected": _BATCH}),
]


class Rollout(Section):
    """Which hosts are changed first, and when the others follow. Default: all at once."""

    canary: _CanaryHosts | None = None
    """The hosts that are changed first: how many, or which. When one of them fails, no other host is touched."""
    batch: _BatchSize = "100%"
    """How many of the others are changed at a time: a number, or a percentage of them."""
    max_failures: int = Field(default=0, ge=0)
    """How many hosts of the batches may fail before the batches that follow are held back."""
    pause: Annotated[str, *duration("0s", "24h", "2m")] = "0s"
    """How long to wait after a wave that changed something before the next begins."""

    @property
    def pause_s(self) -> int:
        return round(duration_s(self.pause) or 0)

    def canaries(self, hosts: Sequence[str]) -> list[str]:
        """Those of the hosts that are changed first; a name that is not a host is left in, for a check to find."""
        if isinstance(self.canary, int):
            return list(hosts[: self.canary])
        return list(dict.fromkeys(name for pattern in self.canary or () for name in expand(pattern)))

    def waves(self, hosts: Sequence[str]) -> list[list[str]]:
        """The waves in order; none is empty."""
        first = [name for name in self.canaries(hosts) if name in set(hosts)]
        rest = [name for name in hosts if name not in set(first)]
        size = self.batch if isinstance(self.batch, int) else math.ceil(len(rest) * int(self.batch[:-1]) / 100)
        batches = [rest[start : start + size] for start in range(0, len(rest), size or 1)]
        return [wave for wave in (first, *batches) if wave]
