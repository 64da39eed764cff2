"""JSON schema of the stack file: what editors complete and underline, and where messages take their words from."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from stackfile.naming import PROJECT
from stackfile.sections import SECRETS, StackFile


@lru_cache(maxsize=1)
def stack_file_schema() -> dict[str, Any]:
    """JSON schema of the sections, keys without their `gpu-fleet:`."""
    return StackFile.model_json_schema()


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
        "description": "Written by `make schema` from stackfile; do not edit.",
        "type": "object",
        "properties": {"config": {"type": "object", "properties": ours, "patternProperties": unknown}},
        "$defs": sections["$defs"],
    }
