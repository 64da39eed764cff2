"""Runs one stand-in by the name of the program it replaces; bin/start calls it. Other arguments: see commands.py.

Run as a directory (`python lab/standins NAME`), so that neither the working directory nor PYTHONPATH has to change: a command
that the stand-in starts would inherit both.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

# Only the chosen one is imported: the engine waits for each plugin to start.
STANDINS = {
    "pulumi-language-python": "lab.standins.language",
    "pulumi-resource-command": "lab.standins.command",
    "pulumi-resource-grafana": "lab.standins.grafana.plugin",
}


def keep_the_sdk_out() -> None:
    """Of the package `pulumi` a stand-in needs the messages of the protocol alone. Its own __init__ imports the whole SDK, which
    takes twice the time of everything else here, and the engine starts the language host twice in each run."""
    sdk = importlib.util.find_spec("pulumi")
    assert sdk is not None and sdk.submodule_search_locations
    (place,) = sdk.submodule_search_locations
    for name in ("pulumi", "pulumi.runtime", "pulumi.runtime.proto"):
        package = ModuleType(name)
        package.__path__ = [str(Path(place, *name.split(".")[1:]))]
        sys.modules[name] = package


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in STANDINS:
        if os.environ.get("NO_STAND_INS") == "1":
            sys.exit(f"{name}: NO_STAND_INS=1 refuses the lab's stand-in; the official one is not on the PATH")
        keep_the_sdk_out()
        sys.exit(importlib.import_module(STANDINS[name]).main(sys.argv[2:]))
    sys.exit(importlib.import_module("lab.standins.commands").main(sys.argv[1:]))
