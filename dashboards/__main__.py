"""Writes every dashboard as JSON into a directory, for review and manual import: `python -m dashboards build/dashboards`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dashboards import Price, all_dashboards


def main() -> None:
    parser = argparse.ArgumentParser(prog="dashboards", description="Every dashboard as JSON")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--price", type=float, help="price of a GPU-hour; default: no panels about cost")
    parser.add_argument("--currency", default="USD", help="ISO 4217, default %(default)s")
    parser.add_argument("--metrics-uid", help="uid of the data source of metrics; default: each dashboard's variable chooses")
    parser.add_argument("--logs-uid", help="the same for logs")
    arguments = parser.parse_args()
    price = Price(arguments.price, arguments.currency) if arguments.price else None
    write(all_dashboards(price, metrics_uid=arguments.metrics_uid, logs_uid=arguments.logs_uid), arguments.directory)


def write(models: Mapping[str, Mapping[str, Any]], directory: Path) -> None:
    """One file per dashboard, named by its uid."""
    directory.mkdir(parents=True, exist_ok=True)
    for uid, model in models.items():
        file = directory / f"{uid}.json"
        file.write_text(json.dumps(model, indent=2, sort_keys=True) + "\n")
        print(file)


if __name__ == "__main__":
    main()
