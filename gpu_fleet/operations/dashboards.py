"""`make dashboards STACK=s`: the dashboards of a stack as JSON, with its price, its data sources and those of its own directory.

python -m gpu_fleet.operations.dashboards build/dashboards --stack observability
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from components.custom import all_dashboards, check_signals
from dashboards.__main__ import write
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.output import run
from gpu_fleet.operations.stack import configuration, enter_project
from gpu_fleet.stackfile.config import ConfigErrors


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make dashboards", description="Every dashboard of a stack as JSON.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--stack", required=True)
    given = parser.parse_args(arguments)
    try:
        enter_project()
        config = configuration(given.stack).load()
        check_signals(config)
    except (OperationError, ConfigErrors) as error:
        print(error, file=sys.stderr)
        return 1
    write(all_dashboards(config), given.directory)
    return 0


if __name__ == "__main__":
    run(main)
