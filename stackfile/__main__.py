"""The stack file's schema for editors, and a new stack file.

python -m stackfile schema                                 writes the JSON schema that editors use
python -m stackfile new-stack --datacenter D --cluster C   prints a commented stack file
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from stackfile.config import ROOT, ConfigErrors, StackConfig
from stackfile.naming import PROJECT
from stackfile.schema import editor_schema

SCHEMA_FILE = Path(__file__).with_name("stack.schema.json")
NEW_STACK_FILE = Path(__file__).with_name("new-stack.yaml")


def new_stack(datacenter: str, cluster: str) -> str:
    """A commented stack file for this datacenter and cluster. Raises ConfigErrors when they cannot be names."""
    text = NEW_STACK_FILE.read_text()
    for key, value in {"datacenter": datacenter, "cluster": cluster}.items():
        start = f"  {PROJECT}:{key}: "
        lines = [line for line in text.splitlines() if line.startswith(start)]
        assert len(lines) == 1, f"{NEW_STACK_FILE.name} must set {key} once"
        text = text.replace(lines[0], start + json.dumps(value))
    StackConfig.load({"datacenter": datacenter, "cluster": cluster}, ROOT)
    return text


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m stackfile", description="The stack file: its schema, and a new one.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("schema", help="write the JSON schema that editors use")
    new = commands.add_parser("new-stack", help="print a commented stack file")
    new.add_argument("--datacenter", required=True)
    new.add_argument("--cluster", required=True)
    given = parser.parse_args(arguments)
    if given.command == "schema":
        SCHEMA_FILE.write_text(json.dumps(editor_schema(), indent=2, ensure_ascii=False) + "\n")
        print(f"wrote {SCHEMA_FILE.relative_to(ROOT)}")
        return 0
    try:
        print(new_stack(given.datacenter, given.cluster), end="")
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
