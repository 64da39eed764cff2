"""The package's schema, and validation of inputs against it: Check accepts what the schema says, and there is no second list."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gpu_fleet.provider.values import UNKNOWN

SCHEMA_FILE = Path(__file__).parent / "schema.json"
_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}


@dataclass(frozen=True)
class InputError:
    """One invalid input. `path` as in `connection.port`."""

    path: str
    reason: str


@cache
def schema() -> Mapping[str, Any]:
    document: Mapping[str, Any] = json.loads(SCHEMA_FILE.read_text())
    return document


def errors_of_inputs(type_name: str, inputs: Mapping[str, Any]) -> list[InputError]:
    """All errors in a resource's inputs: unknown keys, missing keys, wrong types. Unknown values match any type."""
    definition = schema()["resources"][type_name]
    return list(_object_errors("", definition["inputProperties"], definition.get("requiredInputs", ()), inputs))


def errors_of_config(config: Mapping[str, Any]) -> list[InputError]:
    """The same for the provider's configuration. Unknown keys are accepted: the project has the package's name, so the engine
    passes the whole stack file to a default provider."""
    known = schema()["provider"]["inputProperties"]
    return list(_object_errors("", known, (), {key: value for key, value in config.items() if key in known}))


def secret_config() -> frozenset[str]:
    return frozenset(name for name, given in schema()["provider"]["inputProperties"].items() if given.get("secret"))


def _object_errors(
    path: str, properties: Mapping[str, Any], required: tuple[str, ...] | list[str], values: Mapping[str, Any]
) -> Iterator[InputError]:
    below = f"{path}." if path else ""
    for name, value in values.items():
        if name.startswith("__") or value is None:
            continue
        if name in properties:
            yield from _value_errors(below + name, properties[name], value)
        else:
            near = difflib.get_close_matches(name, properties, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known inputs: {', '.join(sorted(properties))}"
            yield InputError(below + name, f"unknown input; {hint}")
    for name in required:
        if values.get(name) is None:
            yield InputError(below + name, "is missing")


def _value_errors(path: str, definition: Mapping[str, Any], value: Any) -> Iterator[InputError]:
    if value is UNKNOWN:
        return
    if "$ref" in definition:
        definition = schema()["types"][definition["$ref"].removeprefix("#/types/")]
    kind: str = definition["type"]
    is_valid = isinstance(value, _PYTHON_TYPES[kind]) and not (kind == "integer" and isinstance(value, bool))
    if not is_valid:
        yield InputError(path, f"must be {'an' if kind[0] in 'aio' else 'a'} {kind}, not {_name_of(value)}")
    elif "enum" in definition and value not in (allowed := [item["value"] for item in definition["enum"]]):
        yield InputError(path, f'found "{value}", expected one of {", ".join(allowed)}')
    elif kind == "array":
        for index, item in enumerate(value):
            yield from _value_errors(f"{path}[{index}]", definition["items"], item)
    elif kind == "object" and "additionalProperties" in definition:
        for key, item in value.items():
            yield from _value_errors(f'{path}["{key}"]', definition["additionalProperties"], item)
    elif kind == "object":
        yield from _object_errors(path, definition["properties"], definition.get("required", ()), value)


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
