"""The distributions of the Python that runs it, as environment.Package has them; as a program it prints them as JSON. Standard
library only."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import json
import re
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


def packages() -> list[dict[str, object]]:
    # Read here: importlib.metadata parses the whole file, a page of description mostly, again for each field: 80 ms in every run.
    headers = [
        (distribution.read_text("METADATA") or "").partition("\n\n")[0] for distribution in importlib.metadata.distributions()
    ]
    distributions = {_normal(name): header for header in headers if (name := _field(header, "Name"))}
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


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _field(header: str, name: str) -> str:
    found = re.search(rf"(?m)^{name}: (.+)$", header)
    return found[1].strip() if found else ""


if __name__ == "__main__":
    print(json.dumps(packages()))
