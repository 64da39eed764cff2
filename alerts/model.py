"""Rule groups as data, and as the YAML that Prometheus, Mimir and Loki read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from yaml.representer import SafeRepresenter

from alerts import texts
from gpu_fleet.stackfile.yaml_text import Loader

NAMESPACE: Final = "gpu-fleet"

# Mimir's default limits, so that the groups load without raising them (ruler_max_rules_per_rule_group,
# ..._rule_groups_per_tenant).
# Source: Mimir, reference of the limits block, read 2026-11-21.
MOST_RULES_PER_GROUP: Final = 20
MOST_GROUPS: Final = 70

Rule = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RuleGroup:
    """Rules evaluated in order every `interval`; each can use what the previous ones recorded.

    `rules`: not empty, at most MOST_RULES_PER_GROUP, as in a Prometheus rule file.
    """

    name: str
    interval: str  # Prometheus duration
    rules: tuple[Rule, ...]
    namespace: str = NAMESPACE

    @property
    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "interval": self.interval, "rules": [dict(rule) for rule in self.rules]}

    @property
    def yaml(self) -> str:
        """The group as YAML of a rule file, without the enclosing list. Read by programs alone; the provider formats it again."""
        return _dumped(self.as_dict, _QuickDumper)


def read_groups(file: Path) -> list[RuleGroup]:
    """The groups of one rule file that has been validated (signals)."""
    return [
        RuleGroup(name=group["name"], interval=group["interval"], rules=tuple(group["rules"]))
        for group in document(file)["groups"]
    ]


def document(file: Path) -> Any:
    """The content of a rule file. Cached, so do not modify it. Raises yaml.YAMLError, and texts.TextError."""
    return _document(texts.read(file))


@cache
def _document(text: str) -> Any:
    return yaml.load(text, Loader=Loader)  # noqa: S506  # a safe one, which refuses a key written twice


def rule_file(groups: Iterable[RuleGroup]) -> str:
    """Groups as one rule file."""
    return to_yaml({"groups": [group.as_dict for group in groups]})


class _Dumper(yaml.SafeDumper):
    """Keeps multi-line expressions as block scalars and indents lists, for readable reviews."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)


class _QuickDumper(yaml.CSafeDumper):
    """That of libyaml, which indents no list: the rules of a stack take 0.03 instead of 0.25 s of CPU time."""


def _text(dumper: SafeRepresenter, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
_QuickDumper.add_representer(str, _text)


def to_yaml(value: Any) -> str:
    return _dumped(value, _Dumper)


def _dumped(value: Any, dumper: type[_Dumper] | type[_QuickDumper]) -> str:
    return yaml.dump(value, Dumper=dumper, sort_keys=False, width=10_000, allow_unicode=True)
