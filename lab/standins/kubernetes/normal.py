"""What of an object's inputs counts: built-in kinds lose fields that do not exist, quantities get their one notation, and the
stringData of a Secret becomes data.

The official plugin puts built-in kinds through their Go types in its Check, which does both without a word; custom resources stay
as they are. Here the API server's own schema says what the Go types say there.
Source: normalizeInputs in provider/pkg/provider/provider.go and Normalize in provider/pkg/clients/unstructured.go of
pulumi/pulumi-kubernetes 4.32.0; the notation: k8s.io/apimachinery api/resource/quantity.go. Read 2026-11-22.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from lab.kubernetes import Api, ApiError
from lab.standins.properties import Properties, Secret, has_unknown, plain

# Those that the official plugin does not normalize, or in a way of their own.
_LEFT_ALONE = frozenset({"CustomResourceDefinition", "APIService"})
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)?")

Schema = Mapping[str, Any]


def normalized(api: Api, inputs: Properties) -> Properties:
    """`inputs` may be marked; with unknown values among them they stay as they are."""
    api_version, kind = plain(inputs["apiVersion"]), plain(inputs["kind"])
    if not _is_built_in(api_version) or kind in _LEFT_ALONE or has_unknown(inputs):
        return inputs
    if kind == "Secret":
        return _with_data(inputs)
    try:
        schemas = api.get(f"/openapi/v3/{'apis' if '/' in api_version else 'api'}/{api_version}")["components"]["schemas"]
    except ApiError:
        return inputs  # what is wrong with it the operation itself says
    group, _, version = api_version.rpartition("/")
    identity = {"group": group, "version": version, "kind": kind}
    own = next((each for each in schemas.values() if identity in each.get("x-kubernetes-group-version-kind", ())), None)
    return inputs if own is None else _value(inputs, own, schemas)


def _with_data(inputs: Properties) -> Properties:
    """As the API server stores a Secret; wherever a mark of secrecy was, all of the data is marked in the end."""
    if not inputs.get("stringData"):
        return inputs
    given = plain(inputs)
    coded = {key: base64.b64encode(text.encode()).decode() for key, text in given["stringData"].items()}
    rest = {name: value for name, value in inputs.items() if name != "stringData"}
    return {**rest, "data": Secret({**(given.get("data") or {}), **coded})}


def _is_built_in(api_version: str) -> bool:
    group = api_version.rpartition("/")[0]
    return "." not in group or group.endswith(".k8s.io")


def _value(value: Any, schema: Schema, schemas: Schema) -> Any:
    if isinstance(value, Secret):
        return Secret(_value(value.value, schema, schemas))
    reference = schema.get("$ref") or next((each["$ref"] for each in schema.get("allOf", ()) if "$ref" in each), None)
    if reference:
        name = reference.rpartition("/")[2]
        return canonical(value) if name.endswith(".Quantity") else _value(value, schemas[name], schemas)
    if isinstance(value, dict) and (properties := schema.get("properties")):
        return {key: _value(item, properties[key], schemas) for key, item in value.items() if key in properties}
    if isinstance(value, dict) and isinstance(more := schema.get("additionalProperties"), dict):
        return {key: _value(item, more, schemas) for key, item in value.items()}
    if isinstance(value, list) and (items := schema.get("items")):
        return [_value(item, items, schemas) for item in value]
    return value


def canonical(value: Any) -> Any:
    """A quantity as Kubernetes writes it: the largest suffix with which the number is whole, of the family that it came in."""
    match = _QUANTITY.fullmatch(value if isinstance(value, str) else str(value))
    if match is None or isinstance(value, bool):
        return value
    number, suffix = Fraction(match[1]), match[2] or ""
    if suffix in _BINARY:
        number *= 1024 ** _BINARY[suffix]
        if number.denominator == 1 and abs(number) >= 1024:
            return _with_suffix(number, {name: Fraction(1024) ** power for name, power in _BINARY.items()} | {"": Fraction(1)})
    else:
        number *= Fraction(10) ** _DECIMAL[suffix]
    return _with_suffix(number, {name: Fraction(10) ** power for name, power in _DECIMAL.items()})


def _with_suffix(number: Fraction, factors: Mapping[str, Fraction]) -> str:
    if number == 0:
        return "0"
    whole = [(factor, name) for name, factor in factors.items() if (number / factor).denominator == 1]
    if not whole:  # below a billionth it is rounded up
        return f"{-(-number // factors['n'])}n"
    factor, name = max(whole)
    return f"{number / factor}{name}"
