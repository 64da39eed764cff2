"""SDKs that the stand-in language hosts generate, against the schema of our package; tests/package runs programs with them."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pulumi
import pytest
from pulumi import _types
from pulumi.runtime.proto import language_pb2

from components.package.schema import package_schema
from lab.standins.language.generate import answer, python_sdk, snake_case, type_name
from lab.standins.nodejs.generate import typescript_sdk
from provider.schema import schema

SNAKE_CASE = {"from": "from_", "minDriver": "min_driver", "takeOverRulers": "take_over_rulers", "url": "url"}


@pytest.fixture(scope="module")
def package() -> dict[str, Any]:
    return package_schema(schema())


@pytest.fixture(scope="module")
def sdk(package: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module that a program imports."""
    directory = tmp_path_factory.mktemp("sdk")
    request = language_pb2.GeneratePackageRequest(
        directory=str(directory), schema=json.dumps(package), extra_files={"pulumi_gpu_fleet/LICENSE": b"ours"}
    )
    assert not answer(request, python_sdk).diagnostics
    assert (directory / "pulumi_gpu_fleet/LICENSE").read_bytes() == b"ours"
    plugin = json.loads((directory / "pulumi_gpu_fleet/pulumi-plugin.json").read_text())
    assert plugin == {"resource": True, "name": "gpu-fleet", "version": package["version"]}
    sys.path.insert(0, str(directory))
    yield importlib.import_module("pulumi_gpu_fleet")
    sys.path.remove(str(directory))
    del sys.modules["pulumi_gpu_fleet"]


def objects(package: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
    """Class of arguments, its properties, and those required."""
    for token, resource in package["resources"].items():
        yield token.rpartition(":")[2], resource["inputProperties"], resource.get("requiredInputs", [])
    yield "Provider", package["provider"]["inputProperties"], []
    for token, node in package["types"].items():
        if node["type"] == "object":
            yield type_name(token), node["properties"], node.get("required", [])


def test_names_are_those_that_pulumi_derives_from_the_schema() -> None:
    assert {name: snake_case(name) for name in SNAKE_CASE} == SNAKE_CASE


def test_the_python_sdk_takes_every_argument_under_the_name_of_the_schema(package: dict[str, Any], sdk: ModuleType) -> None:
    for name, properties, _ in objects(package):
        names = _types.input_type_py_to_pulumi_names(getattr(sdk, f"{name}Args"))
        assert names == {snake_case(key): key for key in properties}, name


def test_the_python_sdk_types_every_nested_argument_so_that_its_keys_are_translated(
    package: dict[str, Any], sdk: ModuleType
) -> None:
    for name, properties, _ in objects(package):
        types = _types.input_type_types(getattr(sdk, f"{name}Args"))
        for key, node in properties.items():
            nested = str(types[key])
            for token in re.findall(r'"#/types/([^"]+)"', json.dumps(node)) if "oneOf" not in node else ():
                expected = "str" if "enum" in package["types"][token] else f"{type_name(token)}Args"
                assert expected in nested, f"{name}.{key}: {nested}"


def test_the_python_sdk_refuses_what_the_schema_does_not_have_and_what_is_missing(sdk: ModuleType) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'metric'"):
        sdk.Fleet("a", metric={})
    with pytest.raises(TypeError, match=r"missing .* 'rules'"):
        sdk.RuleGroup("a", backend="mimir", name="a", namespace="a", url="http://x")


def test_both_sdks_have_every_resource_with_its_outputs_and_secrets(package: dict[str, Any], sdk: ModuleType) -> None:
    typescript = typescript_sdk(package)["index.ts"]
    for token, resource in package["resources"].items():
        name = token.rpartition(":")[2]
        base = "ComponentResource" if resource.get("isComponent") else "CustomResource"
        assert issubclass(getattr(sdk, name), getattr(pulumi, base))
        assert set(_types.resource_types(getattr(sdk, name))) >= set(resource["properties"])
        shown = re.search(rf"(?ms)^export class {name} extends pulumi.{base} \{{$(.*?)^\}}$", typescript)[1]
        assert set(re.findall(r"declare readonly (\w+): pulumi.Output<", shown)) == set(resource["properties"])
        secret = [key for key, node in resource["inputProperties"].items() if node.get("secret")]
        in_python = [snake_case(key) for key in secret]
        assert f"Args(**arguments), secret={in_python}, " in inspect.getsource(getattr(sdk, name).__init__)
        assert f'super("{token}", name, inputs(args, {json.dumps(secret)}, ' in shown
    assert issubclass(sdk.Provider, pulumi.ProviderResource)
    assert "export class Provider extends pulumi.ProviderResource {" in typescript


def test_the_typescript_sdk_has_an_interface_for_every_argument(package: dict[str, Any]) -> None:
    text = typescript_sdk(package)["index.ts"]
    for name, properties, required in objects(package):
        shown = re.search(rf"(?ms)^export interface {name}Args \{{$(.*?)^\}}$", text)[1]
        found = {key: not optional for key, optional in re.findall(r"(?m)^    (\w+)(\??): pulumi\.Input<.+>;$", shown)}
        assert found == {key: key in required for key in properties}, name


def test_a_package_with_functions_is_refused(package: dict[str, Any], tmp_path: Path) -> None:
    request = language_pb2.GeneratePackageRequest(
        directory=str(tmp_path), schema=json.dumps({**package, "functions": {"a:b:c": {}}})
    )
    [diagnostic] = answer(request, python_sdk).diagnostics
    assert diagnostic.summary == "this stand-in generates no SDK for a package with functions"
    assert not list(tmp_path.iterdir())
