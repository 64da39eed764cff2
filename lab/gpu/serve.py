"""A small HTTP server for the exporters' stand-ins: fixed paths, text answers, ended by a signal."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class CannotListen(Exception):
    """The address is taken or not ours; the text is the operating system's."""


def serve(host: str, port: int, answers: Mapping[str, Callable[[], str]], *, listening: Callable[[], None]) -> None:
    """Never returns. `answers`: path -> body, built for each request. `listening`: called once the port is open."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path.partition("?")[0])
            body = (answer() if answer else "404 page not found\n").encode()
            self.send_response(200 if answer else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """The real ones do not log requests."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET if host else socket.AF_INET6

    try:
        server = Server((host or "::", port), Handler)
    except OSError as error:
        raise CannotListen(error.strerror) from None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    listening()
    server.serve_forever()
