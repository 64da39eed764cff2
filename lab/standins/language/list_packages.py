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
    distributions = {re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower(): d for d in importlib.metadata.distributions()}
    required = set()
    for distribution in distributions.values():
        for requirement in distribution.requires or []:
            if "extra ==" not in requirement:
                required.add(re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower())
    return [
        {
            "name": name,
            "version": distribution.version,
            "is_required_by_another": name in required,
            # A look at every package would cost a second; Pulumi's have the word in their name.
            "plugin": plugin_file(distribution.metadata["Name"]) if "pulumi" in name else None,
        }
        for name, distribution in sorted(distributions.items())
    ]


if __name__ == "__main__":
    print(json.dumps(packages()))
