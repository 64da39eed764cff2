"""Writes every dashboard as JSON into a directory, for review and for import by hand: `python -m dashboards build/dashboards`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dashboards import all_dashboards


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for uid, model in all_dashboards().items():
        (directory / f"{uid}.json").write_text(json.dumps(model, indent=2, sort_keys=True) + "\n")
        print(directory / f"{uid}.json")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m dashboards DIRECTORY")
    main(Path(sys.argv[1]))
