"""`python -m lab.showcase`: the fleet with its history, and the stand-in for Grafana, until Ctrl-C.

`--pictures DIR` takes a screenshot of every dashboard instead, and exits.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
from pathlib import Path

from gpu_fleet.toolchain.errors import ToolchainError
from lab.grafana.browser import BrowserError
from lab.showcase import Showcase, pictures
from lab.showcase.board import PASSWORD, USER, Board
from lab.showcase.servers import ServerFailed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.showcase", description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # exits as on Ctrl-C, so that no server keeps running
    try:
        with (
            tempfile.TemporaryDirectory(prefix="gpu-fleet-showcase-") as directory,
            Showcase(Path(directory)) as showcase,
            contextlib.closing(Board(showcase, Path(directory) / "grafana")) as board,
        ):
            if arguments.pictures:
                for line in pictures.take(showcase, board, arguments.pictures):
                    print(line, flush=True)
                (arguments.pictures / "README.md").write_text(pictures.index(arguments.pictures))
                return 0
            print(board.address("gpu-fleet-overview", start_s=showcase.start_s, end_s=showcase.end_s, variables={}))
            print(f"user {USER}, password {PASSWORD}; Ctrl-C ends it", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except (ServerFailed, ToolchainError, BrowserError, OSError) as error:
        print(f"showcase: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
