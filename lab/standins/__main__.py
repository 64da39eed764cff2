"""Runs one stand-in by the name of the program it replaces; bin/start calls it. Other arguments: see commands.py.

Run as a directory (`python lab/standins NAME`), so that neither the working directory nor PYTHONPATH has to change: a command
that the stand-in starts would inherit both.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

# Only the chosen one is imported: the engine waits for each plugin to start.
STANDINS = {
    "pulumi-language-python": "lab.standins.language.host",
    "pulumi-resource-command": "lab.standins.command.plugin",
    "pulumi-resource-grafana": "lab.standins.grafana.plugin",
    "pulumi-resource-kubernetes": "lab.standins.kubernetes.plugin",
}

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in STANDINS:
        sys.exit(importlib.import_module(STANDINS[name]).main(sys.argv[2:]))
    sys.exit(importlib.import_module("lab.standins.commands").main(sys.argv[1:]))
