"""What a stand-in's resources take and give: the data behind GetSchema, and behind Check, which refuses everything else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.standins.properties import UNKNOWN, Properties, Secret


@dataclass(frozen=True)
class ListOf:
    item: Type


@dataclass(frozen=True)
class MapOf:
    value: Type


@dataclass(frozen=True)
class Object:
    """A nested type; its properties have the names of the schema, in camelCase."""

    name: str
    properties: Mapping[str, Property]


# A string names a type of the schema language: string, number, integer, boolean.
Type = str | ListOf | MapOf | Object


@dataclass(frozen=True, kw_only=True)
class Property:
    """`replaces`: a change needs a new resource. `values`: all it may be; empty for no limit."""

    type: Type = "string"
    required: bool = False
    secret: bool = False
    replaces: bool = False
    default: Any = None
    values: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Problem:
    """`path`: of the value, as the engine writes paths; starts with the name of an input."""

    path: str
    reason: str


def problems(properties: Mapping[str, Property], value: Properties, where: str, at: str = "") -> Iterator[Problem]:
    """Everything that is wrong with an object; no value is ever repeated, since it may be secret."""
    for name in value:
        if name not in properties and not name.startswith("__"):  # __defaults, __meta: the bridge's own, in states it wrote
            yield Problem(_under(at, name), f"Unrecognized field '{name}' on '{where}'. It has: {', '.join(sorted(properties))}")
    for name, expected in properties.items():
        if value.get(name) is None:
            if expected.required:
                yield Problem(_under(at, name), f"Missing required field '{name}' on '{where}'")
        else:
            yield from _problems_of(expected.type, value[name], _under(at, name), expected.values)


def _problems_of(expected: Type, value: Any, path: str, values: tuple[str, ...] = ()) -> Iterator[Problem]:
    value = value.value if isinstance(value, Secret) else value
    if value == UNKNOWN or value is None:
        return
    if not _is_a(expected, value):
        yield Problem(path, f"Field '{path}' must be {_in_words(expected)}; got {_in_words(_type_of(value))} instead")
    elif values and value not in values:
        yield Problem(path, f"Field '{path}' must be one of {', '.join(values)}")
    elif isinstance(expected, Object):
        yield from problems(expected.properties, value, expected.name, path)
    elif isinstance(expected, ListOf):
        for index, item in enumerate(value):
            yield from _problems_of(expected.item, item, f"{path}[{index}]")
    elif isinstance(expected, MapOf):
        for key, item in value.items():
            yield from _problems_of(expected.value, item, _under(path, key))


def _is_a(expected: Type, value: Any) -> bool:
    match expected:
        case ListOf():
            return isinstance(value, list)
        case MapOf() | Object():
            return isinstance(value, dict)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, int | float) and not isinstance(value, bool)


def _type_of(value: Any) -> Type:
    match value:
        case list():
            return ListOf("any")
        case dict():
            return MapOf("any")
        case bool():
            return "boolean"
        case str():
            return "string"
    return "number"


def _in_words(type: Type) -> str:
    match type:
        case ListOf():
            return "a list"
        case MapOf() | Object():
            return "an object"
        case "integer":
            return "an integer"
    return f"a {type}"


def _under(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def completed(properties: Mapping[str, Property], value: Properties) -> Properties:
    """The inputs with defaults filled in and secrets marked, at every depth; what has no value is left out."""
    result = {}
    for name, given in value.items():
        if given is not None:
            result[name] = _completed(properties[name], given) if name in properties else given
    for name, expected in properties.items():
        if name not in result and expected.default is not None:
            result[name] = expected.default
    return result


def _completed(expected: Property, value: Any) -> Any:
    was_secret = isinstance(value, Secret)
    value = _completed_as(expected.type, value.value if isinstance(value, Secret) else value)
    return Secret(value) if was_secret or expected.secret else value


def _completed_as(type: Type, value: Any) -> Any:
    match type, value:
        case _, Secret():
            return Secret(_completed_as(type, value.value))
        case Object(), dict():
            return completed(type.properties, value)
        case ListOf(), list():
            return [_completed_as(type.item, item) for item in value]
        case MapOf(), dict():
            return {key: _completed_as(type.value, item) for key, item in value.items()}
    return value


def specification(properties: Mapping[str, Property], required: str, types: dict[str, Any]) -> dict[str, Any]:
    """The properties in the language of Pulumi's schema; the nested types they need are added to `types`."""
    specified = {}
    for name, expected in properties.items():
        entry = _reference(expected.type, types)
        if expected.secret:
            entry["secret"] = True
        if expected.replaces:
            entry["replaceOnChanges"] = True
        if expected.default is not None:
            entry["default"] = expected.default
        specified[name] = entry
    needed = sorted(name for name, expected in properties.items() if expected.required)
    return {"properties" if required == "required" else "inputProperties": specified, required: needed}


def _reference(type: Type, types: dict[str, Any]) -> dict[str, Any]:
    match type:
        case ListOf():
            return {"type": "array", "items": _reference(type.item, types)}
        case MapOf():
            return {"type": "object", "additionalProperties": _reference(type.value, types)}
        case Object():
            if type.name not in types:
                types[type.name] = {}  # before its properties: a policy holds policies
                types[type.name] = {"type": "object", **specification(type.properties, "required", types)}
            return {"$ref": f"#/types/{type.name}"}
    return {"type": type}
