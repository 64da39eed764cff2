"""Started as `python3 -I -S -B BUNDLE/lib/converge VERB ...` by the script `converge`."""

from __future__ import annotations

import importlib
import os
import sys

if __name__ == "__main__":
    bundle = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    try:
        main = importlib.import_module("program.main").main
    except (ImportError, OSError):
        # While this was read, an apply may have replaced the bundle: the host has another one now.
        current = f"{os.path.dirname(os.path.dirname(bundle))}/current/converge"
        if os.path.exists(f"{bundle}/manifest") or not os.path.exists(current):
            raise
        os.execvp("sh", ["sh", current, *sys.argv[1:]])  # noqa: S606
    sys.exit(main(sys.argv[1:], bundle))
