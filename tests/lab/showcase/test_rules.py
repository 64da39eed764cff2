"""What a ruler adds to a query, over a past: names, labels, and how long an alert waits."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

from lab.showcase import rules

# Of each expression: what Mimir would answer.
ANSWERS = {
    "raw": [{"metric": {"__name__": "raw", "instance": "a"}, "values": [[at, "2"] for at in range(0, 121, 30)]}],
    "word > 1": [{"metric": {"__name__": "word", "instance": "a"}, "values": [[at, "2"] for at in (0, 30, 60, 120)]}],
}


@pytest.fixture
def mimir() -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path.endswith("/query_range"):
                [query] = parse_qs(body.decode())["query"]
                asked.append(query)
                answer = json.dumps({"data": {"result": ANSWERS[query]}}).encode()
            else:
                answer = b""
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def test_a_rule_sees_what_others_recorded_and_an_alert_waits(
    mimir: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, asked = mimir
    pushed: dict = {}
    monkeypatch.setattr(rules, "push", lambda _, series: pushed.update(series))
    alert = {"alert": "Hot", "expr": "word > 1", "for": "1m", "labels": {"severity": "critical"}}
    rules.record(url, [alert, {"record": "word", "expr": "raw"}], start_s=0, end_s=120, step_s=30)
    assert asked == ["raw", "word > 1"], "the alert is evaluated once its word is recorded"
    assert len(pushed[(("__name__", "word"), ("instance", "a"))]) == 5
    labels = {"__name__": "ALERTS", "alertname": "Hot", "alertstate": "firing", "instance": "a", "severity": "critical"}
    firing = [at for at, value in pushed[tuple(sorted(labels.items()))] if value is not None]
    assert firing == [60], "pending for two steps, and the gap at 90 s starts over"
