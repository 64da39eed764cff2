"""What changed between the inputs of a resource and the new ones, path by path, for the engine's detailed diff."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pulumi.runtime.proto import provider_pb2

from lab.standins.properties import Properties, plain
from lab.standins.schema import Property

Kind = provider_pb2.PropertyDiff
WITH_REPLACEMENT = {Kind.ADD: Kind.ADD_REPLACE, Kind.DELETE: Kind.DELETE_REPLACE, Kind.UPDATE: Kind.UPDATE_REPLACE}


def differences(olds: Properties, news: Properties) -> dict[str, int]:
    """Path to kind (ADD, DELETE or UPDATE). That a value became secret is no change of it."""
    return dict(_object(_own(plain(olds)), _own(plain(news)), ""))


def _own(properties: Properties) -> Properties:
    return {key: value for key, value in properties.items() if not key.startswith("__") and value is not None}


def response(changes: Mapping[str, int], replacing: set[str], *, of_inputs: bool = True) -> provider_pb2.DiffResponse:
    """`replacing`: those of the paths that need a new resource. `of_inputs`: the engine shows the old value from the last inputs,
    else from the last outputs."""
    detailed = {
        path: provider_pb2.PropertyDiff(kind=WITH_REPLACEMENT[kind] if path in replacing else kind, inputDiff=of_inputs)
        for path, kind in changes.items()
    }
    return provider_pb2.DiffResponse(
        changes=provider_pb2.DiffResponse.DIFF_SOME if changes else provider_pb2.DiffResponse.DIFF_NONE,
        diffs=sorted(changes),
        replaces=sorted(replacing & changes.keys()),
        detailedDiff=detailed,
        hasDetailedDiff=True,
    )


def replacing(properties: Mapping[str, Property], changes: Mapping[str, int]) -> set[str]:
    return {path for path in changes if (top := properties.get(re.split(r"[.\[]", path)[0])) and top.replaces}


def _object(old: Mapping[str, Any], new: Mapping[str, Any], at: str) -> Iterator[tuple[str, int]]:
    for key in [*old, *(key for key in new if key not in old)]:
        path = (f"{at}.{key}" if at else key) if re.fullmatch(r"\w+", key) else f'{at}["{key}"]'
        if key not in new:
            yield path, Kind.DELETE
        elif key not in old:
            yield path, Kind.ADD
        else:
            yield from _value(old[key], new[key], path)


def _value(old: Any, new: Any, path: str) -> Iterator[tuple[str, int]]:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _object(old, new, path)
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            at = f"{path}[{index}]"
            if index >= len(new):
                yield at, Kind.DELETE
            elif index >= len(old):
                yield at, Kind.ADD
            else:
                yield from _value(old[index], new[index], at)
    else:
        yield path, Kind.UPDATE
