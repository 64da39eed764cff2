"""Property values as the engine sends them, and as the stand-ins see them.

Here a value is plain JSON data; a secret is Secret(value), and a value that a preview does not know yet is the string UNKNOWN.
Numbers that are whole come as int.
Source: the signatures of sdk/go/common/resource in pulumi 3.259.0. The Python SDK repeats them (runtime/rpc.py), and importing it
would cost each run of a stand-in more than all its own work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import struct_pb2

UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105  the mark of one

Properties = dict[str, Any]


@dataclass(frozen=True)
class Secret:
    value: Any

    def __repr__(self) -> str:
        return "Secret(...)"  # it must not reach a log by way of a debugging line


def decode(struct: struct_pb2.Struct) -> Properties:
    return {key: _decode(value) for key, value in struct.fields.items()}


def _decode(value: struct_pb2.Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        decoded = decode(value.struct_value)
        return Secret(decoded["value"]) if decoded.get(SIGNATURE) == SECRET else decoded
    if kind == "list_value":
        return [_decode(item) for item in value.list_value.values]
    if kind == "number_value":
        return int(value.number_value) if value.number_value.is_integer() else value.number_value
    return None if kind in (None, "null_value") else getattr(value, kind)


def encode(properties: Mapping[str, Any]) -> struct_pb2.Struct:
    """Leaves out what is None, as the official plugins do with outputs that have no value."""
    return struct_pb2.Struct(fields={key: _encode(value) for key, value in properties.items() if value is not None})


def _encode(value: Any) -> struct_pb2.Value:
    match value:
        case None:
            return struct_pb2.Value(null_value=struct_pb2.NULL_VALUE)
        case bool():
            return struct_pb2.Value(bool_value=value)
        case int() | float():
            return struct_pb2.Value(number_value=value)
        case str():
            return struct_pb2.Value(string_value=value)
        case list() | tuple():
            return struct_pb2.Value(list_value=struct_pb2.ListValue(values=[_encode(item) for item in value]))
        case dict():
            return struct_pb2.Value(struct_value=encode(value))
        case Secret():
            return struct_pb2.Value(struct_value=encode({SIGNATURE: SECRET, "value": value.value}))
    raise TypeError(f"{type(value).__name__} is no property value")


def plain(value: Any) -> Any:
    """The value without any mark of secrecy."""
    match value:
        case Secret():
            return plain(value.value)
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list():
            return [plain(item) for item in value]
    return value


def with_secrets_of(marked: Any, value: Any) -> Any:
    """`value` with the marks that `marked` has at the same places: what is secret as input stays secret as output."""
    match marked, value:
        case Secret(), _:
            return Secret(plain(with_secrets_of(marked.value, value)))
        case dict(), dict():
            return {key: with_secrets_of(marked.get(key), item) for key, item in value.items()}
        case list(), list():
            padded = marked + [None] * len(value)
            return [with_secrets_of(mark, item) for mark, item in zip(padded, value, strict=False)]
    return value


def has_unknown(value: Any) -> bool:
    match value:
        case Secret():
            return has_unknown(value.value)
        case dict():
            return any(has_unknown(item) for item in value.values())
        case list():
            return any(has_unknown(item) for item in value)
    return bool(value == UNKNOWN)
