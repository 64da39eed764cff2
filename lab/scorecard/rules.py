"""Other rule sets: their files as groups for Mimir, each alert with a label that says whose it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from lab.scorecard.score import RULE_SET

Group = dict[str, Any]


class BadRules(ValueError):
    """The text names the directory or the file."""


def read(directory: Path) -> list[Group]:
    """Of every .yaml and .yml below it: rule files, PrometheusRule objects, several documents per file. Raises BadRules."""
    groups: list[Group] = []
    for file in sorted([*directory.rglob("*.yaml"), *directory.rglob("*.yml")]):
        try:
            documents = list(yaml.safe_load_all(file.read_text()))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise BadRules(f"RULES: {file}: not YAML, or a template that is not rendered: {error}") from None
        for document in documents:
            if isinstance(document, dict):
                found = document.get("groups") or (document.get("spec") or {}).get("groups") or []
                groups += [_named(group, f"{file.stem}-{number}", directory.name) for number, group in enumerate(found)]
    if not any("alert" in rule for group in groups for rule in group["rules"]):
        raise BadRules(f"RULES: {directory}: no file with an alerting rule (*.yaml, *.yml)")
    return groups


def _named(group: Group, place: str, rule_set: str) -> Group:
    """Files may have groups of the same name. What only some stores know of a group is left out."""
    rules = [
        {**rule, "labels": {**(rule.get("labels") or {}), RULE_SET: rule_set}} if "alert" in rule else rule
        for rule in group.get("rules") or []
    ]
    kept = {key: value for key, value in group.items() if key in ("interval", "limit")}
    return {"name": f"{place}-{group['name']}", **kept, "rules": rules}
