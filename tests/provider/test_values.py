"""Property values as the engine sends them, which the SDK's own encoder writes here."""

from __future__ import annotations

import pytest
from google.protobuf.struct_pb2 import Struct, Value
from pulumi.provider.experimental.property_value import PropertyValue

from gpu_fleet.provider.values import UNKNOWN, Secret, decode, encode, encode_value, is_known, is_secret, replace_value


def test_values_of_the_sdk_decode_to_plain_python() -> None:
    port, name = PropertyValue(22.0), PropertyValue("x", is_secret=True)
    properties = {
        "port": port,
        "secret": name,
        "list": PropertyValue([port, PropertyValue(None)]),
        "map": PropertyValue({"a": name}),
    }
    assert decode(PropertyValue.marshal_map(properties)) == {"port": 22, "secret": "x", "list": [22, None], "map": {"a": "x"}}


def test_what_is_encoded_the_sdk_reads_with_its_secrets_and_unknowns() -> None:
    read = PropertyValue.unmarshal_map(encode({"a": Secret({"b": 1.5}), "c": UNKNOWN, "d": [True, "x", None]}))
    assert read["a"].is_secret
    assert read["a"].value["b"].value == 1.5
    assert decode(PropertyValue.marshal_map(read)) == {"a": {"b": 1.5}, "c": UNKNOWN, "d": [True, "x", None]}


@pytest.mark.parametrize(
    "sentinel",
    ["04da6b54-80e4-46f7-96ec-b56ff0331ba9", "3eeb2bf0-c639-47a8-9e75-3b44932eb421", "dd056dcd-154b-4c76-9bd3-c8f88648b5ff"],
)
def test_unknown_values_of_every_type_are_unknown(sentinel: str) -> None:
    assert decode(Struct(fields={"a": Value(string_value=sentinel)})) == {"a": UNKNOWN}


def test_a_value_that_takes_the_place_of_a_secret_is_one() -> None:
    struct = encode({"a": Secret("old"), "b": "old"})
    for key in ("a", "b"):
        replace_value(struct, key, "new")
    assert (is_secret(struct.fields["a"]), is_secret(struct.fields["b"])) == (True, False)
    assert decode(struct) == {"a": "new", "b": "new"}


def test_a_secret_that_takes_the_place_of_a_secret_is_marked_once() -> None:
    struct = encode({"a": Secret("old")})
    replace_value(struct, "a", Secret("new"))
    assert struct.fields["a"] == encode_value(Secret("new"))


def test_one_unknown_deep_inside_makes_a_value_unknown() -> None:
    assert is_known({"a": [1, {"b": "c"}]})
    assert not is_known({"a": [1, {"b": UNKNOWN}]})


def test_what_is_no_property_value_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes"):
        encode({"a": b"bytes"})
