"""`python -m lab.gpu fixtures`: writes tests/fixtures/metrics and tests/fixtures/kernel."""

from __future__ import annotations

import argparse
from pathlib import Path

from lab.gpu.fixtures import write_fixtures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.gpu", description=__doc__)
    parser.add_argument("what", choices=["fixtures"])
    parser.parse_args()
    for path in write_fixtures(Path("tests/fixtures")):
        print(path)


if __name__ == "__main__":
    main()
