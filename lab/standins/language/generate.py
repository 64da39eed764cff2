"""GeneratePackage for Python: a small SDK from a package's schema, in one module.

Classes, arguments and outputs have the names of the official SDK, and nested dictionaries are translated to the schema's names by
the same means: Pulumi's own input types. Not done here, so programs that need it need the official language host: completion of
arguments and their descriptions in an editor, an `...Args` object in place of keyword arguments, TypedDicts, modules
(`config.SshArgs` is `ConfigSshArgs`), enums, the package's `config`, `get` of an existing resource, and resources that components
pass to each other as references. Functions, methods and parameterized packages are refused.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pulumi.runtime.proto import language_pb2
from pulumi.runtime.proto.codegen import hcl_pb2

Files = Mapping[str, str]
_NOT_GENERATED = ("functions", "parameterization", "extensionParameterization")
_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}

_HEAD = '''"""{description}

Written by the stand-in of pulumi-language-python (lab/standins in the repository of GPU Fleet).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import pulumi


def _options(opts: Optional[pulumi.ResourceOptions]) -> pulumi.ResourceOptions:
    return pulumi.ResourceOptions.merge(pulumi.ResourceOptions(version={version!r}, plugin_download_url={server!r}), opts)


def _inputs(arguments: Any, *, secret: Sequence[str] = (), encoded: Sequence[str] = (), outputs: Sequence[str] = ()) -> Any:
    """The arguments with secrets marked, `encoded` ones as JSON, and a place for each output."""
    given = vars(arguments)
    for name in set(secret) & set(given):
        given[name] = pulumi.Output.secret(given[name])
    for name in set(encoded) & set(given):
        given[name] = pulumi.Output.from_input(given[name]).apply(pulumi.runtime.to_json)
    given.update({{name: None for name in outputs if name not in given}})
    return arguments
'''


def answer(request: language_pb2.GeneratePackageRequest, sdk_of: Callable[[Mapping[str, Any]], Files]) -> Any:
    """Writes the SDK where the engine wants it, with the files that it adds."""
    schema = json.loads(request.schema)
    if unknown := [key for key in _NOT_GENERATED if schema.get(key)] or [
        f"methods of {token}" for token, resource in schema.get("resources", {}).items() if resource.get("methods")
    ]:
        text = f"this stand-in generates no SDK for a package with {', '.join(unknown)}"
        error = hcl_pb2.Diagnostic(severity=hcl_pb2.DIAG_ERROR, summary=text)
        return language_pb2.GeneratePackageResponse(diagnostics=[error])
    files = {name: text.encode() for name, text in sdk_of(schema).items()} | dict(request.extra_files)
    for name, content in files.items():
        path = Path(request.directory, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return language_pb2.GeneratePackageResponse()


def python_sdk(schema: Mapping[str, Any]) -> Files:
    module = schema["language"]["python"]["packageName"]
    text = _HEAD.format(
        description=schema["description"], version=schema["version"], server=schema.get("pluginDownloadURL") or None
    )
    blocks = [
        text,
        *_type_classes(schema),
        *(line for token, resource in schema["resources"].items() for line in _resource(token, resource)),
        *_provider(schema),
    ]
    project = f'[project]\nname = "{module}"\nversion = "{schema["version"]}"\ndependencies = ["pulumi>=3.231.0,<4"]\n'
    return {
        f"{module}/__init__.py": "\n\n".join(blocks),
        f"{module}/py.typed": "",
        f"{module}/pulumi-plugin.json": json.dumps(plugin_of(schema), indent=2) + "\n",
        "pyproject.toml": f'{project}\n[tool.setuptools.package-data]\n{module} = ["py.typed", "pulumi-plugin.json"]\n',
    }


def plugin_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What an SDK says about its plugin: programs that import it get it installed."""
    server = schema.get("pluginDownloadURL")
    return {"resource": True, "name": schema["name"], "version": schema["version"], **({"server": server} if server else {})}


def snake_case(name: str) -> str:
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return f"{name}_" if keyword.iskeyword(name) else name


def type_name(token: str) -> str:
    """A type of the module `index` has its own name; others begin with their module's, since it may have one of the same name."""
    _, module, name = token.split(":")
    return name if module == "index" else module.title() + name


def outputs_of(schema: Mapping[str, Any]) -> set[str]:
    """Tokens of the types that outputs have, and types in those."""
    found: set[str] = set()
    todo: list[Any] = [resource.get("properties") for resource in schema["resources"].values()]
    while todo:
        for token in set(re.findall(r'"#/types/([^"]+)"', json.dumps(todo.pop()))) - found:
            found.add(token)
            todo.append(schema["types"][token])
    return found


def _type_classes(schema: Mapping[str, Any]) -> Iterator[str]:
    of_outputs = outputs_of(schema)
    for token, node in schema["types"].items():
        if "enum" in node:
            yield f"{type_name(token)}Args = {type_name(token)} = str"
            continue
        yield _input_class(type_name(token), node, node.get("properties", {}), node.get("required", []))
        if token in of_outputs:
            lines = _attributes(node["properties"], node.get("required", []), _output)
            yield "\n".join(["@pulumi.output_type", f"class {type_name(token)}(dict):", *_described(node), *lines, ""])


def _input_class(name: str, node: Mapping[str, Any], properties: Mapping[str, Any], required: list[str]) -> str:
    lines = _attributes(properties, required, lambda one: f"pulumi.Input[{_input(one)}]") or ["    pass"]
    return "\n".join(["@pulumi.input_type", f"class {name}Args:", *_described(node), *lines, ""])


def _attributes(properties: Mapping[str, Any], required: list[str], annotation: Callable[[Any], str]) -> list[str]:
    """As dataclasses have them: those without a default first."""
    lines = []
    for name in sorted(properties, key=lambda name: (name not in required, name)):
        type = annotation(properties[name])
        declared, default = (type, "") if name in required else (f"Optional[{type}]", ", default=None")
        lines.append(f'    {snake_case(name)}: {declared} = pulumi.property("{name}"{default})')
    return lines


def _input(node: Mapping[str, Any]) -> str:
    return _type(node, lambda name: f"pulumi.InputType[{name}Args]", lambda inner: f"pulumi.Input[{inner}]")


def _output(node: Mapping[str, Any]) -> str:
    return _type(node, str, str)


def _type(node: Mapping[str, Any], of_object: Callable[[str], str], nested: Callable[[str], str]) -> str:
    match node:
        case {"$ref": str(reference)} if reference.startswith("#/types/"):
            return of_object(type_name(reference.removeprefix("#/types/")))
        case {"type": "array", "items": items}:
            return f"Sequence[{nested(_type(items, of_object, nested))}]"
        case {"type": "object", "additionalProperties": values}:
            return f"Mapping[str, {nested(_type(values, of_object, nested))}]"
        case {"type": str(type)} if "oneOf" not in node:
            return _TYPES[type]
    return "Any"  # alternatives too: Pulumi's SDK translates no names in these


def _resource(token: str, resource: Mapping[str, Any]) -> Iterator[str]:
    name, inputs = token.rpartition(":")[2], resource.get("inputProperties", {})
    yield _input_class(name, {}, inputs, resource.get("requiredInputs", []))
    is_component = resource.get("isComponent", False)
    outputs = resource.get("properties", {})
    lines = []
    for key, node in outputs.items():
        type = _output(node) if key in resource.get("required", []) else f"Optional[{_output(node)}]"
        lines.append(f'    {snake_case(key)}: pulumi.Output[{type}] = pulumi.property("{key}")')
    more = f", outputs={[snake_case(key) for key in outputs]}"
    yield _class(name, "ComponentResource" if is_component else "CustomResource", resource, lines, token, inputs, more)


def _provider(schema: Mapping[str, Any]) -> Iterator[str]:
    """Its values are JSON, but for strings: the engine stores a provider's configuration as text."""
    provider = schema.get("provider", {})
    inputs = provider.get("inputProperties", {})
    yield _input_class("Provider", {}, inputs, provider.get("requiredInputs", []))
    encoded = [snake_case(key) for key, node in inputs.items() if node.get("type") != "string"]
    yield _class("Provider", "ProviderResource", provider, [], schema["name"], inputs, f", encoded={encoded}")


def _class(
    name: str, base: str, node: Mapping[str, Any], lines: list[str], token: str, inputs: Mapping[str, Any], more: str
) -> str:
    secret = [snake_case(key) for key, property in inputs.items() if property.get("secret")]
    remote = ", remote=True" if base == "ComponentResource" else ""
    options = "Optional[pulumi.ResourceOptions]"
    return "\n".join(
        [
            f"class {name}(pulumi.{base}):",
            *_described(node),
            *lines,
            "",
            f"    def __init__(self, resource_name: str, opts: {options} = None, **arguments: Any) -> None:",
            f"        inputs = _inputs({name}Args(**arguments), secret={secret}{more})",
            f'        super().__init__("{token}", resource_name, inputs, _options(opts){remote})',
            "",
        ]
    )


def _described(node: Mapping[str, Any]) -> list[str]:
    return [f"    {json.dumps(node['description'], ensure_ascii=False)}", ""] if node.get("description") else []
