"""What programs are offered: every section of the stack file in its words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from components.package.construct import ArgumentErrors, _of_arguments, status_of
from components.package.schema import FLEET, HOST, RULE_GROUP, package_schema
from gpu_fleet.provider.schema import schema
from gpu_fleet.stackfile.problems import Problem
from gpu_fleet.stackfile.schema import stack_file_schema
from gpu_fleet.stackfile.sections import SECRETS
from tests.checkout import REPO
from tests.documents import blocks


@pytest.fixture(scope="module")
def package() -> dict[str, Any]:
    return package_schema(schema())


def test_every_key_of_the_stack_file_and_of_a_host_is_an_argument(package: dict[str, Any]) -> None:
    stack = stack_file_schema()
    fleet, host = (set(package["resources"][token]["inputProperties"]) for token in (FLEET, HOST))
    assert fleet == (set(stack["properties"]) - {"backend"}) | set(SECRETS) | {"secrets"}
    assert host >= set(stack["$defs"]["HostEntry"]["properties"]) | {
        "hostName",
        "datacenter",
        "cluster",
        "metrics",
        "metricsPassword",
    }
    assert RULE_GROUP in package["resources"]


def test_every_argument_and_output_is_described_in_the_words_of_a_program(package: dict[str, Any]) -> None:
    for place, node in nodes({key: package[key] for key in ("resources", "types")}):
        for name, described in {**node.get("properties", {}), **node.get("inputProperties", {})}.items():
            text = described.get("description", "")
            assert text and "gpu-fleet:" not in text, f"{place}.{name}: {text!r}"


def nodes(node: object, place: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(node, Mapping):
        yield place, node
        for key, value in node.items():
            if key not in ("properties", "inputProperties"):
                yield from nodes(value, f"{place}.{key}")


def test_every_secret_of_a_stack_is_a_secret_of_the_package(package: dict[str, Any]) -> None:
    inputs = package["resources"][FLEET]["inputProperties"]
    assert all(inputs[name]["secret"] for name in (*SECRETS, "secrets"))


def test_errors_of_one_host_name_its_arguments() -> None:
    fix = "put the secret itself into a key of its own with `pulumi config set --secret gpu-fleet:metricsPassword`"
    problem = Problem('gpu-fleet:hosts["gpu.1"].minDriver', "found 5", "a version in quotes", fix)
    text = str(ArgumentErrors([_of_arguments(problem, "gpu.1")]))
    assert text.startswith("1 error in the arguments; nothing was changed.\n\n1. minDriver: found 5")
    assert "pulumi config set" not in text and "with the argument `metricsPassword`" in text


def test_a_host_that_reported_nothing_has_no_exporter() -> None:
    assert status_of({}, None) == {"drift": [], "facts": {}}
    facts = {"GPU_FLEET_EXPORTER_MODE": "textfile", "GPU_COUNT": "4", "GPU_DRIVER_VERSION": "570.1"}
    assert status_of(facts, ["a"]) == {"exporter": "textfile", "gpus": 4, "driver": "570.1", "drift": ["a"], "facts": facts}


def test_the_example_in_typescript_gives_arguments_that_exist_and_all_that_are_required(package: dict[str, Any]) -> None:
    host = package["resources"][HOST]
    given = set(re.findall(r"(?m)^    (\w+): ", (REPO / "examples/package/typescript/index.ts").read_text()))
    assert set(host.get("requiredInputs", [])) <= given <= set(host["inputProperties"])


def test_the_page_shows_the_example_that_is_tested() -> None:
    [shown] = [block.text for block in blocks(REPO / "docs/package.md") if block.language == "python"]
    assert shown == (REPO / "examples/package/python/__main__.py").read_text().rstrip("\n")
