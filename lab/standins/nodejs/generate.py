"""GeneratePackage for TypeScript: a small SDK from a package's schema, in one file.

Classes, arguments and outputs have the names and types of the official SDK, so the type checker refuses an unknown key. Not done
here, so programs that need it need the official language host: descriptions of arguments in an editor, the namespaces
`types.input` and `config` (`HostEntryArgs` and `ConfigSshArgs` are names of the package itself), enums as objects, `get` and
`isInstance`, and resources that components pass to each other as references. What the stand-in for Python refuses is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lab.standins.language.generate import Files, outputs_of, plugin_of, type_name

_TYPES = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean"}

_HEAD = """// Written by the stand-in of pulumi-language-nodejs (lab/standins in the repository of GPU Fleet).
import * as pulumi from "@pulumi/pulumi";

function inputs(args: object, secret: string[], encoded: string[], outputs: string[]): pulumi.Inputs {
    const given: pulumi.Inputs = Object.fromEntries(outputs.map((name) => [name, undefined]));
    Object.assign(given, args);
    for (const name of secret) {
        if (given[name] !== undefined) given[name] = pulumi.secret(given[name]);
    }
    for (const name of encoded) {
        if (given[name] !== undefined) given[name] = pulumi.output(given[name]).apply(JSON.stringify);
    }
    return given;
}

function options<T extends pulumi.ResourceOptions>(opts: T | undefined): T {
    return pulumi.mergeOptions({ version: %s, pluginDownloadURL: %s }, opts) as T;
}
"""


def typescript_sdk(schema: Mapping[str, Any]) -> Files:
    server = schema.get("pluginDownloadURL")
    blocks = [
        _HEAD % (json.dumps(schema["version"]), json.dumps(server) if server else "undefined"),
        *_interfaces(schema),
        *(line for token, resource in schema["resources"].items() for line in _resource(token, resource)),
        *_provider(schema),
    ]
    package = {
        "name": schema["language"]["nodejs"]["packageName"],
        "version": schema["version"],
        "main": "bin/index.js",
        "scripts": {"build": "tsc"},
        "dependencies": {"@pulumi/pulumi": "^3.231.0"},
        "devDependencies": {"@types/node": "^22", "typescript": "^5"},
        "pulumi": plugin_of(schema),
    }
    options = {
        "outDir": "bin",
        "declaration": True,
        "target": "es2022",
        "module": "nodenext",
        "strict": True,
        "skipLibCheck": True,
    }
    compiler = {"compilerOptions": options, "files": ["index.ts"]}
    return {
        "index.ts": "\n".join(blocks),
        "package.json": json.dumps(package, indent=4) + "\n",
        "tsconfig.json": json.dumps(compiler, indent=4) + "\n",
    }


def _interfaces(schema: Mapping[str, Any]) -> Iterator[str]:
    of_outputs = outputs_of(schema)
    for token, node in schema["types"].items():
        name = type_name(token)
        if "enum" in node:
            values = " | ".join(json.dumps(one["value"]) for one in node["enum"])
            yield f"export type {name} = {values};\nexport type {name}Args = {name};\n"
            continue
        yield _interface(f"{name}Args", node.get("properties", {}), node.get("required", []), _input)
        if token in of_outputs:
            yield _interface(name, node["properties"], node.get("required", []), _output)


def _interface(name: str, properties: Mapping[str, Any], required: list[str], type_of: Callable[[Any], str]) -> str:
    lines = [f"    {key}{'' if key in required else '?'}: {type_of(node)};" for key, node in properties.items()]
    return "\n".join([f"export interface {name} {{", *lines, "}", ""])


def _input(node: Mapping[str, Any]) -> str:
    return f"pulumi.Input<{_type(node, 'Args', _input)}>"


def _output(node: Mapping[str, Any]) -> str:
    return _type(node, "", _output)


def _type(node: Mapping[str, Any], suffix: str, nested: Callable[[Any], str]) -> str:
    match node:
        case {"oneOf": options}:
            return " | ".join(_type(option, suffix, nested) for option in options)
        case {"$ref": str(reference)} if reference.startswith("#/types/"):
            return type_name(reference.removeprefix("#/types/")) + suffix
        case {"type": "array", "items": items}:
            return f"{nested(items)}[]"
        case {"type": "object", "additionalProperties": values}:
            return f"{{ [key: string]: {nested(values)} }}"
        case {"type": str(type)}:
            return _TYPES[type]
    return "any"


def _resource(token: str, resource: Mapping[str, Any]) -> Iterator[str]:
    name, inputs, required = token.rpartition(":")[2], resource.get("inputProperties", {}), resource.get("requiredInputs", [])
    yield _interface(f"{name}Args", inputs, required, _input)
    outputs = resource.get("properties", {})
    lines = []
    for key, node in outputs.items():
        type = _output(node) if key in resource.get("required", []) else f"{_output(node)} | undefined"
        lines.append(f"    declare readonly {key}: pulumi.Output<{type}>;")
    base = "ComponentResource" if resource.get("isComponent") else "CustomResource"
    yield _class(name, base, token, inputs, bool(required), lines, [], list(outputs))


def _provider(schema: Mapping[str, Any]) -> Iterator[str]:
    """Its values are JSON, but for strings: the engine stores a provider's configuration as text."""
    provider = schema.get("provider", {})
    inputs = provider.get("inputProperties", {})
    yield _interface("ProviderArgs", inputs, provider.get("requiredInputs", []), _input)
    encoded = [key for key, node in inputs.items() if node.get("type") != "string"]
    yield _class("Provider", "ProviderResource", schema["name"], inputs, bool(provider.get("requiredInputs")), [], encoded, [])


def _class(
    name: str,
    base: str,
    token: str,
    inputs: Mapping[str, Any],
    is_required: bool,
    lines: list[str],
    encoded: list[str],
    outputs: list[str],
) -> str:
    secret = json.dumps([key for key, node in inputs.items() if node.get("secret")])
    opts = "ResourceOptions" if base == "ProviderResource" else f"{base}Options"
    args = f"args: {name}Args" if is_required else f"args: {name}Args = {{}}"
    given = f"inputs(args, {secret}, {json.dumps(encoded)}, {json.dumps(outputs)})"
    return "\n".join(
        [
            f"export class {name} extends pulumi.{base} {{",
            *lines,
            f"    constructor(name: string, {args}, opts?: pulumi.{opts}) {{",
            f"        super({json.dumps(token)}, name, {given}, options(opts){', true' if base == 'ComponentResource' else ''});",
            "    }",
            "}",
            "",
        ]
    )
