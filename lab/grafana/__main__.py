"""`python -m lab.grafana --listen 127.0.0.1:3000 --data DIR`, or as bin/grafana with Grafana's own variables.

Every option's default is the variable by which Grafana takes the same setting, so that whoever starts Grafana starts this too.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])


def main() -> int:
    arguments = _parser().parse_args()
    if os.environ.get("NO_STAND_INS") == "1":
        sys.exit("grafana: NO_STAND_INS=1 refuses the lab's stand-in; Grafana itself is not on the PATH")
    # Not before: `--version`, by which a program on the PATH is known for Grafana's own, ends above, without 0.3 s for aiohttp.
    from lab.grafana.access import Access
    from lab.grafana.app import serve
    from lab.grafana.store import Store

    host, _, port = arguments.listen.rpartition(":")
    access = Access.of_admin(os.environ.get("GF_SECURITY_ADMIN_PASSWORD", "admin"))
    try:
        store = Store(arguments.data / "grafana-stand-in.json")
    except (OSError, ValueError) as error:
        print(f"grafana (stand-in): cannot use its store: {error}", file=sys.stderr)
        return 1
    return serve(host, int(port), store, access)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="grafana", description="The lab's stand-in of Grafana: a preview, not Grafana")
    parser.add_argument("command", nargs="?", choices=["server"], help="as Grafana's own command line has it")
    parser.add_argument("--homepath", help="not used: Grafana's own files lie there, the stand-in has none")
    address = os.environ.get("GF_SERVER_HTTP_ADDR", "127.0.0.1")
    listen = f"{address}:{os.environ.get('GF_SERVER_HTTP_PORT', '3000')}"
    parser.add_argument("--listen", default=listen, metavar="HOST:PORT", help="default: %(default)s")
    parser.add_argument("--data", default=os.environ.get("GF_PATHS_DATA", "data"), type=Path, metavar="DIR")
    return parser


if __name__ == "__main__":
    sys.exit(main())
