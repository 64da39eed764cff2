"""Started as `python3 -I -S -B BUNDLE/lib/converge.pyz VERB ...` by the script `converge`; `transaction`: by packages.py,
`gpu-containers`: by gpu_containers.py."""

from __future__ import annotations

import importlib
import os
import sys


def _main(arguments: list[str]) -> int:
    program = os.path.dirname(os.path.abspath(__file__))
    bundle = os.path.dirname(os.path.dirname(program))
    if arguments[:1] == ["transaction"]:
        done: int = importlib.import_module("on_host.converge.transaction").main(arguments[1:])
        return done
    if arguments == ["gpu-containers"]:
        done = importlib.import_module("on_host.converge.gpu_containers").main()
        return done
    try:
        importlib.import_module("on_host.converge.compiled").use(program, arguments)
        main = importlib.import_module("on_host.converge.main").main
    except (ImportError, OSError):
        # While this was read, an apply may have replaced the bundle: the host has another one now.
        current = f"{os.path.dirname(os.path.dirname(bundle))}/current/converge"
        if os.path.exists(f"{bundle}/manifest") or not os.path.exists(current):
            raise
        os.execvp("sh", ["sh", current, *arguments])  # noqa: S606
    code: int = main(arguments, bundle)
    return code


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
