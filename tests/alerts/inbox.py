"""The services that notify people, as Alertmanager reaches them: Slack, Teams, PagerDuty, webhooks by HTTP, email by SMTP."""

from __future__ import annotations

import email
import email.policy
import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast


class Inbox:
    """What arrived. `web`: base URL, the kind of service is its path. `smtp`: host:port."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, dict[str, Any]]] = []
        self.mails: list[EmailMessage] = []
        self._web = ThreadingHTTPServer(("127.0.0.1", 0), _web_handler(self))
        self._smtp = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _smtp_handler(self))
        self._smtp.daemon_threads = True
        self.web = f"http://127.0.0.1:{self._web.server_port}"
        self.smtp = f"127.0.0.1:{self._smtp.server_address[1]}"

    @contextmanager
    def open(self) -> Iterator[Inbox]:
        servers = (self._web, self._smtp)
        for server in servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            for server in servers:
                server.shutdown()
                server.server_close()

    def wait_for(self, what: str, found: Callable[[], Any], within_s: float = 240) -> Any:
        deadline = time.monotonic() + within_s
        while not (result := found()):
            assert time.monotonic() < deadline, f"{what}: not within {within_s} s; arrived: {self.posted} {self.mails}"
            time.sleep(0.2)
        return result

    def at(self, service: str, text: str) -> dict[str, Any]:
        """The first request to `service` that contains `text`."""
        return cast(
            "dict[str, Any]",
            self.wait_for(
                f"{text} at {service}",
                lambda: next((body for path, body in self.posted if path == service and text in json.dumps(body)), None),
            ),
        )

    def mail(self, text: str) -> EmailMessage:
        """The first email that contains `text`."""
        return cast(
            "EmailMessage",
            self.wait_for(f"{text} by email", lambda: next((one for one in self.mails if text in part(one, "plain")), None)),
        )


def part(mail: EmailMessage, kind: str) -> str:
    """The plain or the html part of an email."""
    body = mail.get_body((kind,))
    assert body is not None, mail
    return cast("str", body.get_content())


def _web_handler(inbox: Inbox) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            inbox.posted.append((self.path.strip("/"), body))
            self.send_response(202 if "pagerduty" in self.path else 200)
            self.end_headers()
            self.wfile.write(b'{"status": "success"}' if "pagerduty" in self.path else b"ok")

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _smtp_handler(inbox: Inbox) -> type[socketserver.StreamRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 the lab\r\n")
            while command := self.rfile.readline():
                if command.upper().startswith(b"QUIT"):
                    self.wfile.write(b"221 bye\r\n")
                    return
                if not command.upper().startswith(b"DATA"):
                    self.wfile.write(b"250 ok\r\n")
                    continue
                self.wfile.write(b"354 go ahead\r\n")
                text = b""
                while (line := self.rfile.readline()) != b".\r\n":
                    text += line.removeprefix(b".") if line.startswith(b"..") else line
                inbox.mails.append(cast("EmailMessage", email.message_from_bytes(text, policy=email.policy.default)))
                self.wfile.write(b"250 queued\r\n")

    return Handler
