"""JSON schema of the stack file: what editors complete and underline, and where messages take their words from."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import pairwise
from types import ModuleType
from typing import Any

from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.sections import SECRETS, StackFile
from gpu_fleet.stackfile.values import Section


@lru_cache(maxsize=1)
def stack_file_schema() -> dict[str, Any]:
    """JSON schema of the sections, keys without their `gpu-fleet:`."""
    schema = StackFile.model_json_schema()
    nodes = {StackFile.__name__: schema, **schema["$defs"]}
    for section in _sections(Section):
        if node := nodes.get(section.__name__):
            node["properties"] = {key: _described(section, key, about) for key, about in node["properties"].items()}
    return schema


def _sections(parent: type[Section]) -> Iterator[type[Section]]:
    for section in parent.__subclasses__():
        yield section
        yield from _sections(section)


def _described(section: type[Section], key: str, node: dict[str, Any]) -> dict[str, Any]:
    """With the docstring below the key. pydantic's `use_attribute_docstrings` does the same whenever the sections are imported,
    a tenth of a second in every run, for a schema that only errors and editors need."""
    name = next(name for name, field in section.model_fields.items() if (field.alias or name) == key)
    parents = [parent for parent in section.__mro__ if issubclass(parent, Section)]
    texts = (_docstrings(sys.modules[parent.__module__]).get((parent.__name__, name)) for parent in parents)
    text = next(filter(None, texts), None)
    return node if text is None or "description" in node else dict(sorted({**node, "description": text}.items()))


@cache
def _docstrings(module: ModuleType) -> dict[tuple[str, str], str]:
    """The docstrings below the attributes of a module's classes, by class and attribute."""
    found: dict[tuple[str, str], str] = {}
    for section in ast.parse(inspect.getsource(module)).body:
        if isinstance(section, ast.ClassDef):
            for attribute, after in pairwise(section.body):
                match attribute, after:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        found[section.name, name] = inspect.cleandoc(text)
    return found


def editor_schema() -> dict[str, Any]:
    """JSON schema of a whole Pulumi.<stack>.yaml, for editors; keys of other namespaces are Pulumi's own business."""
    sections = stack_file_schema()
    secret = {
        "type": "object",
        "required": ["secure"],
        "properties": {"secure": {"type": "string"}},
        "additionalProperties": False,
    }
    ours = {f"{PROJECT}:{key}": node for key, node in sections["properties"].items()}
    ours |= {f"{PROJECT}:{key}": {**secret, "description": f"Secret: {what}."} for key, what in SECRETS.items()}
    of_receivers = {**secret, "description": "Secret of a receiver, by the name that the receiver gives it."}
    # What is a property and matches a pattern must satisfy both, so the pattern leaves out the known keys.
    known = "|".join(key.removeprefix(f"{PROJECT}:") for key in ours)
    unknown = {f"^{PROJECT}:(?!({known})$)": of_receivers}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Stack file of gpu-fleet (Pulumi.<stack>.yaml)",
        "description": "Written by `make generate` from stackfile; do not edit.",
        "type": "object",
        "properties": {"config": {"type": "object", "properties": ours, "patternProperties": unknown}},
        "$defs": sections["$defs"],
    }
