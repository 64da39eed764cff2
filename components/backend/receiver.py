"""A small webhook receiver: stores what Alertmanager sends, so that a person or a test can read which alerts were sent and when.

    receiver.py --listen 127.0.0.1:9095 --directory DIR

POST /            one Alertmanager webhook body (version 4); appended to DIR/alerts.jsonl with the time of arrival
GET /alerts       all alerts received, oldest first: [{"received_at": RFC 3339, "status": ..., "labels": {...}, ...}, ...]
GET /healthy      200

One process, standard library only: the receiver of the embedded backend, not a notification service.
Source: the webhook body is described under "webhook_config" in Prometheus's Alertmanager documentation.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LARGEST_BODY_BYTES = 4 << 20  # one group of a few thousand alerts; anything larger is not from an Alertmanager


class Inbox:
    """The alerts received, in memory and on disk; reloaded after a restart."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = directory / "alerts.jsonl"
        self._lock = threading.Lock()
        self._alerts: list[dict[str, Any]] = []
        if self._file.exists():
            self._alerts = [json.loads(line) for line in self._file.read_text().splitlines() if line]

    def take(self, body: dict[str, Any]) -> None:
        received_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        alerts = [{"received_at": received_at, "receiver": body.get("receiver", ""), **alert} for alert in body["alerts"]]
        with self._lock:
            self._alerts += alerts
            with self._file.open("a") as file:
                file.writelines(json.dumps(alert) + "\n" for alert in alerts)

    def all(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._alerts)


def handler(inbox: Inbox) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/healthy":
                self._answer(200, {"alerts": len(inbox.all())})
            elif self.path == "/alerts":
                self._answer(200, inbox.all())
            else:
                self._answer(404, {"error": "GET /alerts or /healthy"})

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            if length > LARGEST_BODY_BYTES:
                return self._answer(413, {"error": f"the body is larger than {LARGEST_BODY_BYTES} bytes"})
            try:
                inbox.take(json.loads(self.rfile.read(length)))
            except (ValueError, KeyError, TypeError) as error:
                return self._answer(400, {"error": f"not an Alertmanager webhook body: {error}"})
            self._answer(200, {})

        def _answer(self, status: int, body: object) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Silent: the alerts themselves are the log."""

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description="Webhook receiver of the embedded backend")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--directory", required=True, type=Path)
    args = parser.parse_args()
    host, _, port = args.listen.rpartition(":")
    server = ThreadingHTTPServer((host, int(port)), handler(Inbox(args.directory)))
    print(f"listening on {args.listen}", file=sys.stderr, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
