"""Property values on the wire, and as plain Python.

Decoding drops the secret marks: whoever builds an answer starts from the request's own struct, which keeps them, or marks values
with `Secret`. Unknown values of a preview decode to UNKNOWN, whatever their type, and encode back.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.struct_pb2 import NULL_VALUE, ListValue, Struct, Value

from gpu_fleet.safetext.terminal import printable_value

# The key that marks an object as a special value, and the kinds of special values. Source: pulumi
# sdk/go/common/resource/sig/sig.go, 3.259.
_SIGNATURE: Final = "4dabf18193072939515e22adb298388d"
_SECRET: Final = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105 - the same for every secret
_OUTPUT: Final = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
# The engine writes an unknown value as one of these strings, by type. Source: pulumi sdk/go/common/resource/plugin/rpc.go, 3.259.
_UNKNOWN_STRING: Final = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"  # string
_UNKNOWNS: Final = frozenset(
    {
        _UNKNOWN_STRING,
        "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",  # bool
        "3eeb2bf0-c639-47a8-9e75-3b44932eb421",  # number
        "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",  # array
        "030794c1-ac77-496b-92df-f27374a8bd58",  # asset
        "e48ece36-62e2-4504-bad9-02848725956a",  # archive
        "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",  # object
    }
)


class _Unknown:
    """A value that is known only after the update."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()


@dataclass(frozen=True)
class Secret:
    """Encodes as a secret: the engine encrypts it in the state and never shows it."""

    value: Any


def decode(struct: Struct) -> dict[str, Any]:
    """The struct as plain Python. Whole numbers become int."""
    return {key: _decode(value) for key, value in struct.fields.items()}


def _decode(value: Value) -> Any:
    match value.WhichOneof("kind"):
        case "string_value":
            return UNKNOWN if value.string_value in _UNKNOWNS else value.string_value
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() else number
        case "bool_value":
            return value.bool_value
        case "list_value":
            return [_decode(item) for item in value.list_value.values]
        case "struct_value":
            fields = value.struct_value.fields
            if _SIGNATURE not in fields:
                return decode(value.struct_value)
            if fields[_SIGNATURE].string_value in (_SECRET, _OUTPUT):
                return _decode(fields["value"]) if "value" in fields else UNKNOWN
            raise ValueError("assets, archives and resource references are not inputs of this provider")
    return None


def encode(values: Mapping[str, Any]) -> Struct:
    return Struct(fields={key: encode_value(value) for key, value in values.items()})


def encode_value(value: Any) -> Value:
    match value:
        case None:
            return Value(null_value=NULL_VALUE)
        case _Unknown():
            return Value(string_value=_UNKNOWN_STRING)
        case Secret():
            return _secret(encode_value(value.value))
        case bool():
            return Value(bool_value=value)
        case int() | float():
            return Value(number_value=value)
        case str():
            return Value(string_value=value)
        case Mapping():
            return Value(struct_value=encode(value))
        case list() | tuple():
            return Value(list_value=ListValue(values=[encode_value(item) for item in value]))
    raise TypeError(f"{type(value).__name__} is not a property value")


def _secret(value: Value) -> Value:
    return Value(struct_value=Struct(fields={_SIGNATURE: Value(string_value=_SECRET), "value": value}))


def replace_value(struct: Struct, key: str, value: Any) -> None:
    """Sets `key`, keeping the secret mark of the previous value."""
    encoded = encode_value(value)
    was_secret = key in struct.fields and is_secret(struct.fields[key])
    struct.fields[key].CopyFrom(_secret(encoded) if was_secret and not is_secret(encoded) else encoded)


def safe_to_show(struct: Struct, known: Collection[str]) -> Struct:
    """The struct with every key and text as printable_value writes it, but for those in `known`, which the engine gave."""
    return Struct(fields={printable_value(key): _safe_to_show(value, known) for key, value in struct.fields.items()})


def _safe_to_show(value: Value, known: Collection[str]) -> Value:
    match value.WhichOneof("kind"):
        case "string_value" if value.string_value not in known:
            return Value(string_value=printable_value(value.string_value))
        case "struct_value":
            return Value(struct_value=safe_to_show(value.struct_value, known))
        case "list_value":
            return Value(list_value=ListValue(values=[_safe_to_show(item, known) for item in value.list_value.values]))
    return value


def texts(struct: Struct, path: str = "", *, secrets: bool = False) -> Iterator[tuple[str, str]]:
    """Every key and text with the path of its value. `secrets`: also those of values that the engine never shows."""
    for key, value in struct.fields.items():
        here = property_path(path, key)
        yield here, key
        yield from _texts(value, here, secrets)


def _texts(value: Value, path: str, secrets: bool) -> Iterator[tuple[str, str]]:
    match value.WhichOneof("kind"):
        case "string_value":
            yield path, value.string_value
        case "struct_value" if secrets or not is_secret(value):
            yield from texts(value.struct_value, path, secrets=secrets)
        case "list_value":
            for index, item in enumerate(value.list_value.values):
                yield from _texts(item, f"{path}[{index}]", secrets)


def property_path(parent: str, key: str) -> str:
    """`connection.port`, `files["/etc/x"]`: the engine's property path syntax."""
    if re.fullmatch(r"[A-Za-z_$][\w$]*", key):
        return f"{parent}.{key}" if parent else key
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'{parent}["{escaped}"]'


def is_secret(value: Value) -> bool:
    fields = value.struct_value.fields if value.WhichOneof("kind") == "struct_value" else {}
    return _SIGNATURE in fields and fields[_SIGNATURE].string_value == _SECRET


def is_known(value: Any) -> bool:
    """Whether every part of the value is known."""
    match value:
        case _Unknown():
            return False
        case Mapping():
            return all(is_known(item) for item in value.values())
        case list():
            return all(is_known(item) for item in value)
    return True
