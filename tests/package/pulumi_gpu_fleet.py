"""What `pulumi package add` generates for Python, as far as the example uses it: made from schema.json when it is imported.

Arguments are keyword arguments in snake_case, at every depth that is known when the program runs; secrets are marked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pulumi

SCHEMA = json.loads(Path(__file__).with_name("schema.json").read_text())


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def translated(value: Any, node: Mapping[str, Any]) -> Any:
    """With the names of the schema."""
    if not isinstance(value, Mapping):
        return value
    node = SCHEMA["types"].get(node.get("$ref", "").removeprefix("#/types/"), node)
    named = {snake_case(key): (key, inner) for key, inner in node.get("properties", {}).items()}
    found = {key: named.get(key, (key, node.get("additionalProperties", {}))) for key in value}
    return {found[key][0]: translated(item, found[key][1]) for key, item in value.items()}


def resource_class(token: str, node: Mapping[str, Any]) -> type:
    base = pulumi.ComponentResource if node.get("isComponent") else pulumi.CustomResource
    names = {snake_case(key): key for key in node["inputProperties"]}

    def __init__(self: Any, resource_name: str, opts: pulumi.ResourceOptions | None = None, **arguments: Any) -> None:
        properties = dict.fromkeys(node["properties"])
        for argument, value in arguments.items():
            given = translated(value, node["inputProperties"][names[argument]])
            secret = node["inputProperties"][names[argument]].get("secret")
            properties[names[argument]] = pulumi.Output.secret(given) if secret else given
        options = pulumi.ResourceOptions.merge(pulumi.ResourceOptions(version=SCHEMA["version"]), opts)
        more = {"remote": True} if node.get("isComponent") else {}
        base.__init__(self, token, resource_name, properties, options, **more)

    return type(token.rpartition(":")[2], (base,), {"__init__": __init__})


globals().update({token.rpartition(":")[2]: resource_class(token, node) for token, node in SCHEMA["resources"].items()})
