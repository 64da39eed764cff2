"""`python -m gpu_fleet.stackfile schema` writes the JSON schema of the stack file that editors use."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gpu_fleet.stackfile.config import ROOT
from gpu_fleet.stackfile.schema import editor_schema

SCHEMA_FILE = Path(__file__).with_name("stack.schema.json")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu_fleet.stackfile", description="The stack file's schema.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("schema", help="write the JSON schema that editors use")
    parser.parse_args(arguments)
    SCHEMA_FILE.write_text(json.dumps(editor_schema(), indent=2, ensure_ascii=False) + "\n")
    print(f"wrote {SCHEMA_FILE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
