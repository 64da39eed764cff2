"""The package's schema, and whether inputs obey it. What the schema says is what Check accepts: there is no second list."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from provider.values import UNKNOWN

SCHEMA_FILE = Path(__file__).parent / "schema.json"
_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}


@dataclass(frozen=True)
class Mistake:
    """One wrong input: `path` as in `connection.port`."""

    path: str
    reason: str


@cache
def schema() -> Mapping[str, Any]:
    document: Mapping[str, Any] = json.loads(SCHEMA_FILE.read_text())
    return document


def version() -> str:
    return str(schema()["version"])


def mistakes_of_inputs(type_name: str, inputs: Mapping[str, Any]) -> list[Mistake]:
    """Everything wrong with the inputs of a resource: unknown, missing, of another type. Unknown values are of any type."""
    definition = schema()["resources"][type_name]
    return list(_object_mistakes("", definition["inputProperties"], definition.get("requiredInputs", ()), inputs))


def mistakes_of_config(config: Mapping[str, Any]) -> list[Mistake]:
    """The same for the provider's configuration. Keys it does not know are let through: the project has the package's name, so
    the engine hands a default provider the whole stack file."""
    known = schema()["provider"]["inputProperties"]
    return list(_object_mistakes("", known, (), {key: value for key, value in config.items() if key in known}))


def secret_config() -> frozenset[str]:
    return frozenset(name for name, given in schema()["provider"]["inputProperties"].items() if given.get("secret"))


def _object_mistakes(
    path: str, properties: Mapping[str, Any], required: tuple[str, ...] | list[str], values: Mapping[str, Any]
) -> Iterator[Mistake]:
    below = f"{path}." if path else ""
    for name, value in values.items():
        if name.startswith("__") or value is None:
            continue
        if name in properties:
            yield from _mistakes(below + name, properties[name], value)
        else:
            near = difflib.get_close_matches(name, properties, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(properties))}"
            yield Mistake(below + name, f"there is no such input; {hint}")
    for name in required:
        if values.get(name) is None:
            yield Mistake(below + name, "is missing")


def _mistakes(path: str, definition: Mapping[str, Any], value: Any) -> Iterator[Mistake]:
    if value is UNKNOWN:
        return
    if "$ref" in definition:
        definition = schema()["types"][definition["$ref"].removeprefix("#/types/")]
    kind: str = definition["type"]
    is_right = isinstance(value, _PYTHON_TYPES[kind]) and not (kind == "integer" and isinstance(value, bool))
    if not is_right:
        yield Mistake(path, f"must be {'an' if kind[0] in 'aio' else 'a'} {kind}, not {_name_of(value)}")
    elif "enum" in definition and value not in (allowed := [item["value"] for item in definition["enum"]]):
        yield Mistake(path, f'"{value}" is not allowed; allowed are {", ".join(allowed)}')
    elif kind == "array":
        for index, item in enumerate(value):
            yield from _mistakes(f"{path}[{index}]", definition["items"], item)
    elif kind == "object" and "additionalProperties" in definition:
        for key, item in value.items():
            yield from _mistakes(f'{path}["{key}"]', definition["additionalProperties"], item)
    elif kind == "object":
        yield from _object_mistakes(path, definition["properties"], definition.get("required", ()), value)


def _name_of(value: Any) -> str:
    if value is None:
        return "null"
    names = (
        (bool, "a boolean"),
        (int, "a number"),
        (float, "a number"),
        (str, "a string"),
        (list, "an array"),
        (dict, "an object"),
    )
    return next(name for kind, name in names if isinstance(value, kind))
