"""Command line of the dev datacenter; see the package's docstring."""

from __future__ import annotations

import argparse
import signal
import sys

from gpu_fleet import toolchain
from lab.dev.down import down
from lab.dev.up import up
from lab.dev.workspace import DevError, locked
from lab.dev.xid import xid
from lab.dev.xids import xids


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.dev", description="The dev datacenter")
    verbs = parser.add_subparsers(dest="verb", required=True)
    start = verbs.add_parser("up", help="start or repair it")
    start.add_argument("--jobs", action="store_true", help="with a real Slurm, whose jobs have the GPUs")
    verbs.add_parser("down", help="remove everything")
    inject = verbs.add_parser("xid", help="inject an XID and wait for its alert")
    inject.add_argument("--code", type=int, required=True)
    inject.add_argument("--gpu", type=int, required=True)
    verbs.add_parser("xids", help="inject the 30 most common XIDs at once and wait for their alerts")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background jobs
    try:
        if args.verb == "xid":
            xid(args.code, args.gpu)
            return 0
        if args.verb == "xids":
            xids()
            return 0
        with locked():
            up(jobs=args.jobs) if args.verb == "up" else down()
    except (DevError, toolchain.ToolchainError) as error:
        print(f"\n{args.verb}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; run it again to continue, or `make dev-down` to remove everything", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
