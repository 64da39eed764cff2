"""Prints the distributions of the Python that runs it, as JSON: environment.Package. Standard library only."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
from pathlib import Path


def plugin_file(name: str) -> dict[str, object] | None:
    """pulumi-plugin.json is in the package with the distribution's name, as Pulumi's SDK generator writes it."""
    spec = importlib.util.find_spec(name.replace("-", "_"))
    for location in (spec and spec.submodule_search_locations) or []:
        file = Path(location) / "pulumi-plugin.json"
        if file.is_file():
            return json.loads(file.read_text())
    return None


def main() -> None:
    distributions = {re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower(): d for d in importlib.metadata.distributions()}
    required = set()
    for distribution in distributions.values():
        for requirement in distribution.requires or []:
            if "extra ==" not in requirement:
                required.add(re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower())
    packages = [
        {
            "name": name,
            "version": distribution.version,
            "is_required_by_another": name in required,
            # A look at every package would cost a second; Pulumi's have the word in their name.
            "plugin": plugin_file(distribution.metadata["Name"]) if "pulumi" in name else None,
        }
        for name, distribution in sorted(distributions.items())
    ]
    print(json.dumps(packages))


if __name__ == "__main__":
    main()
