"""Which components, blocks and arguments a file in Alloy's syntax uses. For files of `alloy fmt`, with one argument per line."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

_STRING = re.compile(r'"(?:\\.|[^"\\])*"|`[^`]*`')
_BLOCK = re.compile(r'([a-z_.]+)(?: "[a-z0-9_]+")? \{( \})?')
_ARGUMENT = re.compile(r"([a-z_0-9]+)\s*= (.*)")


def used(file: Path, own: Collection[str]) -> dict[str, set[str]]:
    """Component -> its arguments and blocks, nested ones as `endpoint.basic_auth.username`. `own`: modules that we declare."""
    found: dict[str, set[str]] = {}
    path: list[str] = []
    open_brackets = 0
    for raw in file.read_text().splitlines():
        line = _STRING.sub(lambda string: '"s"' if string[0] != '""' else '""', raw).strip()
        line = line.partition("//")[0].strip()
        if not line:
            continue
        if open_brackets:  # within a list or an object
            open_brackets += _balance(line)
            continue
        if line == "}":
            path.pop()
            continue
        line = re.sub(r'^([a-z_.]+) "s"', r'\1 "label"', line)
        if block := _BLOCK.fullmatch(line):
            path.append(block[1])
            _note(found, path, own)
            if block[2]:
                path.pop()
        elif argument := _ARGUMENT.fullmatch(line):
            _note(found, [*path, argument[1]], own)
            open_brackets = _balance(argument[2])
        else:
            raise AssertionError(f"{file.name}: not one argument, block or end of a block: {raw}")
    assert not path and not open_brackets, f"{file.name}: not closed"
    return found


def functions(file: Path) -> set[str]:
    """Of Alloy's standard library."""
    return set(re.findall(r"\b([a-z_]+\.[a-z_]+|[a-z_]+)\(", _STRING.sub('""', re.sub(r"(?m)^\s*//.*$", "", file.read_text()))))


def declared(file: Path) -> set[str]:
    """The modules of our own in it."""
    return set(re.findall(r'(?m)^declare "(\w+)"', file.read_text()))


def _balance(text: str) -> int:
    return sum(text.count(bracket) for bracket in "([{") - sum(text.count(bracket) for bracket in ")]}")


def _note(found: dict[str, set[str]], path: list[str], own: Collection[str]) -> None:
    if path[0] == "declare":  # a module of ours: what is in it counts, its own arguments and exports do not
        path = path[1:]
        if not path or path[0] in ("argument", "export"):
            return
    if path[0] not in own:
        inner = path[1:]
        # Blocks with stages hold the same stages as their component.
        stages = [at for at, name in enumerate(inner) if name.startswith("stage.")]
        found.setdefault(path[0], set()).update([".".join(inner[stages[-1] if stages else 0 :])] if inner else [])
