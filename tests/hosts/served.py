"""A directory of this machine, as a web server that the hosts of a site reach."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from lab.hosts import Site


@contextmanager
def serving(site: Site, directory: Path) -> Iterator[str]:
    """Its URL for the hosts."""
    handler = partial(_Quiet, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{site.relay(server.server_address[1])}"
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass
