"""The JSON schema that editors use: current, and of one mind with the checks."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from gpu_fleet.stackfile.__main__ import SCHEMA_FILE
from gpu_fleet.stackfile.new_stack import new_stack
from gpu_fleet.stackfile.schema import editor_schema
from tests.checkout import STACK_FILES
from tests.stackfile.stacks import stack

ROOT = Path(__file__).parents[2]
VALIDATOR = jsonschema.Draft202012Validator(editor_schema())


def errors(config: dict[str, object]) -> list[str]:
    return [error.json_path for error in VALIDATOR.iter_errors({"config": config})]


def ours(raw: dict[str, object]) -> dict[str, object]:
    return {f"gpu-fleet:{key}": value for key, value in raw.items()}


def test_the_checked_in_schema_is_current() -> None:
    assert json.loads(SCHEMA_FILE.read_text()) == editor_schema(), "run `make generate` and review the diff"


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(editor_schema())


@pytest.mark.parametrize("file", STACK_FILES, ids=lambda file: file.name)
def test_stack_files_of_the_repository_pass_and_name_the_schema(file: Path) -> None:
    text = file.read_text()
    VALIDATOR.validate(yaml.safe_load(text))
    named = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert (ROOT / named).resolve() == SCHEMA_FILE, "examples are copied beside Pulumi.yaml, where an editor looks for it"


def test_a_new_stack_passes() -> None:
    VALIDATOR.validate(yaml.safe_load(new_stack("eu-north", "a")))


def test_a_good_stack_with_secrets_and_foreign_keys_passes() -> None:
    secrets = {"gpu-fleet:metricsPassword": {"secure": "v1:x"}, "gpu-fleet:slackUrl": {"secure": "v1:y"}}
    assert errors({**ours(stack()), **secrets, "aws:region": "eu-west-1"}) == []


@pytest.mark.parametrize(
    "raw",
    [
        stack(metric={"url": "x"}),
        stack(metricsPassword="in clear text"),
        stack(**{"hosts__old-amd-node__gpu": 8}),
        stack(**{"hosts__old-amd-node__gpus": "8"}),
        stack(**{"hosts__old-amd-node__exporter": "dcgm"}),
        stack(datacenter="US West"),
        stack(ssh__port=0),
    ],
    ids=["unknown section", "secret in clear text", "unknown key", "text for a number", "unknown exporter", "bad name", "port 0"],
)
def test_an_editor_underlines_what_the_checks_refuse(raw: dict[str, object]) -> None:
    assert errors(ours(raw))


def test_every_key_says_what_it_means() -> None:
    """Messages and editors take their words from the descriptions."""
    silent = [
        f"{name}.{key}"
        for name, node in editor_schema()["$defs"].items()
        for key, child in node.get("properties", {}).items()
        if "description" not in child and "$ref" not in child
    ]
    assert silent == []
