"""Runs one Pulumi program with the project's Python: `run_program.py ENGINE-ADDRESS`, the RunRequest on standard input.

Exits 0, with 32 when Pulumi's LanguageServer has logged why the program failed, or with the status that the program chose.
"""

from __future__ import annotations

import os
import runpy
import sys

import pulumi
from pulumi.automation._server import LanguageServer
from pulumi.runtime.proto import language_pb2


def main(engine_address: str) -> int:
    request = language_pb2.RunRequest.FromString(sys.stdin.buffer.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request.pwd)
    sys.argv = [request.info.entry_point, *request.args]
    request.args[:] = [engine_address]  # where LanguageServer looks for it

    def program() -> None:
        pulumi.runtime.settings.SETTINGS.root_directory = request.info.root_directory
        try:
            runpy.run_path(request.info.entry_point, run_name="__main__")
        except SystemExit as end:
            if not isinstance(end.code, int | None):
                print(end.code, file=sys.stderr)
            sys.stdout.flush()
            os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))

    return 32 if LanguageServer(program).Run(request, None).error else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
