"""The distributions of the Python that runs it, as environment.Package has them; as a program it prints them as JSON. Standard
library only."""

from __future__ import annotations

import importlib.machinery
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path


def plugin_file(name: str) -> dict[str, object] | None:
    """pulumi-plugin.json is in the package with the distribution's name, as Pulumi's SDK generator writes it."""
    # Not importlib.util.find_spec: the language host has a `pulumi` of its own among its modules.
    spec = importlib.machinery.PathFinder.find_spec(name.replace("-", "_"))
    for location in (spec and spec.submodule_search_locations) or []:
        file = Path(location) / "pulumi-plugin.json"
        if file.is_file():
            return json.loads(file.read_text())
    return None


def version(name: str) -> str:
    """Empty when there is none."""
    return next((_field(header, "Version") for header in _headers(f"{name.replace('-', '_')}-*")), "")


def packages() -> list[dict[str, object]]:
    distributions: dict[str, str] = {}
    for header in _headers("*"):
        if name := _field(header, "Name"):
            distributions.setdefault(_normal(name), header)  # the first on sys.path is what is imported
    required = set()
    for header in distributions.values():
        for requirement in re.findall(r"(?m)^Requires-Dist: (.+)$", header):
            if "extra ==" not in requirement:
                required.add(_normal(re.match(r"[\w.-]+", requirement)[0]))
    return [
        {
            "name": name,
            "version": _field(header, "Version"),
            "is_required_by_another": name in required,
            # A look at every package would cost a second; Pulumi's have the word in their name.
            "plugin": plugin_file(_field(header, "Name")) if "pulumi" in name else None,
        }
        for name, header in sorted(distributions.items())
    ]


def _headers(pattern: str) -> Iterator[str]:
    """Of the distributions whose directory, without its suffix, is so called."""
    # Not importlib.metadata: its import takes 20 ms, and it parses each file, a page of description mostly, again for each field.
    for directory in sys.path:
        for file in Path(directory).glob(f"{pattern}.dist-info/METADATA"):
            yield file.read_text(encoding="utf-8").partition("\n\n")[0]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _field(header: str, name: str) -> str:
    found = re.search(rf"(?m)^{name}: (.+)$", header)
    return found[1].strip() if found else ""


if __name__ == "__main__":
    print(json.dumps(packages()))
