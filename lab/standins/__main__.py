"""Runs one stand-in by the name of the program it stands in for; bin/start calls it.

Run as a directory (`python lab/standins NAME`), so that neither the working directory nor PYTHONPATH has to change: a command
that the stand-in starts would inherit both.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

# Only the one that is asked for is imported: the engine waits for each plugin to start.
STANDINS = {
    "pulumi-language-python": "lab.standins.language.host",
    "pulumi-resource-command": "lab.standins.command.plugin",
    "pulumi-resource-grafana": "lab.standins.grafana.plugin",
    "pulumi-resource-kubernetes": "lab.standins.kubernetes.plugin",
}

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    _, name, *arguments = sys.argv
    sys.exit(importlib.import_module(STANDINS[name]).main(arguments))
