"""The lab's Grafana as its users meet it: its login, its pages, what it keeps, what it refuses."""

from __future__ import annotations

import http.server
import json
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.standins.grafana_server import GrafanaServer


@pytest.fixture
def grafana(server: GrafanaServer) -> GrafanaServer:
    server.empty()
    return server


@pytest.fixture
def upstream() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A data source: its address, and the requests it got."""
    requests: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
            requests.append({"path": self.path, "headers": dict(self.headers), "body": body})
            answer = b'{"status": "success"}'
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST

        def log_message(self, format: str, *args: object) -> None:
            pass

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{served.server_port}/prometheus", requests
    served.shutdown()
    served.server_close()


def test_health_is_public_and_all_else_needs_a_login(grafana: GrafanaServer) -> None:
    assert grafana.ask("GET", "/api/health", auth="nobody:x")[0] == 200
    for path in ("/", "/api/folders", "/d/overview", "/api/datasources/proxy/uid/mimir/api/v1/query"):
        assert grafana.ask("GET", path, auth="admin:wrong")[0] == 401, path


def test_what_is_stored_outlives_the_process_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    first = GrafanaServer(tmp_path)
    first.ask("POST", "/api/folders", {"title": "Kept", "uid": "kept"})
    first.stop()
    again = GrafanaServer(tmp_path)
    assert again.get("/api/folders/kept")["title"] == "Kept"
    again.stop()
    file = tmp_path / "grafana-stand-in.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "it holds the secrets of data sources and contact points"


def test_the_proxy_queries_the_data_source_with_its_own_login(
    grafana: GrafanaServer, upstream: tuple[str, list[dict[str, Any]]]
) -> None:
    url, requests = upstream
    source = {
        "name": "Mimir",
        "type": "prometheus",
        "uid": "mimir",
        "url": url,
        "basicAuth": True,
        "basicAuthUser": "reader",
        "jsonData": {"httpHeaderName1": "X-Scope-OrgID"},
        "secureJsonData": {"basicAuthPassword": "hush", "httpHeaderValue1": "us-west"},
    }
    assert grafana.ask("POST", "/api/datasources", source)[0] == 200
    status, answer = grafana.ask("GET", "/api/datasources/proxy/uid/mimir/api/v1/query?query=up")
    assert (status, answer) == (200, {"status": "success"})
    assert requests[0]["path"] == "/prometheus/api/v1/query?query=up"
    assert requests[0]["headers"]["X-Scope-OrgID"] == "us-west"
    assert requests[0]["headers"]["Authorization"] == "Basic cmVhZGVyOmh1c2g=", "the person's login to Grafana stays here"


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/api/folders", {"title": ""}, 400, "folder title cannot be empty"),
        ("/api/folders", {"title": "t", "uid": "a/b"}, 400, "uid contains illegal characters"),
        ("/api/folders", {"title": "t", "uid": "a" * 41}, 400, "uid too long, max 40 characters"),
        ("/api/folders", {"title": "t", "parentUid": "none"}, 404, "folder not found"),
        ("/api/dashboards/db", {"dashboard": {"uid": "d"}}, 400, "Dashboard title cannot be empty"),
        ("/api/dashboards/db", {"dashboard": {"title": "t"}, "folderUid": "none"}, 400, "Folder not found"),
        ("/api/dashboards/db", {"dashboard": {"title": "t", "id": 99}}, 404, "Dashboard not found"),
        ("/api/dashboards/db", {}, 400, "bad request data"),
        ("/api/datasources", {"name": "n"}, 400, "bad request data"),
        ("/api/v1/provisioning/contact-points", {"name": "n", "type": "email", "settings": {}}, 400, "addresses"),
        ("/api/v1/provisioning/contact-points", {"name": "n", "type": "pigeon", "settings": {}}, 400, "unknown type 'pigeon'"),
        ("/api/v1/provisioning/mute-timings", {"time_intervals": []}, 400, "Time interval is in invalid format"),
    ],
)
def test_invalid_requests_are_answered_as_by_grafana(
    grafana: GrafanaServer, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    answered, answer = grafana.ask("POST", path, body)
    assert answered == status and message in answer["message"], answer


def test_secrets_are_never_given_back(grafana: GrafanaServer) -> None:
    point = {"name": "ops", "type": "pagerduty", "settings": {"integrationKey": "hush", "severity": "critical"}}
    grafana.ask("POST", "/api/v1/provisioning/contact-points", point)
    assert "hush" not in json.dumps(grafana.get("/api/v1/provisioning/contact-points"))


def test_an_update_with_a_redacted_secret_keeps_it(grafana: GrafanaServer) -> None:
    point = {"name": "ops", "type": "webhook", "settings": {"url": "http://127.0.0.1/", "password": "hush"}}
    _, made = grafana.ask("POST", "/api/v1/provisioning/contact-points", point)
    made["settings"]["url"] = "http://127.0.0.1/other"
    assert grafana.ask("PUT", f"/api/v1/provisioning/contact-points/{made['uid']}", made)[0] == 202
    kept = grafana.directory / "grafana-stand-in.json"  # written a moment later, with other changes
    deadline = time.monotonic() + 60
    while "/other" not in (text := kept.read_text()):
        assert time.monotonic() < deadline, text
        time.sleep(0.05)
    assert "hush" in text
