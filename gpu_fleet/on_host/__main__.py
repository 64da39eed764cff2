"""Started as `python3 -I -S -B /opt/gpu-fleet/lib/python PROGRAM [ARGUMENT...]`."""

from __future__ import annotations

import importlib
import sys

if __name__ == "__main__":
    sys.exit(importlib.import_module(f"on_host.{sys.argv[1]}").main(sys.argv[2:]))
