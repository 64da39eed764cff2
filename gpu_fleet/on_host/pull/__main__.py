"""Started as `python3 -I -S -B pull.pyz main|install ARGUMENT...`; the first of those is the module."""

from __future__ import annotations

import importlib
import sys

if __name__ == "__main__":
    sys.exit(importlib.import_module(f"on_host.pull.{sys.argv[1]}").main(sys.argv[2:]))
