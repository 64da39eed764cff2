"""YAML files read for people: values as PyYAML's safe loader gives them, and the line of every key for messages."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml


class VaultText:
    """A value that ansible-vault encrypted; nothing here can read it."""


class Loader(yaml.CSafeLoader):  # ten times quicker than SafeLoader: 10,000 hosts in half a second
    """Refuses a key written twice, which PyYAML would quietly drop, and knows Ansible's tags."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:  # before PyYAML resolves `<<`, whose keys may well come twice
            if key.tag != "tag:yaml.org,2002:merge" and isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} occurs twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _unsafe(loader: Loader, node: yaml.ScalarNode) -> str:
    return loader.construct_scalar(node)


Loader.add_constructor("!vault", lambda loader, node: VaultText())
Loader.add_constructor("!vault-encrypted", lambda loader, node: VaultText())
Loader.add_constructor("!unsafe", _unsafe)


class YamlError(ValueError):
    """A file that is not YAML; `line` is where reading stopped."""

    def __init__(self, message: str, line: int):
        super().__init__(message)
        self.line = line


def reason_of(error: yaml.YAMLError, text: str) -> str:
    """What is wrong, and what people did who wrote such lines. Nothing of the text, which may hold a secret."""
    reason = getattr(error, "problem", None) or str(error).splitlines()[0]
    mark = getattr(error, "problem_mark", None)
    lines = text.splitlines()[max(0, mark.line - 1) : mark.line + 1] if mark else []
    if any(re.match(r" *\t", line) for line in lines):
        return f"{reason}: a tab; indent with spaces"
    if any(line.startswith(("<<<<<<<", "=======", ">>>>>>>")) for line in lines):
        return f"{reason}: a conflict of git's is left here"
    if any("{{" in line for line in lines):
        return f"{reason}: text with {{{{ needs quotes, and nothing fills it in"
    if reason.startswith(("did not find expected", "could not find expected", "mapping values")):
        return f"{reason}: compare indentation, brackets and quotes with the line before; text with `: ` or `[` needs quotes"
    return reason


@dataclass(frozen=True)
class YamlText:
    name: str  # of the file, as messages give it
    text: str

    def load(self) -> Any:
        """Raises YamlError."""
        try:
            return yaml.load(self.text, Loader)  # noqa: S506  # a SafeLoader with two more tags
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise YamlError(reason_of(error, self.text), mark.line + 1 if mark else 1) from None
        except (yaml.YAMLError, ValueError) as error:
            raise YamlError(str(error).splitlines()[0], 1) from None

    def line_of(self, path: tuple[object, ...]) -> int:
        """The line of the key at `path`, or of the nearest existing one above."""
        node, line = self._root, 1
        for step in path:
            if isinstance(node, yaml.MappingNode):
                found = next(((key, value) for key, value in node.value if key.value == str(step)), None)
                if found is None:
                    break
                line, node = found[0].start_mark.line + 1, found[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                line = node.start_mark.line + 1
            else:
                break
        return line

    @cached_property
    def _root(self) -> yaml.Node | None:
        return yaml.compose(self.text, Loader)
